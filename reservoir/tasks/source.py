"""Sources of the rows of a task: files or a generator, read in pieces that do not depend on each other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.task import SPLITS, Scaling, Split, Task, Vectors


class Piece(NamedTuple):
    """A range of a source's rows that is read, or generated, at once."""

    part: str  # the file or split that the rows belong to, as the source calls it
    lo: int  # its first row
    hi: int  # one past its last row
    view: int = 0  # 0 for the rows as they are, k for their k-th augmented view


@dataclass(frozen=True)
class NoSelection:
    """Why nothing may be chosen by the validation rows of a task, and what to do instead."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class Source:
    """Rows of a task, read in pieces by any number of processes; it holds settings and paths, never arrays or files."""

    raw = ""  # the form of inputs that are not sequences yet, for messages
    endless = False  # whether more training rows than are prepared can be generated
    augments = False  # whether `train` augments the images at every step
    # why the validation rows may choose nothing, if they may not
    no_selection: ClassVar[NoSelection | None] = None

    @property
    def task(self) -> Task:
        """The description of the task."""
        raise NotImplementedError

    @property
    def row_kinds(self) -> list[str]:
        """The kinds of rows that `train` can read at a step, the default first: new, augmented or stored ones."""
        is_possible = {"fresh": self.endless, "augmented": self.augments, "stored": True}
        return [kind for kind, possible in is_possible.items() if possible]

    def settings(self) -> Mapping[str, Any]:
        """Return what the rows depend on besides the files: the fields of a source, except its folder of files."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "data"}

    def files(self) -> Sequence[Path]:
        """Return the files that `read` opens, none for a generator; raise an `InputError` if one is missing."""
        return []

    def pieces(self) -> Sequence[Piece]:
        """Return the pieces in order, by default one; they depend on the settings and the files alone."""
        return [Piece("all", 0, 1)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the rows of one piece by split. The rows of a split follow the order of the pieces."""
        raise NotImplementedError

    def scaling(self) -> Scaling | None:
        """Return the map from stored values to those that the model reads, by default the same; None for symbols."""
        form = self.task.form
        return Scaling.constant(1.0, form.dim) if isinstance(form, Vectors) else None

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return new sequences, in a subclass also raw inputs, as stored sequences and their lengths.

        ``x`` are vectors (rows, max_tokens, dim) or symbols (rows, tokens). ``lengths`` (rows,) are the real tokens of
        symbols; without them, zeros at the end of a row are padding. Raise `InputError` for any other arrays.
        """
        form = self.task.form
        most = self.task.max_tokens
        where = f"task {self.task.name!r}"
        if isinstance(form, Vectors):
            expected_shape = f"{most}, {form.dim}"
            fits = x.dtype.kind in "uif" and x.shape[1:] == (most, form.dim)
        else:
            expected_shape = f"at most {most}"
            fits = x.dtype.kind in "ui" and x.ndim == 2 and 0 < x.shape[1] <= most
        if not fits:
            raise InputError(
                f"{where}: inputs of shape {x.shape} and type {x.dtype}",
                f"give {self.raw}sequences of shape (rows, {expected_shape})",
            )
        if isinstance(form, Vectors):
            return x, full_lengths(x)
        # Only checked here: the symbols are stored as they are.
        clean_symbols(where, x, full_lengths(x), form.vocabulary)
        if lengths is not None:
            return x, lengths
        # The number of each token, from 1, that is not 0; the largest is the length, which is at least 1.
        numbers = np.where(x != 0, np.arange(1, x.shape[1] + 1), 1)
        return x, numbers.max(axis=1).astype(np.int32)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return augmented view number ``view`` of stored sequences ``x``, whose row numbers are ``rows`` (rows,)."""
        raise NotImplementedError

    def training_rows(self, _split: Split, _seed: int, _batch: int) -> Callable[[np.ndarray], Split] | None:
        """Return a function with which `train` draws the stored rows of a split, or None for the usual way.

        The function takes positions (n,) in an endless sequence of rows, and returns the rows. The usual way draws all
        rows in each epoch, in another order. ``_batch`` is the number of rows of a batch.
        """
        return None

    def summary(self) -> str:
        """Return the size of the data in one line, empty if the task's name says it."""
        return ""

    def notes(self) -> list[str]:
        """Return notes on how the data was read, one line each."""
        return []


def full_lengths(x: np.ndarray) -> np.ndarray:
    """Return the lengths of sequences (rows, tokens, ...) that use all their tokens."""
    return np.full(len(x), x.shape[1], np.int32)


def classes_of(rows: np.ndarray) -> np.ndarray:
    """Return class numbers (rows,) as labels (rows, 1, 1) of one readout token and one output."""
    return rows.astype(np.int64)[:, None, None]


def read_texts(texts: Iterable[str], read: Callable[[str], bytes], most: int | None) -> list[bytes]:
    """Return the symbols that ``read`` makes of each text.

    Raise `InputError`, which names the row, for a text that ``read`` refuses or that has more than ``most`` symbols;
    with None, any number is accepted.
    """
    rows = []
    for row, text in enumerate(texts):
        with as_input_error(f"row {row}: not readable", "correct it, or leave it out"):
            symbols = read(text)
            if most is not None and len(symbols) > most:
                raise ValueError(f"it has {len(symbols)} tokens, more than {most}")
            rows.append(symbols)
    return rows


def padded_bytes(rows: Sequence[bytes], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of symbols, one byte each, cut and padded to (rows, width), and their lengths before that."""
    symbols_of_rows = b"".join(symbols[:width].ljust(width, b"\0") for symbols in rows)
    lengths = np.array([len(symbols) for symbols in rows], np.int32)
    x = np.frombuffer(bytearray(symbols_of_rows), np.uint8)  # an array of bytes alone would be read-only
    return x.reshape(len(rows), width), lengths


def clean_symbols(
    where: str,
    x: np.ndarray,
    lengths: np.ndarray,
    vocabulary: int,
    first_row: int = 0,
    remedy: str = "replace it, or fit to data with more symbols",
) -> np.ndarray:
    """Return symbols (rows, tokens) in the smallest sufficient type, with zeros after each row's end.

    Raise `InputError` for the first number that is not a symbol of the vocabulary. The message begins with ``where``,
    counts rows from ``first_row``, the number of the first row in the file, and ends with ``remedy``.
    """
    problems = unknown_symbols(x, lengths, vocabulary)
    if problems:
        row = min(problems)
        raise InputError(f"{where}: row {first_row + row}, {problems[row]}", remedy)
    is_real = np.arange(x.shape[1]) < lengths[:, None]
    return np.where(is_real, x, 0).astype(np.min_scalar_type(vocabulary - 1))


def unknown_symbols(x: np.ndarray, lengths: np.ndarray, vocabulary: int) -> dict[int, str]:
    """Return what is wrong with each row of ``x`` (rows, tokens) that has an unknown number, by the number of the row.

    A symbol is a whole number from 0 to ``vocabulary`` - 1. The text names the first other number of the row. Only the
    ``lengths`` (rows,) real tokens count.
    """
    is_real = np.arange(x.shape[1]) < lengths[:, None]
    is_symbol = (x >= 0) & (x < vocabulary) & (x == np.rint(x))
    is_wrong = is_real & ~is_symbol
    rows = np.flatnonzero(is_wrong.any(axis=1)).tolist()
    first_tokens = is_wrong[rows].argmax(axis=1).tolist()
    return {
        row: f"token {token}: {x[row, token]} is not a symbol from 0 to {vocabulary - 1}"
        for row, token in zip(rows, first_tokens, strict=True)
    }


def generated_pieces(split_rows: Sequence[int], piece_rows: int) -> list[Piece]:
    """Return the pieces of a generator: ranges of at most ``piece_rows`` rows of train, valid and test.

    ``split_rows`` are the numbers of rows of the three splits.
    """
    return [
        Piece(split, first, min(first + piece_rows, rows))
        for split, rows in zip(SPLITS, split_rows, strict=True)
        for first in range(0, rows, piece_rows)
    ]


REMEDY = "name the folder with --data DIR or RESERVOIR_DATA"
FRESH_ROWS = 1024  # number of rows of an endless task that are generated at a time


def find_file(task: str, data: Path | None, folders: Iterable[str], names: Sequence[str]) -> Path:
    """Return the path of a task's file: the first that exists of some file names in some folders of ``data``.

    Raise `InputError` if there is none, or no folder of data.
    """
    alternatives = " or ".join(names)
    if data is None:
        raise InputError(
            f"task {task!r} needs its files ({alternatives}, ...), and no data folder was given", REMEDY
        )
    paths = [data / folder / name for folder in folders for name in names]
    for path in paths:
        if path.is_file():
            return path
    raise InputError(f"task {task!r}: no file {alternatives} in {data}", REMEDY)


def fresh_rows(source: Source, seed: int) -> Callable[[np.ndarray], Split]:
    """Return a function of row numbers (n,) that draws endless training rows; row n is always the same."""

    @lru_cache(maxsize=8)  # neighbouring batches read the same blocks
    def drawn(block: int) -> Split:
        """Return the rows of a block of `FRESH_ROWS` numbers."""
        # The first row of a piece seeds its generator: these pieces begin far after every prepared one.
        first = ((seed + 1) << 48) + block * FRESH_ROWS
        return source.read(Piece("train", first, first + FRESH_ROWS))["train"]

    def rows(numbers: np.ndarray) -> Split:
        """Return the rows of these numbers."""
        # The blocks that have them, side by side, and the place of each row in these.
        blocks, block_of_row = np.unique(numbers // FRESH_ROWS, return_inverse=True)
        splits = [drawn(int(block)) for block in blocks]
        places = block_of_row * FRESH_ROWS + numbers % FRESH_ROWS
        return Split(
            x=np.concatenate([split.x for split in splits])[places],
            y=np.concatenate([split.y for split in splits])[places],
            lengths=np.concatenate([split.lengths for split in splits])[places],
        )

    return rows
