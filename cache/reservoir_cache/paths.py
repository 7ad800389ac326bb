"""Checks of files: their sizes and checksums, that they are regular files, and that no link leads out of the cache."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from reservoir_cache.checksums import crc32_of
from reservoir_cache.errors import CacheError

READ_BYTES = 2**18
"""Bytes that are read at once: they are processed while they are in the processor's cache."""


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


def file_crc32(path: Path) -> str:
    """Return the CRC-32 of a whole file as 8 hexadecimal digits."""
    crc = 0
    with path.open("rb") as file:
        while content := file.read(READ_BYTES):
            crc = crc32_of(content, crc)
    return f"{crc:08x}"


def is_regular(path: Path, size: int | None = None) -> bool:
    """Return whether a path is a regular file (no link, pipe or device), of the given size if any."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and size in (None, status.st_size)


def fault(path: Path, line: Mapping[str, Any], *, contents: bool = True) -> str | None:
    """Return in words how a file differs from its line in a manifest, or None if it does not.

    ``line`` has its size, ``bytes``, and its CRC-32, ``crc32``. Without ``contents``, the file is not read, and only
    the sizes are compared.
    """
    try:
        if not is_regular(path):
            return "missing, or not a regular file"
        if (size := path.stat().st_size) != line["bytes"]:
            return f"has {size} bytes instead of {line['bytes']}"
        if contents and file_crc32(path) != line["crc32"]:
            return "damaged: its checksum does not match"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return None


def refuse_links(*paths: Path) -> None:
    """Raise CacheError if any of the paths is a symbolic link, which may lead out of the cache."""
    for path in paths:
        if path.is_symlink():
            raise CacheError(f"{path}: a symbolic link, which is not followed here; remove it")


def path_below(root: Path, *names: str) -> Path:
    """Return the path of a file or folder below a root, by the name of each folder on the way and its own.

    Raises CacheError if a name leads elsewhere or is a link.
    """
    # The root itself may be a link, because the user chose it; what is in it may come from other people.
    path = Path(root)
    for name in names:
        leads_elsewhere = "/" in name or name in ("", ".", "..")
        if leads_elsewhere:
            raise CacheError(
                f"{path}: {name!r} is not the name of a file or folder in it; remove what contains it"
            )
        path /= name
        refuse_links(path)
    return path
