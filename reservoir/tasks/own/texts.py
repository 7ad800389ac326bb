"""Texts as the letters that they are made of, encoded stretch by stretch so that not all are padded at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reservoir.tasks.own.arrays import Arrays, check_padding
from reservoir.tasks.own.letters import check_texts, codes_of

PIECE_LETTERS = 2**23


class Texts(Arrays):
    """Texts (rows,) as ``x``, beside arrays that are known already."""

    letters = True
    unused_options = ("rate", "waveform")

    def __init__(self, where: str, texts: Sequence[str], arrays: Mapping[str, np.ndarray]):
        self.texts, self._where = [text.strip() for text in texts], where
        lengths = check_texts(where, self.texts)
        kind, longest = np.min_scalar_type(max(ord(max(text)) for text in self.texts)), int(lengths.max())
        check_padding(where, lengths, kind.itemsize)
        super().__init__({"lengths": lengths, **arrays}, x=((len(lengths), longest), kind))
        self.piece_rows = max(1, PIECE_LETTERS // longest)

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the code points of the rows ``lo`` to ``hi``, zero behind their ends."""
        codes, _ = codes_of(self._where, self.texts[lo:hi])
        x = np.zeros((hi - lo, self.shapes["x"][1]), self.dtypes["x"])
        x[:, : codes.shape[1]] = codes
        return x
