"""Your own images: files are stored as they are, and decoded when a model reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.pictures import SIDE, TOKENS, check_pillow, decoded
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.rows import Rows

MAX_BYTES = 2**27  # a larger file is probably no image; 2**26 pixels, the maximum, rarely need as much
PIECE_ROWS = 64  # files that are in memory at a time


class ImageFiles:
    """Images as an array (rows,) of the bytes of their files, which are read and checked piece by piece."""

    dtype = np.dtype(object)

    def __init__(self, files: Sequence[Path], bad: BadRows, readable: np.ndarray, *, checked: bool):
        self._all_files, self._bad = files, bad
        self._checked = checked
        self._files = [file for file, is_readable in zip(files, readable, strict=True) if is_readable]
        self.shape = (len(self._files),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        files = self._files[rows]
        if self._checked:
            return np.fromiter((_file_bytes(file) for file in files), object)
        try:
            return np.fromiter(map(stored_bytes, files), object)
        except InputError:
            # The error counts all unreadable files, not only this one.
            self._bad.read_files(self._all_files, stored_bytes)
            self._bad.readable()
            raise


def image_rows(files: Sequence[Path], columns: Mapping[str, Any], bad: BadRows) -> Rows:
    """Return image files as rows, with other ``columns`` (files,)."""
    check_pillow()
    if bad.skip:  # all files are read, because damage must be detected before the rows are counted
        bad.read_files(files, stored_bytes)
    readable = bad.readable()
    return Rows(
        x=ImageFiles(files, bad, readable, checked=bool(bad.skip)),
        **{name: array[readable] for name, array in columns.items()},
        holds="images",
        piece_rows=PIECE_ROWS,
        files=tuple(file for file, is_readable in zip(files, readable, strict=True) if is_readable),
        notes=(f"backbones that do not read images get {SIDE}x{SIDE} pixels in {TOKENS} patches",),
    )


def stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of an image file, after checking that they can be decoded."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}", "check that it is an image"
        )
    stored = _file_bytes(path)
    decoded(stored, str(path), rough=True)
    return stored


def _file_bytes(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), np.uint8)
