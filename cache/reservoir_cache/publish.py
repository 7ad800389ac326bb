"""Write files that are complete or absent, in the steps of "Publication" in FORMAT.md; define the cache's errors."""

import itertools
import json
import os
import re
import secrets
import socket
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from io import BufferedReader
from pathlib import Path
from typing import Any

_PART = 2**18  # bytes that are read at once, while they are in the processor's cache
_counter = itertools.count()
_identity = ""


class CacheError(ValueError):
    """An error in one line that says where, what, and what to do."""


@dataclass(frozen=True)
class Problem:
    """Damage on disk: the file or folder, what is wrong with it, and how to repair it."""

    path: Path
    what: str
    repair: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.repair}"

    @classmethod
    def of(cls, path: Path, error: CacheError, repair: str) -> "Problem":
        """Make a problem from an error message of the form 'where: what; what to do'."""
        return cls(path, str(error).partition(": ")[2].partition(";")[0], repair)


def repair_command(key: str) -> str:
    """Return the end of a message about damage: the command that repairs the entry."""
    return f"run 'reservoir cache repair {key[:16]}', then the same extract again"


def publish(
    final: Path, *content: bytes | memoryview, crc32: int | None = None, durable: bool = True
) -> tuple[int, str]:
    """Write pieces to a file that is complete under its final name or unchanged; return its size and CRC-32.

    If not ``durable``, a power loss may destroy it. Raises CacheError if the file cannot be written
    or read back.
    """
    # The identity of the run is part of the name, so that a later run recognises the files of dead runs.
    temporary = final.with_name(f".{final.name}.{next(_counter)}.{run_identity()}.tmp")
    try:
        make_folder(final.parent)
        with temporary.open("xb") as file:
            file.writelines(content)
        if not _holds(temporary, *content):
            raise CacheError(f"{final}: does not read back as written; check the disk")
        if durable:
            sync(temporary)
        temporary.replace(final)
        if durable:
            sync(final.parent)
    except OSError as error:
        why = " ".join(str(error).split())
        raise CacheError(f"{final}: cannot be written ({why}); check free space and permissions") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    crc = reduce(lambda crc, piece: zlib.crc32(piece, crc), content, 0) if crc32 is None else crc32
    return sum(map(len, content)), f"{crc:08x}"


def publish_json(
    final: Path, content: dict[str, Any], *, indent: int | None = None, durable: bool = True
) -> None:
    """Publish a JSON document with the CRC-32 of its compact text."""
    publish(final, _text({**content, "crc32": _checksum(content)}, indent).encode("ascii"), durable=durable)


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a file for reading; raises ValueError for a pipe or a device, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        yield file


def read_regular(path: Path) -> bytes:
    """Return a file's content; raises ValueError for a pipe or a device."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: Path, *, indent: int | None = None) -> dict[str, Any]:
    """Read what ``publish_json`` wrote; raises CacheError if a single byte has changed."""
    try:
        text = read_regular(path).decode("ascii")
        content = json.loads(text)
        crc = content.pop("crc32")
        sound = crc == _checksum(content) and text == _text({**content, "crc32": crc}, indent)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheError(f"{path}: unreadable ({error})") from error
    if not sound:
        raise CacheError(f"{path}: damaged, its checksum does not match its content")
    return content


def file_crc32(path: Path) -> str:
    """Return the CRC-32 of a whole file as 8 hexadecimal digits."""
    crc = 0
    with path.open("rb") as file:
        while part := file.read(_PART):
            crc = zlib.crc32(part, crc)
    return f"{crc:08x}"


def run_identity() -> str:
    """Return the identity of this process: host, process number and 8 random digits; no '.' in it."""
    return _identity


def make_folder(path: Path) -> None:
    """Create a folder with its parents, and sync each; raises OSError on failure."""
    if not path.is_dir():
        if not path.parent.exists():
            make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def is_regular(path: Path, size: int | None = None) -> bool:
    """Return whether a path is a regular file (no link, pipe or device), of the given size if any."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and size in (None, status.st_size)


def refuse_links(*paths: Path) -> None:
    """Raise CacheError if any of the paths is a symbolic link, which may lead out of the cache."""
    for path in paths:
        if path.is_symlink():
            raise CacheError(f"{path}: a symbolic link, which is not followed here; remove it")


def path_below(root: Path, *names: str) -> Path:
    """Return the path of a file or folder below a root; raises CacheError if a name leads elsewhere or is a link."""
    # the user chose the root, which may be a link; its content may come from other people
    path = Path(root)
    for name in names:
        if "/" in name or name in ("", ".", ".."):
            raise CacheError(
                f"{path}: {name!r} is not the name of a file or folder in it; remove what contains it"
            )
        path /= name
        refuse_links(path)
    return path


def open_lock(path: Path, *, create: bool = True) -> int:
    """Open a lock file for reading and writing; raises CacheError if it is a symbolic link."""
    refuse_links(path)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o666)


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _holds(path: Path, *content: bytes | memoryview) -> bool:
    with path.open("rb") as file:
        for piece in content:
            for low in range(0, len(piece), _PART):
                part = bytes(piece[low : low + _PART])  # comparing two memoryviews is slow
                if file.read(len(part)) != part:
                    return False
        return not file.read(1)


def _checksum(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(_text(content, None).encode()):08x}"


def _text(content: dict[str, Any], indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(content, sort_keys=True, indent=indent, separators=separators, allow_nan=False) + "\n"


def _identify() -> None:
    global _identity  # noqa: PLW0603
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
    _identity = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


_identify()
os.register_at_fork(after_in_child=_identify)
