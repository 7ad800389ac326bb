"""Your own data: a file of sequences with labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.columns import Columns, open_columns
from reservoir.tasks.labels import Labels, encode_labels, split_rows
from reservoir.tasks.source import Piece
from reservoir.tasks.task import Scaling, Split, Task, Tokens, Vectors

MOST_SYMBOLS = 1_000_000
"""Larger integers are values, not symbols: no embedding has a row for each."""


@dataclass(frozen=True)
class Arrays:
    """A task from a file with the arrays ``x``, ``y`` and optionally ``lengths`` and ``split``.

    - ``x`` (rows, tokens, dim): vectors; (rows, tokens) of floats: vectors of one value; (rows, tokens) of integers:
      symbols.
    - ``y`` (rows,) or (rows, outputs), or (rows, readout tokens, outputs) for one label per each of the last tokens:
      floats are targets, integers, strings and booleans are classes.
    - ``lengths`` (rows,): the real tokens of each row; what follows them is ignored.
    - ``split`` (rows,): ``train``, ``valid`` or ``test``; see `reservoir.tasks.labels.split_rows` for what happens
      without it.

    Parameters
    ----------
    path : Path
        The file; its name is the name of the task.
    standardise : bool, default True
        Subtract from each channel its mean over the real tokens of the training split, and divide by its standard
        deviation.
    """

    path: Path
    standardise: bool = True

    def __reduce__(self) -> tuple[type, tuple]:
        """Leave the arrays behind when another process is to read the file."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def task(self) -> Task:
        """The description, with the shapes found in the file."""
        symbols = len(self._shape) == 2 and self._columns.dtypes["x"].kind in "ui"
        dim = 1 if len(self._shape) == 2 else self._shape[2]
        return Task(
            name=self.path.name,
            form=Tokens(self._largest_symbol() + 1) if symbols else Vectors(dim),
            max_tokens=self._shape[1],
            classes=self._labels.classes,
            readout_tokens=self._labels.y.shape[1],
            outputs=self._labels.y.shape[2],
            parameters={} if symbols or self.standardise else {"standardise": False},
            labels=self._labels.names,
        )

    def files(self) -> list[Path]:
        """Return the one file."""
        return [self._columns.path]

    def pieces(self) -> list[Piece]:
        """Return stretches of rows."""
        rows, step = self._shape[0], self._columns.piece_rows
        return [Piece("rows", lo, min(lo + step, rows)) for lo in range(0, rows, step)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a stretch of rows, divided into its splits."""
        lengths = self._lengths[piece.lo : piece.hi]
        raw = self._columns.read("x", piece.lo, piece.hi)
        x = encode_array(self.task, raw, lengths, first_row=piece.lo)
        y, split = self._labels.y[piece.lo : piece.hi], self._split[piece.lo : piece.hi]
        names = sorted(set(split.tolist()))
        return {n: Split(x=x[split == n], y=y[split == n], lengths=lengths[split == n]) for n in names}

    def scaling(self) -> Scaling | None:
        """Return the standardisation by the training split, or None for symbols."""
        if isinstance(self.task.form, Tokens):
            return None
        dim = self.task.form.dim
        if not self.standardise:
            return Scaling(offset=np.zeros(dim, np.float32), scale=np.ones(dim, np.float32))
        return standardisation(self._training_tokens())

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return new inputs in the form of this task, and their lengths."""
        if lengths is None:
            lengths = np.full(len(x), x.shape[1] if x.ndim > 1 else 0, np.int32)
        return encode_array(self.task, x, lengths), lengths

    # ---- what the file holds

    @cached_property
    def _columns(self) -> Columns:
        columns = open_columns(self.path)
        missing = [name for name in ("x", "y") if name not in columns.shapes]
        if missing:
            raise InputError(f"{self.path}: no array {missing[0]!r} among {sorted(columns.shapes)}; give x and y")
        rows = columns.shapes["x"][:1]
        for name in ("y", "lengths", "split"):
            if name in columns.shapes and columns.shapes[name][:1] != rows:
                raise InputError(f"{self.path}: x has {rows[0]} rows, {name} has the shape {columns.shapes[name]}")
        return columns

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        shape, dtype = self._columns.shapes["x"], self._columns.dtypes["x"]
        if len(shape) not in {2, 3} or 0 in shape:
            raise InputError(f"{self.path}: x has the shape {shape}; give (rows, tokens, dim) or (rows, tokens)")
        if dtype.kind not in "uif":
            raise InputError(f"{self.path}: x holds {dtype} values; give floats, or integers for symbols")
        return shape

    @cached_property
    def _labels(self) -> Labels:
        return encode_labels(str(self.path), self._column("y"))

    @cached_property
    def _split(self) -> np.ndarray:
        given = self._column("split") if "split" in self._columns.shapes else None
        return split_rows(str(self.path), self._labels, given)

    @cached_property
    def _lengths(self) -> np.ndarray:
        rows, tokens = self._shape[:2]
        if "lengths" not in self._columns.shapes:
            return np.full(rows, tokens, np.int32)
        lengths = self._column("lengths")
        if lengths.dtype.kind not in "ui" or lengths.ndim != 1:
            raise InputError(
                f"{self.path}: lengths hold {lengths.dtype} {lengths.shape}; give integers of shape (rows,)"
            )
        wrong = (lengths < 1) | (lengths > tokens)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(f"{self.path}: length {lengths[row]} in row {row} is not between 1 and {tokens}")
        return lengths.astype(np.int32)

    def _column(self, name: str) -> np.ndarray:
        return self._columns.read(name, 0, self._shape[0])

    def _largest_symbol(self) -> int:
        largest = 0
        for piece in self.pieces():
            x = self._columns.read("x", piece.lo, piece.hi)
            real = np.arange(x.shape[1]) < self._lengths[piece.lo : piece.hi, None]
            largest = max(largest, int(x.max(initial=0, where=real)))
        if largest >= MOST_SYMBOLS:
            raise InputError(f"{self.path}: x holds the symbol {largest}; if these are values, give them as floats")
        return largest

    def _training_tokens(self) -> Iterator[np.ndarray]:
        for piece in self.pieces():
            train = self.read(piece).get("train")
            if train is not None:
                yield train.x[np.arange(train.x.shape[1]) < train.lengths[:, None]]


def encode_array(task: Task, x: np.ndarray, lengths: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Return arrays of your own in the form that their task stores, with zeros after each row's real tokens.

    Parameters
    ----------
    task : Task
        The task of the data.
    x : ndarray, (rows, tokens, dim) or (rows, tokens)
        Unsigned bytes stay as they are, other numbers become float32; symbols become the smallest sufficient integers.
    lengths : ndarray of int, (rows,)
        Real tokens of each row.
    first_row : int, default 0
        Row number of ``x[0]``, for messages.

    Raises
    ------
    InputError
        Naming the row and the token of a value that is not finite, or of an unknown symbol.
    """
    symbols = isinstance(task.form, Tokens)
    if not symbols and x.ndim == 2:
        x = x[:, :, None]
    want = "integers (rows, tokens)" if isinstance(task.form, Tokens) else f"numbers (rows, tokens, {task.form.dim})"
    shape_fits = x.ndim == 2 if isinstance(task.form, Tokens) else x.ndim == 3 and x.shape[2] == task.form.dim
    if not shape_fits or x.dtype.kind not in ("ui" if symbols else "uif"):
        raise InputError(f"task {task.name!r}: inputs of shape {x.shape} and type {x.dtype}; give {want}")
    if x.shape[1] > task.max_tokens:
        raise InputError(f"task {task.name!r}: {x.shape[1]} tokens; the task has at most {task.max_tokens}")
    real = np.arange(x.shape[1]) < lengths[:, None]
    if isinstance(task.form, Tokens):
        wrong = real & ((x < 0) | (x >= task.form.vocabulary))
        stored = np.min_scalar_type(task.form.vocabulary - 1)
        problem = f"is not a symbol from 0 to {task.form.vocabulary - 1}"
    else:
        stored = np.dtype(np.uint8 if x.dtype == np.uint8 else np.float32)
        with np.errstate(over="ignore"):
            wrong = real & ~np.isfinite(x.astype(stored)).all(axis=2)
        problem = "is not finite as float32; repair or remove the row, or end it there with lengths"
    if wrong.any():
        row, token = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"task {task.name!r}: x in row {first_row + row}, token {token} ({x[row, token]}) {problem}")
    return np.where(real if symbols else real[:, :, None], x, 0).astype(stored)


def standardisation(stretches: Iterator[np.ndarray]) -> Scaling:
    """Return the per-channel standardisation of tokens that come in stretches.

    Sums are taken around the first stretch's mean, in float64, so that a large constant does not eat the spread.

    Parameters
    ----------
    stretches : iterator of ndarray, (tokens, dim)
        All training tokens.

    Returns
    -------
    Scaling
        Mean and inverse standard deviation; 1 for a channel that does not vary.
    """
    first = next(stretches)
    shift = first.mean(axis=0, dtype=np.float64)
    count, total, squares = 0, np.zeros_like(shift), np.zeros_like(shift)
    for tokens in chain([first], stretches):
        centred = tokens - shift
        count += len(centred)
        total = total + centred.sum(axis=0)
        squares = squares + (centred**2).sum(axis=0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    still = deviation <= 1e-12 * np.maximum(np.abs(shift + mean), 1e-300)
    scale = 1 / np.where(still, 1, deviation)
    return Scaling(offset=(shift + mean).astype(np.float32), scale=scale.astype(np.float32))
