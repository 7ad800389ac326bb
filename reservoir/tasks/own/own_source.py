"""What sources of your own data share: rows with labels, split once, whatever the rows hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.options import OwnDataOptions
from reservoir.tasks.own.labels import Labels, encode_labels, split_rows
from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import Split

FUNCTION = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class OwnSource(Source):
    """Rows of your own, by the arrays ``y`` and, where there are such, ``split`` and ``groups``."""

    origin: str  # a path, or module:function
    asked: OwnDataOptions = field(default_factory=OwnDataOptions)

    def __reduce__(self) -> tuple[type, tuple]:
        """Leave what was read behind when another process is to read the files."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a stretch of rows, divided into its splits."""
        x, lengths = self._rows(piece)
        rows = slice(piece.lo, piece.hi)
        y, split, groups = self._labels.y[rows], self._split[rows], self._group_numbers
        return {
            name: Split(
                x=x[split == name],
                y=y[split == name],
                lengths=lengths[split == name],
                groups=None if groups is None else groups[rows][split == name],
            )
            for name in sorted(set(split.tolist()))
        }

    def _rows(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Return a stretch of rows as stored, and their lengths."""
        raise NotImplementedError

    def _column(self, name: str) -> np.ndarray | None:
        """Return what is given of each row; None where nothing is."""
        raise NotImplementedError

    @property
    def _units(self) -> np.ndarray | None:
        """How many labels each row has, where every token or word has one."""
        return None

    @cached_property
    def _labels(self) -> Labels:
        y, asked = np.asarray(self._column("y")), self.asked
        return encode_labels(self.origin, y, self._units, regression=asked.regression, classes=asked.classes)

    @cached_property
    def _split(self) -> np.ndarray:
        return split_rows(self.origin, self._labels, self._column("split"), self._column("groups"))

    @cached_property
    def _group_numbers(self) -> np.ndarray | None:
        groups = self._column("groups")
        return None if groups is None else np.unique(groups, return_inverse=True)[1]


def own_name(origin: str) -> str:
    """Return the name of a task of your own: the file's, with "-" for what no folder should hold, or the function's."""
    if FUNCTION.fullmatch(origin):
        return origin.replace(":", ".")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(origin).name).lstrip("._-") or "data"


def as_asked(parameters: Mapping[str, Any]) -> OwnDataOptions:
    """Return what a task was asked for, of its parameters."""
    return OwnDataOptions(**{f.name: parameters[f.name] for f in fields(OwnDataOptions) if f.name in parameters})
