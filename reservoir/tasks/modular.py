"""Modular addition: a table of sums from which a readout of frozen features cannot generalise."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.rows import row_hash
from reservoir.tasks.source import Piece, Source, classes_of, full_lengths
from reservoir.tasks.task import Split, Task, Tokens

SHARES = (0.9, 0.95)  # upper bounds of a pair's hash, as shares of all hashes, for train and for valid
MAX_MODULUS = 1000  # largest modulus; a prepared task has modulus² rows


@dataclass(frozen=True, kw_only=True)
class ModularAddition(Source):
    """Add two numbers modulo ``modulus``, as in Zhong and Andreas 2024.

    A row is three symbols: two numbers from 0 to ``modulus - 1`` and an equals sign; the label is the sum. Each pair of
    numbers is a row. A hash of the unordered pair chooses the split (90/5/5%), so no pair of the test rows is in the
    training rows, in either order. Chance accuracy is ``1 / modulus``.
    """

    data: Path | None = None  # not used
    modulus: int = 199

    def __post_init__(self) -> None:
        if not 2 <= self.modulus <= MAX_MODULUS:
            raise InputError(f"modular-addition: modulus is {self.modulus}; give a number from 2 to {MAX_MODULUS}")

    @property
    def task(self) -> Task:
        """The description of the task."""
        return Task(
            name="modular-addition",
            form=Tokens(self.modulus + 1),
            max_tokens=3,
            classes=self.modulus,
            parameters={"modulus": self.modulus},
        )

    def pieces(self) -> list[Piece]:
        """Return one piece with all pairs."""
        return [Piece("all", 0, self.modulus**2)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return all pairs by split."""
        pairs = np.stack(np.divmod(np.arange(piece.lo, piece.hi), self.modulus), axis=1)
        low, high = pairs.min(axis=1), pairs.max(axis=1)
        share = row_hash(low * self.modulus + high) / 2.0**64
        x = np.full((len(pairs), 3), self.modulus, np.int16)
        x[:, :2] = pairs
        rows = Split(x=x, y=classes_of(pairs.sum(axis=1) % self.modulus), lengths=full_lengths(x))
        part = np.digitize(share, SHARES)
        return {name: rows.take(part == number) for number, name in enumerate(("train", "valid", "test"))}

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return symbols (rows, 3) as sequences."""
        x, _ = super().encode(x)
        return x, full_lengths(x)
