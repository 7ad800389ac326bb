"""Your own data: sequences with labels from a file or a function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.files import Columns, open_columns
from reservoir.tasks.own.labels import Labels, encode_labels, split_rows
from reservoir.tasks.own.tables import function_file
from reservoir.tasks.own.values import clean_symbols, clean_values, standardisation
from reservoir.tasks.source import Piece, Source, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Tokens, Vectors

MOST_SYMBOLS = 1_000_000
"""Larger integers are values, not symbols: no embedding has a row for each."""

FUNCTION = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class OwnData(Source):
    """A task from the arrays ``x``, ``y`` and optionally ``lengths`` and ``split``.

    - ``x`` (rows, tokens, dim): vectors; (rows, tokens) of floats: vectors of one value; (rows, tokens) of integers:
      symbols.
    - ``y`` (rows,) or (rows, outputs), or (rows, readout tokens, outputs) for one label per each of the last tokens:
      floats are targets, integers, strings and booleans are classes.
    - ``lengths`` (rows,): the real tokens of each row; what follows them is ignored.
    - ``split`` (rows,): ``train``, ``valid`` or ``test``; see `reservoir.tasks.labels.split_rows` for what happens
      without it.

    They are the arrays of an ``.npz`` or ``.h5`` file, or come from a table or a function, see
    `reservoir.tasks.tables`.

    Parameters
    ----------
    origin : str
        The path of the file, or ``module:function``.
    standardise : bool, default True
        Subtract from each channel its mean over the real tokens of the training split, and divide by its standard
        deviation.
    """

    origin: str
    standardise: bool = True

    def __reduce__(self) -> tuple[type, tuple]:
        """Leave the arrays behind when another process is to read the file."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def task(self) -> Task:
        """The description, with the shapes found in the data."""
        parameters = {} if self._symbols or self.standardise else {"standardise": False}
        return Task(
            name=own_name(self.origin),
            form=Tokens(self._largest_symbol() + 1) if self._symbols else Vectors(self._channels),
            max_tokens=self._shape[1],
            classes=self._labels.classes,
            readout_tokens=self._labels.y.shape[1],
            outputs=self._labels.y.shape[2],
            parameters=parameters,
            labels=self._labels.names,
        )

    def files(self) -> list[Path]:
        """Return the one file; of a function, its module."""
        if FUNCTION.fullmatch(self.origin):
            return [function_file(self.origin)]
        if not Path(self.origin).is_file():
            raise InputError(f"{self.origin}: no such file; give the path of your data")
        return [Path(self.origin)]

    def pieces(self) -> list[Piece]:
        """Return stretches of rows."""
        rows, step = self._shape[0], self._columns.piece_rows
        return [Piece("rows", lo, min(lo + step, rows)) for lo in range(0, rows, step)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a stretch of rows, divided into its splits."""
        x, lengths = self._values(piece)
        y, split = self._labels.y[piece.lo : piece.hi], self._split[piece.lo : piece.hi]
        names = sorted(set(split.tolist()))
        return {n: Split(x=x[split == n], y=y[split == n], lengths=lengths[split == n]) for n in names}

    def scaling(self) -> Scaling | None:
        """Return the standardisation by the training split, or None for symbols."""
        if self._symbols:
            return None
        if self.standardise:
            return standardisation(self._training_values())
        return Scaling(offset=np.zeros(self._channels, np.float32), scale=np.ones(self._channels, np.float32))

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return new inputs in the form of this task, and their lengths."""
        return encode_array(self.task, x, lengths)

    # ---- what the data holds

    @cached_property
    def _columns(self) -> Columns:
        columns = open_columns(self.origin)
        missing = [name for name in ("x", "y") if name not in columns.shapes]
        if missing:
            raise InputError(f"{self.origin}: no array {missing[0]!r} among {sorted(columns.shapes)}; give x and y")
        rows = columns.shapes["x"][:1]
        for name in ("y", "lengths", "split"):
            if name in columns.shapes and columns.shapes[name][:1] != rows:
                raise InputError(
                    f"{self.origin}: x has the shape {columns.shapes['x']} and {name} {columns.shapes[name]}; give one "
                    f"of {name} per row of x"
                )
        return columns

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        shape, dtype = self._columns.shapes["x"], self._columns.dtypes["x"]
        if len(shape) not in {2, 3} or 0 in shape:
            raise InputError(f"{self.origin}: x has the shape {shape}; give (rows, tokens, dim) or (rows, tokens)")
        if dtype.kind not in "uif":
            raise InputError(f"{self.origin}: x holds {dtype} values; give floats, or integers for symbols")
        return shape

    @property
    def _symbols(self) -> bool:
        return len(self._shape) == 2 and self._columns.dtypes["x"].kind in "ui"

    @property
    def _channels(self) -> int:
        return 1 if len(self._shape) == 2 else self._shape[2]

    @cached_property
    def _labels(self) -> Labels:
        return encode_labels(self.origin, self._column("y"))

    @cached_property
    def _split(self) -> np.ndarray:
        given = self._column("split") if "split" in self._columns.shapes else None
        return split_rows(self.origin, self._labels, given)

    @cached_property
    def _lengths(self) -> np.ndarray:
        rows, tokens = self._shape[:2]
        if "lengths" not in self._columns.shapes:
            return np.full(rows, tokens, np.int32)
        return clean_lengths(self.origin, self._column("lengths"), rows, tokens)

    def _column(self, name: str) -> np.ndarray:
        return self._columns.read(name, 0, self._shape[0])

    def _values(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Return a stretch of rows as stored, and their lengths."""
        lengths = self._lengths[piece.lo : piece.hi]
        x = self._columns.read("x", piece.lo, piece.hi)
        vocabulary = self.task.form.vocabulary if isinstance(self.task.form, Tokens) else 0
        if vocabulary:
            return clean_symbols(self.origin, x, lengths, vocabulary, piece.lo), lengths
        return clean_values(self.origin, x.reshape(*x.shape[:2], -1), lengths, piece.lo), lengths

    def _largest_symbol(self) -> int:
        largest = 0
        for piece in self.pieces():
            x = self._columns.read("x", piece.lo, piece.hi)
            real = np.arange(x.shape[1]) < self._lengths[piece.lo : piece.hi, None]
            largest = max(largest, int(x.max(initial=0, where=real)))
        if largest >= MOST_SYMBOLS:
            raise InputError(f"{self.origin}: x holds the symbol {largest}; if these are values, give them as floats")
        return largest

    def _training_values(self) -> Iterator[np.ndarray]:
        for piece in self.pieces():
            x, lengths = self._values(piece)
            train = self._split[piece.lo : piece.hi] == "train"
            if train.any():
                yield x[train][np.arange(x.shape[1]) < lengths[train, None]]


def own_name(origin: str) -> str:
    """Return the name of a task of your own: the file's, or the function's with its module."""
    return origin.replace(":", ".") if FUNCTION.fullmatch(origin) else Path(origin).name


def clean_lengths(where: str, lengths: np.ndarray, rows: int, tokens: int, fewest: int = 1) -> np.ndarray:
    """Return the real tokens of each row as int32; refuse what is not one whole number per row that fits.

    Parameters
    ----------
    where : str
        The file or the task, for messages.
    lengths : ndarray, (rows,)
        As given.
    rows, tokens : int
        Of the sequences.
    fewest : int, default 1
        The shortest that a row may be.

    Raises
    ------
    InputError
        Naming the type and shape, or the row of a length that does not fit.
    """
    if lengths.dtype.kind not in "ui" or lengths.shape != (rows,):
        raise InputError(f"{where}: lengths hold {lengths.dtype} {lengths.shape}; give integers of shape ({rows},)")
    wrong = (lengths < fewest) | (lengths > tokens)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{where}: length {lengths[row]} in row {row} is not between {fewest} and {tokens}")
    return lengths.astype(np.int32)


def encode_array(task: Task, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return new inputs of a task of your own as stored sequences, and their lengths.

    Parameters
    ----------
    task : Task
        The task of the data.
    x : ndarray, (rows, tokens, dim) or (rows, tokens)
        As in the file that the task was made from.
    lengths : ndarray of int, (rows,), optional
        Real tokens of each row; all of them by default.

    Raises
    ------
    InputError
        Naming what is wrong with the lengths, or the row and the token of a value that is not finite or of an unknown
        symbol.
    """
    where = f"task {task.name!r}"
    symbols = isinstance(task.form, Tokens)
    if not symbols and x.ndim == 2:
        x = x[:, :, None]
    dim = 0 if isinstance(task.form, Tokens) else task.form.dim
    shape_fits = x.ndim == 2 if symbols else x.ndim == 3 and x.shape[2] == dim
    if not shape_fits or x.dtype.kind not in ("ui" if symbols else "uif") or not x.size:
        want = "integers (rows, tokens)" if symbols else f"numbers (rows, tokens, {dim})"
        raise InputError(f"{where}: inputs of shape {x.shape} and type {x.dtype}; give {want}")
    given = full_lengths(x) if lengths is None else lengths
    lengths = clean_lengths(where, given, *x.shape[:2], fewest=task.readout_tokens)
    if isinstance(task.form, Tokens):
        x = clean_symbols(where, x, lengths, task.form.vocabulary)
    else:
        x = clean_values(where, x, lengths)
    if x.shape[1] > task.max_tokens:
        raise InputError(f"{where}: sequences of {x.shape[1]} tokens; the task has at most {task.max_tokens}")
    return x, lengths
