"""The one exception of the cache, and the record of a fault found on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class CacheError(ValueError):
    """Something about the cache is wrong: a file, a specification, a value or the disk.

    The message is one line that says what is wrong, where, and what to do.
    """


@dataclass(frozen=True)
class Problem:
    """One fault found on disk: the file (or folder), what is wrong with it, and what to do about it."""

    path: Path
    what: str
    repair: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.repair}"

    @classmethod
    def of(cls, path: Path, error: CacheError, repair: str) -> Problem:
        """Make a problem of an error message of the form 'where: what; what to do'."""
        return cls(path, str(error).partition(": ")[2].partition(";")[0], repair)


def repair_command(key: str) -> str:
    """Return the end of a message about damage: the command that repairs the entry."""
    return f"run 'reservoir cache repair {key[:16]}', then the same extract again"
