"""What tests compare: the bytes of files and tensors, and the line that refuses bad input; and damage to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reservoir.errors import InputError


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the bytes of every file below a folder by its path in it."""
    files = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def assert_same_bits(first, second):
    """Assert that two runs have equal tensors under equal names."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


def outcome(action: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the one line of an `InputError`, or "" after success."""
    try:
        action(*arguments, **options)
    except InputError as error:
        assert "\n" not in str(error) and str(error)
        return str(error)
    return ""
