"""Arrays by name, one row per sequence: what every reader of your own data returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError

NAMES = ("x", "y", "lengths", "split", "groups", "ids")
"""The arrays that are read; a file may hold others."""

MOST_EXPANSION = 200
"""What unpacks to more than so many times its stored bytes is no data: random bits as float64 shrink by 60."""

FREE_BYTES = 2**27
"""Up to this size an array may shrink as it likes: rows of zeros are harmless."""


class Columns:
    """Named arrays with one row per sequence, and what a person should know of how they were read.

    They are held in memory, but for one ``x`` of such a shape and type that `sequences` gives stretch by stretch.
    """

    piece_rows = 2**62
    letters = False  # x holds the code points of texts
    files: Sequence[Path] = ()  # that are read beside the one that is named
    unheard: tuple[str, ...] = ("rate",)  # options that say nothing of such data

    def __init__(self, arrays: Mapping[str, np.ndarray], x: tuple[tuple[int, ...], np.dtype] | None = None):
        self._arrays = dict(arrays)
        self.notes: list[str] = []
        self.found: dict[str, Any] = {}  # names of the columns that were taken unasked, by their role
        self.shapes = ({"x": x[0]} if x else {}) | {name: array.shape for name, array in arrays.items()}
        self.dtypes = ({"x": x[1]} if x else {}) | {name: array.dtype for name, array in arrays.items()}

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        if name in self._arrays:
            return self._arrays[name][lo:hi]
        return self.sequences(lo, min(hi, self.shapes["x"][0]))

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of ``x``, where it is not held in memory."""
        raise NotImplementedError


def check_expansion(path: Path, name: str, size: int, stored: int) -> None:
    """Refuse an array that would unpack to far more than what is stored of it."""
    if size > FREE_BYTES and size > MOST_EXPANSION * stored:
        raise InputError(
            f"{path}: array {name!r} claims {size} bytes and {stored} are stored; the file is damaged, or write it "
            "without compression"
        )


def check_padding(where: str, lengths: np.ndarray, token_bytes: int) -> None:
    """Refuse sequences of which the longest makes the padded array far larger than what is in it."""
    size, real = len(lengths) * int(lengths.max()) * token_bytes, int(lengths.sum()) * token_bytes
    if size > FREE_BYTES and size > MOST_EXPANSION * real:
        row = int(np.argmax(lengths))
        raise InputError(
            f"{where}, row {row}: {lengths[row]} tokens where {len(lengths)} rows have {real // token_bytes} in all; "
            "cut the row, or leave it out"
        )
