"""Texts as the letters that they are made of, encoded stretch by stretch: padding never stands beside all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reservoir.tasks.own.columns import check_padding
from reservoir.tasks.own.letters import check_texts, codes_of

PIECE_LETTERS = 2**23


class Texts:
    """Texts as ``x``, beside arrays that are known already."""

    def __init__(
        self,
        where: str,
        texts: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        notes: Sequence[str] = (),
        found: Mapping[str, str] | None = None,
    ):
        self._where, self._texts = where, [text.strip() for text in texts]
        lengths = check_texts(where, self._texts)
        kind = np.min_scalar_type(max(ord(max(text)) for text in self._texts))
        check_padding(where, lengths, kind.itemsize)
        self._arrays = {"lengths": lengths, **arrays}
        self.letters, self.notes, self.found = True, list(notes), dict(found or {})
        self.piece_rows = max(1, PIECE_LETTERS // int(lengths.max()))
        self.shapes = {"x": (len(lengths), int(lengths.max()))} | {n: a.shape for n, a in self._arrays.items()}
        self.dtypes = {"x": kind} | {name: array.dtype for name, array in self._arrays.items()}

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        if name != "x":
            return self._arrays[name][lo:hi]
        codes, _ = codes_of(self._where, self._texts[lo:hi])
        found = np.zeros((len(codes), self.shapes["x"][1]), self.dtypes["x"])
        found[:, : codes.shape[1]] = codes
        return found
