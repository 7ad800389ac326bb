"""The one writer of the project: a file or folder is complete under its final name, or was never changed.

Everything is written under a temporary name, forced to the disk and then renamed, in the steps of "Publication" in
FORMAT.md. The temporary name says which process writes it, so that other processes can remove what dead ones left. JSON
documents of the cache carry the CRC-32 of their own text.
"""

import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import READ_BYTES, crc32_of, read_regular

# .<final name>.<number>.<host>-<process number>-<8 random digits>.tmp, as `_temporary_path` makes it
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.(?P<host>[A-Za-z0-9-]+)-(?P<process>[0-9]+)-[0-9a-f]{8}\.tmp")
_numbers = itertools.count()  # of the temporary names of this process
_identity = ""  # set below, and in each forked child; the part of a temporary name that says who writes it


@contextmanager
def replacing(final: Path, *, durable: bool = True, sync_folder: bool = True) -> Iterator[Path]:
    """Yield the path of a new, empty file, which replaces ``final`` at the end unless the block fails.

    If not ``durable``, a power loss may destroy it. Without ``sync_folder``, a power loss may take away its name, but
    never a part of its content, until the caller syncs the folder. An `OSError` that names no file, such as that of a
    write to a full disk, gets the name of ``final``.
    """
    temporary = _temporary_path(final)
    try:
        with _naming(final):
            # Mode x fails if the file exists, so that two processes never write the same one.
            temporary.open("xb").close()
            yield temporary
            # The content reaches the disk before the name, which must never stand for a part of the content.
            if durable:
                sync(temporary)
            temporary.replace(final)
            if durable and sync_folder:
                sync(final.parent)
    finally:
        # After success the temporary name is gone. After a failure, its error matters more than one of this step.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_file(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Replace a file with what ``write`` writes to the path that it gets; remove what dead processes left beside it.

    Files of a `new_folder` need not be ``durable``, because the whole folder is forced to the disk at its end.
    """
    remove_leftovers(path.parent)
    with replacing(path, durable=durable) as temporary:
        write(temporary)


def publish(
    final: Path,
    *content: bytes | memoryview,
    crc32: int | None = None,
    durable: bool = True,
    sync_folder: bool = True,
) -> tuple[int, str]:
    """Replace a file of the cache with some pieces of ``content``, after reading them back.

    Returns its size in bytes, and its CRC-32 as 8 hexadecimal digits. The CRC-32 is computed, unless the caller knows
    it and passes it as a number. Folders are created as needed. For ``durable`` and ``sync_folder`` see `replacing`.
    Raises CacheError if the file cannot be written or read back.
    """
    try:
        make_folder(final.parent)
        with replacing(final, durable=durable, sync_folder=sync_folder) as temporary:
            with temporary.open("r+b") as file:
                file.writelines(content)
            if not _holds(temporary, *content):
                raise CacheError(f"{final}: does not read back as written; check the disk")
    except OSError as error:
        reason = " ".join(str(error).split())  # in one line
        raise CacheError(
            f"{final}: cannot be written ({reason}); check free space and permissions"
        ) from error
    if crc32 is None:
        crc = 0
        for piece in content:
            crc = crc32_of(piece, crc)
    else:
        crc = crc32
    return sum(map(len, content)), f"{crc:08x}"


def publish_json(
    final: Path, content: dict[str, Any], *, indent: int | None = None, durable: bool = True
) -> None:
    """Publish a JSON document with the CRC-32 of its compact text; without white space if ``indent`` is None."""
    document = {**content, "crc32": _checksum(content)}
    publish(final, _text(document, indent).encode("ascii"), durable=durable)


def read_json(path: Path, *, indent: int | None = None) -> dict[str, Any]:
    """Return the content that ``publish_json`` wrote with the same ``indent``, without its checksum.

    Raises CacheError if a single byte has changed, and FileNotFoundError if there is no file.
    """
    try:
        text = read_regular(path).decode("ascii")
        content = json.loads(text)
        crc = content.pop("crc32")
        # The checksum shows a change of the values. Only the text shows one that JSON allows, such as of white space.
        is_sound = crc == _checksum(content) and text == _text({**content, "crc32": crc}, indent)
    except FileNotFoundError:
        raise  # an OSError, but many callers read a missing file as an empty document
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheError(f"{path}: unreadable ({error})") from error
    if not is_sound:
        raise CacheError(f"{path}: damaged, its checksum does not match its content")
    return content


@contextmanager
def new_folder(final: Path, *, keep_existing: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, which becomes the new folder ``final`` at the end unless the block fails.

    With ``keep_existing``, a folder of that name that another process has published meanwhile stays as it is.
    """
    final = final.absolute()
    make_folder(final.parent)
    with temporary_folder(final) as temporary, _naming(final):
        yield temporary
        # All content reaches the disk before the name does.
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        try:
            temporary.rename(final)
        except OSError:  # for example, a folder of this name exists and is not empty
            if not (keep_existing and final.is_dir()):
                raise
        sync(final.parent)


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder beside ``final``, which is removed at the end unless it was renamed.

    Folders and files that dead processes left there are removed first.
    """
    remove_leftovers(final.parent)
    temporary = _temporary_path(final)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, *, locked: bool = False) -> None:
    """Remove what killed processes of this machine left half written in a folder.

    With ``locked``, this process holds a lock without which nobody writes in the folder: what processes of other
    machines left is removed, too.
    """
    for path in folder.glob(".*.tmp"):
        writer = _TEMPORARY.fullmatch(path.name)
        if writer is None:
            continue  # a file of another program
        # Only of processes of this machine can it be known whether they are alive.
        is_writer_dead = writer["host"] == _host() and not _is_alive(int(writer["process"]))
        if locked or is_writer_dead:
            with suppress(OSError):  # it may belong to another user
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def process_identity() -> str:
    """Return what identifies this process: its host, its number and 8 random digits; no '.' in it."""
    return _identity


def make_folder(path: Path) -> None:
    """Create a folder with its parents, and force the name of each new one to the disk; raises OSError on failure."""
    if not path.is_dir():
        if not path.parent.exists():
            make_folder(path.parent)
        path.mkdir(exist_ok=True)  # another process may have created it meanwhile
        sync(path.parent)


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_path(final: Path) -> Path:
    """Return a name that no other file has and that says which process writes it."""
    return final.with_name(f".{final.name}.{next(_numbers)}.{_identity}.tmp")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to an `OSError` that names none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _holds(path: Path, *content: bytes | memoryview) -> bool:
    """Return whether a file consists of these pieces, one after the other."""
    with path.open("rb") as file:
        for piece in content:
            for low in range(0, len(piece), READ_BYTES):
                expected = bytes(piece[low : low + READ_BYTES])  # comparing two memoryviews is slow
                if file.read(len(expected)) != expected:
                    return False
        return not file.read(1)  # whether the file ends here


def _checksum(content: dict[str, Any]) -> str:
    """Return the CRC-32 of the compact text of a document without its checksum, as 8 hexadecimal digits."""
    return f"{crc32_of(_text(content, None).encode()):08x}"


def _text(content: dict[str, Any], indent: int | None) -> str:
    """Return the text of a document with sorted keys and a line feed; without white space if ``indent`` is None."""
    separators = (",", ":") if indent is None else None
    return json.dumps(content, sort_keys=True, indent=indent, separators=separators, allow_nan=False) + "\n"


def _is_alive(process: int) -> bool:
    """Return whether there is a process of this number on this machine."""
    try:
        os.kill(process, 0)  # signal 0 is not sent; the call only checks that it could be
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user
    return True


def _host() -> str:
    """Return the beginning of this host's name, and 8 digits that identify it and its space of process numbers."""
    name = socket.gethostname()
    # A container, which may have the name of its host, has its own process numbers. Only Linux has this link.
    process_space = ""
    with suppress(OSError):
        process_space = str(Path("/proc/self/ns/pid").readlink())
    digits = hashlib.sha256(f"{name} {process_space}".encode()).hexdigest()[:8]
    readable_name = re.sub("[^A-Za-z0-9-]", "-", name)[:16] or "host"
    return f"{readable_name}-{digits}"


def _set_identity() -> None:
    """Set the identity of this process, which a forked child must not share with its parent."""
    global _identity  # noqa: PLW0603
    _identity = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


_set_identity()
os.register_at_fork(after_in_child=_set_identity)
