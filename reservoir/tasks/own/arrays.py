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
"""Largest expansion of stored bytes that is accepted; random bits stored as float64 expand 60 times."""

FREE_BYTES = 2**27
"""Arrays up to this size may shrink as they like: rows of zeros are harmless."""


class Arrays:
    """Named arrays with one row per sequence, and notes on how they were read.

    The arrays are in memory, except that a subclass may give ``x`` a shape and a type, and read it in stretches of
    ``piece_rows`` rows.

    Parameters
    ----------
    arrays : mapping
        Arrays by names of `NAMES`.
    x : tuple, optional
        Shape and type of an ``x`` that `sequences` reads.
    """

    piece_rows = 2**62
    letters = False  # whether x holds the code points of texts
    unused_options: tuple[str, ...] = ("rate",)  # that mean nothing for such data

    def __init__(self, arrays: Mapping[str, np.ndarray], x: tuple[tuple[int, ...], np.dtype] | None = None):
        self._arrays = dict(arrays)
        self.files: list[Path] = []  # that are read beside the one that is named
        self.notes: list[str] = []
        self.chosen: dict[str, Any] = {}  # choices made by rule, needed to read new data
        self.shapes = ({"x": x[0]} if x else {}) | {name: array.shape for name, array in arrays.items()}
        self.dtypes = ({"x": x[1]} if x else {}) | {name: array.dtype for name, array in arrays.items()}

    def replace(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put arrays in the place of others of their names."""
        self._arrays |= arrays
        self.shapes |= {name: array.shape for name, array in arrays.items()}
        self.dtypes |= {name: array.dtype for name, array in arrays.items()}

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        if name in self._arrays:
            return self._arrays[name][lo:hi]
        return self.sequences(lo, min(hi, self.shapes["x"][0]))

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an ``x`` that is not in memory."""
        raise NotImplementedError


def check_expansion(path: Path, name: str, size: int, stored: int) -> None:
    """Refuse an array that would unpack to far more bytes than are stored of it."""
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


def padded(where: str, sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (tokens, ...) of several lengths as one array with zeros at the ends, and their lengths."""
    lengths = np.array([len(one) for one in sequences], np.int64)
    kind = np.result_type(*sequences)
    check_padding(where, lengths, kind.itemsize)
    x = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), kind)
    for row, one in enumerate(sequences):
        x[row, : len(one)] = one
    return x, lengths
