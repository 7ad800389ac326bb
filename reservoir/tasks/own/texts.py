"""Texts as the letters that they are made of, encoded stretch by stretch: padding never stands beside all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reservoir.tasks.own.columns import Columns, check_padding
from reservoir.tasks.own.letters import check_texts, codes_of

PIECE_LETTERS = 2**23


class Letters(Columns):
    """Texts as ``x``, of which ``texts`` gives stretches, beside arrays that are known already."""

    letters = True
    unheard = ("rate", "waveform")

    def __init__(self, where: str, lengths: np.ndarray, largest: int, arrays: Mapping[str, np.ndarray]):
        kind, longest = np.min_scalar_type(largest), int(lengths.max())
        check_padding(where, lengths, kind.itemsize)
        super().__init__({"lengths": lengths, **arrays}, x=((len(lengths), longest), kind))
        self._where, self.piece_rows = where, max(1, PIECE_LETTERS // longest)

    def texts(self, lo: int, hi: int) -> Iterator[Sequence[str]]:
        """Yield the texts of the rows ``lo`` to ``hi``."""
        raise NotImplementedError

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the code points of the rows ``lo`` to ``hi``."""
        found, done = np.zeros((hi - lo, self.shapes["x"][1]), self.dtypes["x"]), 0
        for texts in self.texts(lo, hi):
            codes, _ = codes_of(self._where, texts)
            found[done : done + len(codes), : codes.shape[1]] = codes
            done += len(codes)
        return found


class Texts(Letters):
    """Texts in memory."""

    def __init__(self, where: str, texts: Sequence[str], arrays: Mapping[str, np.ndarray]):
        self._texts = [text.strip() for text in texts]
        lengths = check_texts(where, self._texts)
        super().__init__(where, lengths, max(ord(max(text)) for text in self._texts), arrays)

    def texts(self, lo: int, hi: int) -> Iterator[Sequence[str]]:
        """Yield the texts of the rows ``lo`` to ``hi``."""
        yield self._texts[lo:hi]
