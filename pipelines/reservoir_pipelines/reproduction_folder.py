"""The folder of a reproduction: a file per finished cell, one per failed cell, and the tables made of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reservoir_cache import make_folder, open_lock, refuse_links

from reservoir.errors import InputError
from reservoir_pipelines.files import read_checked, write_checked, writing

CELL = "cell:"
"""Stands before the name of a cell in a recipe, and before its key in what is kept."""

FORMAT = 1
"""Of what is kept; raised when any of it gets another name or meaning. What has another counts as not run."""


class Kept:
    """What a reproduction has finished; a file of it is whole, or it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def work(self) -> Path:
        """Where cells leave what has no place in the cache."""
        return self.path / "work"

    def make(self) -> None:
        """Make the folders."""
        with writing(self.path):
            for folder in (self.path / "cells", self.path / "tables", self.work):
                refuse_links(folder)
                make_folder(folder)

    def result(self, key: str) -> dict[str, Any] | None:
        """Return what a cell came to, if it is finished."""
        return self._read(self.path / "cells" / f"{key}.json")

    def results(self) -> list[dict[str, Any]]:
        """Return what every finished cell came to."""
        paths = sorted((self.path / "cells").glob("*.json"))
        return [found for path in paths if path.suffixes == [".json"] and (found := self._read(path))]

    def failure(self, key: str) -> str:
        """Return why a cell failed when it was last tried, or nothing."""
        found = self._read(self.path / "cells" / f"{key}.failed.json")
        return str(found["reason"]) if found else ""

    def failed_since(self, key: str, moment: float) -> bool:
        """Return whether a cell has failed after a moment, in seconds since the epoch."""
        try:
            return (self.path / "cells" / f"{key}.failed.json").stat().st_mtime >= moment
        except FileNotFoundError:
            return False

    def keep(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep what a cell came to."""
        self._write(self.path / "cells" / f"{key}.json", result)
        (self.path / "cells" / f"{key}.failed.json").unlink(missing_ok=True)

    def fail(self, key: str, cell: Mapping[str, Any]) -> None:
        """Keep a cell with the ``reason`` why it failed; it is tried again by the next run."""
        self._write(self.path / "cells" / f"{key}.failed.json", cell)

    def keep_table(self, name: str, table: Mapping[str, Any]) -> None:
        """Keep a table with its numbers."""
        self._write(self.path / "tables" / f"{name}.json", table)

    def tables(self) -> list[dict[str, Any]]:
        """Return the tables that are there, tables before figures."""
        found = sorted((self.path / "tables").glob("*.json"), key=lambda p: (p.stem[0] != "t", len(p.stem), p.stem))
        return [table for path in found if (table := self._read(path))]

    @contextmanager
    def lock(self, key: str, *, wait: bool) -> Iterator[bool]:
        """Hold a cell for the time of the context; yield False where another process has it and one does not wait."""
        with os.fdopen(open_lock(self.path / "cells" / f".{key}.lock"), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def _write(self, path: Path, values: Mapping[str, Any]) -> None:
        write_checked(path, {**values, "format": FORMAT})

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            found = read_checked(path)
            return found if found.get("format") == FORMAT else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); remove it, and run the same command again") from error


def is_reproduction(path: Path) -> bool:
    """Return whether a folder is that of a reproduction."""
    return (path / "tables").is_dir() and (path / "cells").is_dir()
