"""The rows of a file that cannot be read: each has a place and a reason, and is refused or left out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.rows import Skipped

MAX_NAMED = 5
"""Number of bad rows that a message names."""

EMPTY_CELL = "an empty cell in column"
"""Begins the reason why a row with a missing value cannot be read."""

OR_FILL = ", or pass --missing interpolate or mask for missing values"
"""Ends the remedy of an empty cell."""


class BadRows:
    """The rows of a source that cannot be read.

    Parameters
    ----------
    where : str
        The path of the source, for messages.
    places : sequence of str
        The place of each row, such as ``"line 12"``.
    skip : bool, optional
        Whether bad rows are left out. If not, `readable` refuses them, in a message that names
        ``--skip-bad-rows`` if ``skip`` is False and not None.
    """

    def __init__(self, where: str, places: Sequence[str], *, skip: bool | None = None):
        self.where = where
        self.places = places
        self.skip = skip
        self.reasons: dict[int, str] = {}
        self.remedies: dict[int, str] = {}  # other remedies than "fix the file", by row

    def add(self, row: int | np.integer, reason: str, remedy: str = "") -> None:
        """Note why a row cannot be read; the first reason of a row counts."""
        if int(row) in self.reasons:
            return
        self.reasons[int(row)] = reason
        if remedy:
            self.remedies[int(row)] = remedy

    def read_files(self, files: Sequence[Path], read: Callable[[Path], Any]) -> list[Any]:
        """Return ``read`` of the file of each row that is not bad; rows that it refuses become bad."""
        contents = []
        for row, path in enumerate(files):
            if row in self.reasons:
                continue
            try:
                contents.append(read(path))
            except InputError as error:
                message = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
                reason, _, remedy = message.partition("; ")
                self.add(row, reason, remedy)
        return contents

    def readable(self) -> np.ndarray:
        """Return which rows can be read, (rows,) of bool; refuse bad rows if they are not skipped or all are bad."""
        all_bad = len(self.reasons) == len(self.places)
        if self.reasons and (all_bad or not self.skip):
            self._refuse(all_bad=all_bad)
        return ~np.isin(np.arange(len(self.places)), list(self.reasons))

    def _refuse(self, *, all_bad: bool) -> None:
        # If all rows have one remedy, the message gives that; else "fix the file" is true of all.
        remedies = {self.remedies.get(row, "fix the file").removesuffix(OR_FILL) for row in self.reasons}
        remedy = remedies.pop() if len(remedies) == 1 else "fix the file"
        if any(EMPTY_CELL in reason for reason in self.reasons.values()):
            remedy += OR_FILL
        # Skipping all rows of several would not help; a single row may be one of many files.
        skipping_helps = not all_bad or len(self.places) == 1
        if self.skip is False and skipping_helps:
            remedy += ", or pass --skip-bad-rows"
        if len(self.reasons) == 1:
            ((row, reason),) = self.reasons.items()
            raise InputError(f"{self.where}, {self.places[row]}: {reason}", remedy)
        count = "no row can" if all_bad else f"{len(self.reasons):,} rows cannot"
        raise InputError(f"{self.where}: {count} be read: {self._first_reasons()}", remedy)

    def skipped(self, ids: Sequence[Any] | np.ndarray) -> Skipped:
        """Return why each bad row cannot be read, with its id if there are ``ids``."""
        return {
            row: (str(ids[row]) if len(ids) else None, reason)
            for row, reason in self._reasons_with_places().items()
        }

    def notes(self) -> list[str]:
        """Return a line that says how many rows were skipped, if any were."""
        if not self.reasons:
            return []
        count = f"skipped {len(self.reasons):,} of {len(self.places):,} rows"
        return [f"{count}: {self._first_reasons()}"]

    def take(self, rows: Sequence[int]) -> "BadRows":
        """Return the bad rows among some rows, in the given order."""
        part = BadRows(self.where, [self.places[row] for row in rows], skip=self.skip)
        for place, row in enumerate(rows):
            if row in self.reasons:
                part.add(place, self.reasons[row], self.remedies.get(row, ""))
        return part

    def _reasons_with_places(self) -> dict[int, str]:
        return {row: f"{self.places[row]}: {reason}" for row, reason in sorted(self.reasons.items())}

    def _first_reasons(self) -> str:
        lines = list(self._reasons_with_places().values())
        more = [f"and {len(lines) - MAX_NAMED:,} more"] if len(lines) > MAX_NAMED else []
        return "; ".join(lines[:MAX_NAMED] + more)
