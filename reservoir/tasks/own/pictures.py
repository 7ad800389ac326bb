"""Your own pictures: their files are stored as they are, and decoded when a model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.arrays import Arrays
from reservoir.tasks.own.bad_rows import BadRows, reason_of
from reservoir.tasks.own.decode import PATCH, SIDE, check_pillow, stored_bytes

TOKENS = (SIDE // PATCH) ** 2


class Pictures(Arrays):
    """Pictures as ``x``, the bytes of each file, beside arrays that are known already.

    A vision model reads them by its own processor; other models read patches, and ``x`` has the shape of those.
    """

    piece_rows = 64
    unused_options = ("values", "symbols", "missing", "standardise", "rate", "waveform")

    def __init__(self, files: Sequence[Path], arrays: Mapping[str, np.ndarray], bad: BadRows):
        check_pillow()
        self._all_files, self._bad = list(files), bad
        if bad.skip:
            self._check()
        kept = bad.kept()
        super().__init__(
            {name: array[kept] for name, array in arrays.items()},
            x=((int(kept.sum()), TOKENS, 3 * PATCH**2), np.dtype(np.uint8)),
        )
        self.files = [file for file, good in zip(files, kept, strict=True) if good]
        self.notes = [f"to backbones that read no pictures, they are {SIDE}x{SIDE} pixels in {TOKENS} patches"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the files of the rows ``lo`` to ``hi``, (rows,) of arrays."""
        try:
            return objects([stored_bytes(file) for file in self.files[lo:hi]])
        except InputError:
            self._check()  # so that all files that cannot be read are counted, not the first alone
            self._bad.kept()
            raise

    def _check(self) -> None:
        for row, file in enumerate(self._all_files):
            try:
                stored_bytes(file)
            except InputError as error:
                self._bad.add(row, reason_of(error, file))


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values, which may be arrays, as an array (rows,) of objects."""
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
