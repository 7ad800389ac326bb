"""Held-out parts of a corpus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class HeldOut:
    """Windows of a held-out part, int (count, tokens), each of whose tokens is predicted at most once.

    ``first`` (count,) is the first token of each window that counts, at least 1; the tokens before it are its context.
    ``bytes_per_token`` is the mean length of the text of a token; 1 if the corpus is not text.
    """

    windows: np.ndarray
    first: np.ndarray
    bytes_per_token: float = 1.0

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def counted(self) -> int:
        """Number of tokens that count."""
        return int((self.windows.shape[1] - self.first).sum())

    def head(self, count: int) -> HeldOut:
        """Return the first windows, at least one."""
        count = max(1, count)
        return HeldOut(self.windows[:count], self.first[:count], self.bytes_per_token)
