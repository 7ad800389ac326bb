"""What a backbone is pretrained on: an endless source of windows of tokens, and held-out parts to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

HELD_OUT = ("valid", "test")


@dataclass(frozen=True)
class HeldOut:
    """Windows of a held-out part, int (count, tokens), each of whose tokens is predicted at most once.

    ``first`` (count,) is the first token of each that counts, at least 1: the tokens before give it something to be
    predicted from. ``bytes_per_token`` is the mean length of the text of a token; 1 where a token is no text.
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


class Corpus(Protocol):
    """A source of sequences of tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, numbered from 0."""
        ...

    @property
    def unit(self) -> str:
        """What the loss is given per: ``byte`` or ``token``."""
        ...

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return the training windows of a step, int64 (count, tokens); the same for the same arguments."""
        ...

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return windows of the valid or the test part."""
        ...

    def entropy(self, tokens: int) -> float | None:
        """Return the least mean loss possible on windows of so many tokens, in bits; None where nobody knows it."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what tells this corpus from others, as JSON values."""
        ...
