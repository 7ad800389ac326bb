"""Your own pictures as a source: their files are stored as they are, and decoded when a model reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.data import own_name
from reservoir.tasks.own.decode import PATCH, SIDE, check_pillow, stored_bytes
from reservoir.tasks.own.labels import Labels, encode_labels, split_rows
from reservoir.tasks.own.picture_files import Listing, list_pictures
from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import Scaling, Split, Task, Vectors

PIECE_ROWS = 64
"""Pictures that are held in memory at once."""

TOKENS = (SIDE // PATCH) ** 2


@dataclass(frozen=True)
class Pictures(Source):
    """A task from the pictures of a folder, by the folders of their classes, or those that a table names.

    A row is the bytes of its file. A vision model reads the picture by its own processor; to others it is patches of
    `PATCH` pixels of a picture of `SIDE`.
    """

    origin: str
    asked: OwnDataOptions = field(default_factory=OwnDataOptions)

    def __reduce__(self) -> tuple[type, tuple]:
        """Leave the listing behind when another process is to read the files."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

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

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a stretch of rows, divided into its splits."""
        rows = slice(piece.lo, piece.hi)
        x = _objects([stored_bytes(path) for path in self._listing.paths[rows]])
        y, split = self._labels.y[rows], self._split[rows]
        groups = None if self._listing.groups is None else np.unique(self._listing.groups, return_inverse=True)[1][rows]
        return {
            name: Split(
                x=x[split == name],
                y=y[split == name],
                lengths=np.full(int((split == name).sum()), TOKENS, np.int32),
                groups=None if groups is None else groups[split == name],
            )
            for name in sorted(set(split.tolist()))
        }

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

    @cached_property
    def _labels(self) -> Labels:
        y, asked = np.asarray(self._listing.y), self.asked
        return encode_labels(self.origin, y, regression=asked.regression, classes=asked.classes)

    @cached_property
    def _split(self) -> np.ndarray:
        return split_rows(self.origin, self._labels, self._listing.split, self._listing.groups)


def new_pictures(path: Path, task: Task) -> tuple[np.ndarray, list[str], np.ndarray | None]:
    """Return new pictures as paths, their names, and the labels that they have."""
    asked = {f.name: task.parameters[f.name] for f in fields(OwnDataOptions) if f.name in task.parameters}
    found = list_pictures(path, OwnDataOptions(**asked), task.parameters, [task.label(n) for n in range(task.classes)])
    return _objects(found.paths), found.ids, found.y


def _objects(values: list) -> np.ndarray:
    """Return values, which may be arrays, as an array (rows,) of objects."""
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
