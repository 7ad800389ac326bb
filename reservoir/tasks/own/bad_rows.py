"""Rows that cannot be read: all of them are counted, and the first five are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError

MOST_NAMED = 5


def reason_of(error: InputError, path: Path) -> str:
    """Return the message of an error about a file without its path, which the place of the row names."""
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")


class BadRows:
    """The rows of one source that cannot be read, each with its place and the first reason found.

    Parameters
    ----------
    where : str
        Name of the source for messages.
    places : sequence of str
        The place of each row in the source, such as ``"line 12"``.
    skip : bool or None
        Whether to go on without bad rows; otherwise `kept` refuses them. With None, errors do not name the flag.
    """

    def __init__(self, where: str, places: Sequence[str], *, skip: bool | None):
        self.where, self.places, self.skip = where, places, skip
        self._reasons: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, row: int | np.integer, reason: str, remedy: str = "fix the row") -> None:
        """Note why a row cannot be read, and what to do about it."""
        self._reasons.setdefault(int(row), (reason, remedy))

    def kept(self) -> np.ndarray:
        """Return which rows can be read, (rows,) of bool.

        Raises
        ------
        InputError
            If there are bad rows and they are not to be skipped, or if no row is left.
        """
        if self._reasons and (not self.skip or len(self) == len(self.places)):
            raise InputError(self._message())
        kept = np.ones(len(self.places), bool)
        kept[list(self._reasons)] = False
        return kept

    def notes(self) -> list[str]:
        """Return a line that says how many rows were skipped, if any were."""
        return [f"skipped {len(self):,} of {len(self.places):,} rows: {self._named()}"] if self._reasons else []

    def _named(self) -> str:
        first = sorted(self._reasons)[:MOST_NAMED]
        named = "; ".join(f"{self.places[row]}: {self._reasons[row][0]}" for row in first)
        return named + (f"; and {len(self) - len(first):,} more" if len(self) > len(first) else "")

    def _message(self) -> str:
        or_skip = "" if self.skip is None else ", or pass --skip-bad-rows"
        if len(self) == len(self.places) > 1:
            return f"{self.where}: no row can be read: {self._named()}"
        if len(self) > 1:
            return f"{self.where}: {len(self):,} rows cannot be read: {self._named()}; fix these rows{or_skip}"
        ((row, (reason, remedy)),) = self._reasons.items()
        return f"{self.where}, {self.places[row]}: {reason}; {remedy}{or_skip}"
