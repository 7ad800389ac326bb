"""Rows without end for tasks that are generated."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import Split

FRESH_ROWS = 1024
"""Rows generated at a time."""


class FreshRows:
    """The endless training rows of a generated task, none of them of a prepared split: row n is always the same."""

    def __init__(self, source: Source, seed: int) -> None:
        # The generator of a piece is keyed by where it begins: these begin far behind every piece that is prepared.
        self._first = (seed + 1) << 48
        self._source = source
        self._piece = lru_cache(maxsize=8)(self._generate)

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows of these numbers, in their order."""
        blocks, which = np.unique(numbers // FRESH_ROWS, return_inverse=True)
        parts = [self._piece(int(block)) for block in blocks]
        rows = which * FRESH_ROWS + numbers % FRESH_ROWS
        x, y, lengths = (
            np.concatenate([getattr(part, name) for part in parts])[rows] for name in ("x", "y", "lengths")
        )
        return Split(x=x, y=y, lengths=lengths)

    def _generate(self, block: int) -> Split:
        low = self._first + block * FRESH_ROWS
        return self._source.read(Piece("train", low, low + FRESH_ROWS))["train"]
