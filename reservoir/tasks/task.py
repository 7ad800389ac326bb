"""What a task is: the form of its sequences, the shape of its labels, and its splits as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir.errors import InputError

SPLITS = ("train", "valid", "test")
MISSING = -1
"""The class of missing labels, behind the end of a row with a label for every token; missing targets are NaN."""


@dataclass(frozen=True)
class Vectors:
    """Sequences of real vectors of ``dim`` values: arrays (rows, tokens, dim)."""

    dim: int


@dataclass(frozen=True)
class Tokens:
    """Sequences of symbols: integers (rows, tokens) from 0 to ``vocabulary`` - 1, padding included if there is any."""

    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """The description of a task, without its data.

    Parameters
    ----------
    name : str
        The name typed on the command line.
    form : Vectors or Tokens
        What a token is.
    max_tokens : int
        The longest sequence, in tokens.
    classes : int
        Classes per output; 0 for regression.
    readout_tokens : int, default 1
        How many of the last real tokens are read.
    outputs : int, default 1
        Outputs per readout token, each with ``classes`` classes (or one real value).
    parameters : mapping, default {}
        Everything that chooses the rows (seeds, sizes, protocol); part of the cache key.
    labels : tuple of str or int, default ()
        Names of the classes, in order; empty if the class numbers are the names.
    alphabet : str, default ""
        The letter of each symbol, for texts of your own; these are stored as code points.
    pictures : int, default 0
        Side of your own pictures in pixels, as models of vectors read them; pictures are stored as files.
    floor : float, optional
        Accuracy of copying the visible input, if that is more than a constant answer gets.
    """

    name: str
    form: Vectors | Tokens
    max_tokens: int
    classes: int
    readout_tokens: int = 1
    outputs: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str | int, ...] = ()
    alphabet: str = ""
    pictures: int = 0
    floor: float | None = None

    @property
    def each(self) -> str:
        """``token`` or ``word`` if each has a label of its own, else ""."""
        return self.parameters.get("each", "")

    def label(self, index: int) -> str | int:
        """Return the name of a class, or its number if it has no name."""
        return self.labels[index] if self.labels else int(index)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain JSON values; `from_dict` is its inverse."""
        form = {"vectors": self.form.dim} if isinstance(self.form, Vectors) else {"tokens": self.form.vocabulary}
        values = {**vars(self), "form": form, "parameters": dict(self.parameters), "labels": list(self.labels)}
        absent = {"alphabet": "", "pictures": 0, "floor": None}
        return {name: value for name, value in values.items() if name not in absent or value != absent[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Build a task from what `to_dict` returned."""
        form = values["form"]
        form = Vectors(form["vectors"]) if "vectors" in form else Tokens(form["tokens"])
        return cls(**{**values, "form": form, "labels": tuple(values["labels"])})


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rows of one split, in their fixed order.

    Parameters
    ----------
    x : ndarray, (rows, tokens, dim) or (rows, tokens)
        The sequences as stored: unsigned bytes for pixels, float32 for sensors, integers for symbols; right-padded
        with zeros. Your own pictures are (rows,) of arrays with the bytes of their files.
    y : ndarray, (rows, readout_tokens, outputs)
        Class numbers (int64) or real targets (float32).
    lengths : ndarray of int32, (rows,)
        Real tokens of each sequence, from 1 to ``x.shape[1]``.
    dropped : int, default 0
        Sequences of the source that are left out because they are too long.
    cut : int, default 0
        Sequences that are shortened.
    groups : ndarray of int, (rows,), optional
        The number of the group (patient, machine) of each row, if your own data has groups.
    """

    x: np.ndarray
    y: np.ndarray
    lengths: np.ndarray
    dropped: int = 0
    cut: int = 0
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: slice | np.ndarray) -> Split:
        """Return some of the rows."""
        groups = None if self.groups is None else self.groups[rows]
        return Split(x=self.x[rows], y=self.y[rows], lengths=self.lengths[rows], groups=groups)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Per-channel affine map from stored values to what the model sees: ``(x - offset) * scale``.

    Offset and scale are float32 (dim,): for pixels the publisher's constants, for your own data the mean and the
    inverse standard deviation of the training split.
    """

    offset: np.ndarray
    scale: np.ndarray

    @classmethod
    def uniform(cls, scale: float, dim: int, offset: float = 0.0) -> Scaling:
        """Return the scaling that is the same for each of ``dim`` values."""
        return cls(offset=np.full(dim, offset, np.float32), scale=np.full(dim, scale, np.float32))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return float32 values of the shape of ``x`` (..., dim), with 0 for NaN."""
        found = (x.astype(np.float32) - self.offset) * self.scale
        return np.where(np.isnan(found), np.float32(0), found) if x.dtype.kind == "f" else found


def check_split(task: Task, name: str, split: Split) -> None:
    """Refuse sequences that are too short for the readout; assert the shapes and labels that sources promise."""
    per_row = (task.max_tokens, task.form.dim) if isinstance(task.form, Vectors) else (task.max_tokens,)
    assert task.pictures or (split.x.shape[1:] == per_row and split.x.dtype.kind in ("ui", "uif")[len(per_row) - 1])
    assert split.y.shape == (len(split.x), task.readout_tokens, task.outputs) and len(split.lengths) == len(split.x)
    assert not task.classes or (split.y.min() >= -bool(task.each) and split.y.max() < task.classes)
    wrong = (split.lengths < (1 if task.each else task.readout_tokens)) | (split.lengths > task.max_tokens)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"task {task.name!r}, split {name!r}, row {row}: length {int(split.lengths[row])} is not between "
            f"{task.readout_tokens} and {split.x.shape[1]} tokens"
        )
