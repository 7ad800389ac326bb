"""The bytes of files, and damage to them."""

from __future__ import annotations

from pathlib import Path


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the bytes of every file below a folder by its path in it."""
    files = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
