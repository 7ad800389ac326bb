"""Your own pictures as a source: their files are stored as they are, and decoded when a model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.decode import PATCH, SIDE, check_pillow, stored_bytes
from reservoir.tasks.own.own_source import OwnSource, as_asked, own_name
from reservoir.tasks.own.picture_files import Listing, list_pictures
from reservoir.tasks.source import Piece
from reservoir.tasks.task import Scaling, Task, Vectors

PIECE_ROWS = 64
"""Pictures that are held in memory at once."""

TOKENS = (SIDE // PATCH) ** 2


@dataclass(frozen=True)
class Pictures(OwnSource):
    """A task from the pictures of a folder, by the folders of their classes, or those that a table names.

    A row is the bytes of its file. A vision model reads the picture by its own processor; to others it is patches of
    `PATCH` pixels of a picture of `SIDE`.
    """

    @cached_property
    def task(self) -> Task:
        """The description."""
        return Task(
            name=own_name(self.origin),
            form=Vectors(3 * PATCH**2),
            max_tokens=TOKENS,
            classes=self._labels.classes,
            outputs=self._labels.y.shape[2],
            parameters=dict(self._listing.found) | self.asked.said,
            labels=self._labels.names,
            pictures=SIDE,
        )

    def files(self) -> list[Path]:
        """Return the pictures, and the table that names them."""
        table = [Path(self.origin)] if Path(self.origin).is_file() else []
        return [*table, *self._listing.paths]

    def pieces(self) -> list[Piece]:
        """Return stretches of rows."""
        rows = len(self._listing.paths)
        return [Piece("rows", lo, min(lo + PIECE_ROWS, rows)) for lo in range(0, rows, PIECE_ROWS)]

    def scaling(self) -> Scaling:
        """Return the map from bytes to about -2 to 2."""
        return Scaling.uniform(1 / 64, 3 * PATCH**2, offset=127.5)

    def notes(self) -> list[str]:
        """Return what was decided unasked."""
        seen = f"to backbones that read no pictures, they are {SIDE}x{SIDE} pixels in {TOKENS} patches"
        return [f"{self.task.name}: {line}" for line in (*self._listing.notes, *self._labels.notes, seen)]

    @cached_property
    def _listing(self) -> Listing:
        check_pillow()
        listing = list_pictures(Path(self.origin), self.asked)
        if listing.y is None:
            raise InputError(f"{self.origin}: the pictures have no labels; name their column with --label")
        return listing

    def _rows(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        paths = self._listing.paths[piece.lo : piece.hi]
        return _objects([stored_bytes(path) for path in paths]), np.full(len(paths), TOKENS, np.int32)

    def _column(self, name: str) -> np.ndarray | None:
        return getattr(self._listing, name)


def new_pictures(path: Path, task: Task) -> tuple[np.ndarray, list[str], np.ndarray | None]:
    """Return new pictures as paths, their names, and the labels that they have."""
    labels = [task.label(number) for number in range(task.classes)]
    found = list_pictures(path, as_asked(task.parameters), task.parameters, labels)
    return _objects(found.paths), found.ids, found.y


def _objects(values: list) -> np.ndarray:
    """Return values, which may be arrays, as an array (rows,) of objects."""
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
