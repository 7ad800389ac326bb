"""The errors of the cache, and the description of damage on disk."""

from dataclasses import dataclass
from pathlib import Path


class CacheError(ValueError):
    """An error in one line that says where, what, and what to do."""


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


def repair_command(key: str) -> str:
    """Return the end of a message about damage: the command that repairs the entry."""
    return f"run 'reservoir cache repair {key[:16]}', then the same extract again"
