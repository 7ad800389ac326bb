"""The errors of the cache, and the description of damage on disk."""

from dataclasses import dataclass
from pathlib import Path


class CacheError(ValueError):
    """An error in one line that says where, what, and what to do."""


class UnstorableError(CacheError):
    """A value that a data type cannot hold.

    Parameters
    ----------
    row : int
        Number of the row in its split, from 0, by which the message names it.
    problem : str
        The rest of the message: the column, what is wrong there, and what to do.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(row, problem)
        self.row = row
        self.problem = problem

    def __str__(self) -> str:
        return f"row {self.row}, {self.problem}"


@dataclass(frozen=True)
class Problem:
    """Damage on disk: the file or folder, what is wrong with it, and how to repair it."""

    path: Path  # of the damaged file or folder
    what: str  # what is wrong with it
    repair: str  # what to do

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.repair}"

    @classmethod
    def of(cls, path: Path, error: CacheError, repair: str) -> "Problem":
        """Return the problem at ``path`` that an error of the form 'where: what; what to do' describes."""
        what = str(error).partition(": ")[2].partition(";")[0]
        return cls(path, what, repair)
