"""Your own pictures: their files are stored as they are, and decoded when a model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.tasks.own.columns import Columns
from reservoir.tasks.own.decode import PATCH, SIDE, check_pillow, stored_bytes

TOKENS = (SIDE // PATCH) ** 2


class Pictures(Columns):
    """Pictures as ``x``, the bytes of each file, beside arrays that are known already.

    A vision model reads them by its own processor; to others they are patches, of which they have the shape.
    """

    piece_rows = 64
    unheard = ("values", "symbols", "missing", "standardise", "rate", "waveform")

    def __init__(self, files: Sequence[Path], arrays: Mapping[str, np.ndarray]):
        check_pillow()
        self.files = list(files)
        super().__init__(arrays, x=((len(files), TOKENS, 3 * PATCH**2), np.dtype(np.uint8)))
        self.notes = [f"to backbones that read no pictures, they are {SIDE}x{SIDE} pixels in {TOKENS} patches"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the files of the rows ``lo`` to ``hi``, (rows,) of arrays."""
        return objects([stored_bytes(file) for file in self.files[lo:hi]])


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values, which may be arrays, as an array (rows,) of objects."""
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
