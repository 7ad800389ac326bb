"""Sequences one by one: rows of a ``.csv`` or ``.parquet`` table, or what a Python function yields."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError

LABELS = ("y", "label")
"""Names of a column of labels; with a number behind (``y0``, ``y1``) they are several outputs."""

SEQUENCES = ("x", "sequence")
"""Names of a column that holds whole sequences; without it the other columns are the values, in their order."""


class InMemory:
    """Arrays with one row per sequence, held in memory.

    Parameters
    ----------
    path : Path
        Where they came from.
    arrays : mapping of str to ndarray
        ``x``, ``y`` and optionally ``lengths`` and ``split``.
    """

    def __init__(self, path: Path, arrays: Mapping[str, np.ndarray]):
        self.path, self.piece_rows = path, 2**62
        self._arrays = dict(arrays)
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self.dtypes = {name: array.dtype for name, array in arrays.items()}

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        return self._arrays[name][lo:hi]


def read_csv(path: Path) -> InMemory:
    """Read a table with a header and one row per sequence.

    Columns are ``y`` or ``label`` (``y0``, ``y1``, ... for several outputs), optionally ``split`` and ``lengths``, and
    either one column ``x`` or ``sequence`` of numbers with spaces between, or a column per value. Rows may end early.
    Numbers in a column of sequences that are all whole are symbols; values in columns of their own are floats. Labels
    that are all whole numbers are classes, other numbers targets, and texts classes.
    """
    # The default limit of a field, 131,072 characters, is a sequence of some 20,000 numbers.
    csv.field_size_limit(2**31 - 1)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no readable table ({error}); give comma-separated text with a header") from None
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise InputError(f"{path}: {len(rows)} lines; give a header with column names, and one line per sequence")
    header = [name.strip() for name in rows[0]]
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells under {len(header)} column names")
    return _from_columns(path, dict(zip(header, zip(*rows[1:], strict=True), strict=True)))


def read_parquet(path: Path) -> InMemory:
    """Read a table as `read_csv` does; a column ``x`` or ``sequence`` may hold lists, or lists of lists."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"{path}: Parquet needs a package: pip install pyarrow; or give .csv or .npz") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: no readable Parquet file ({str(error).splitlines()[0]})") from None
    return _from_columns(path, {name: table.column(name).to_pylist() for name in table.column_names})


def read_function(name: str) -> InMemory:
    """Call a function ``module:name`` that yields ``(sequence, label)`` or ``(sequence, label, split)``.

    A sequence is a list or array of integers (symbols), of floats, or (tokens, dim) of floats. The module is looked for
    in the current folder, too.
    """
    module, _, function = name.partition(":")
    rows = list(_function(name)())
    path = Path(str(sys.modules[module].__file__))
    if not rows or any(not isinstance(row, tuple) or not 2 <= len(row) <= 3 for row in rows):
        raise InputError(f"{path}: {function} must yield pairs (sequence, label), or triples with the split, and some")
    x, lengths = pad(str(path), [row[0] for row in rows])
    arrays = {"x": x, "lengths": lengths, "y": _array(path, "labels", [row[1] for row in rows])}
    if any(len(row) == 3 for row in rows):
        arrays["split"] = np.array([str(row[2]) if len(row) == 3 else "missing" for row in rows])
    return InMemory(path, arrays)


def function_file(name: str) -> Path:
    """Return the file of the module of ``module:name``."""
    _function(name)
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


def pad(where: str, sequences: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of different lengths as one array, with zeros at the ends, and the lengths.

    Raises
    ------
    InputError
        Naming the row of a sequence that is empty, ragged, or unlike the first.
    """
    arrays = []
    for row, sequence in enumerate(sequences):
        try:
            array = np.asarray(sequence)
        except ValueError:
            array = np.empty(0, object)
        if array.dtype.kind not in "uifb" or array.ndim not in {1, 2} or not array.size:
            raise InputError(f"{where}, row {row}: no sequence of numbers, or of lists of numbers of one length")
        if array.shape[1:] != (arrays[0].shape[1:] if arrays else array.shape[1:]):
            raise InputError(f"{where}, row {row}: tokens of shape {array.shape[1:]}, before {arrays[0].shape[1:]}")
        arrays.append(array)
    lengths = np.array([len(array) for array in arrays], np.int64)
    x = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, array in enumerate(arrays):
        x[row, : len(array)] = array
    return x, lengths


def _function(name: str) -> Callable[[], Iterable[Any]]:
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name}: {error}; give module:function, the module in this folder or installed") from None
    finally:
        sys.path.remove(here)
    if not isinstance(found, Callable):
        raise InputError(f"{name} is no function; give module:function, which yields (sequence, label)")
    return found


def _from_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> InMemory:
    labels = [name for name in columns if name in LABELS or (name[:1] == "y" and name[1:].isdigit())]
    if not labels:
        raise InputError(f"{path}: no column of labels among {list(columns)[:8]}; name it y or label")
    y = np.stack([_cells(path, name, columns[name]) for name in labels], axis=1)
    arrays = {"y": y[:, 0] if len(labels) == 1 else y}
    if "split" in columns:
        arrays["split"] = np.array([str(cell).strip() for cell in columns["split"]])
    whole = [name for name in SEQUENCES if name in columns]
    if whole:
        cells = columns[whole[0]]
        arrays["x"], arrays["lengths"] = pad(str(path), [_numbers(path, row, cell) for row, cell in enumerate(cells)])
    else:
        names = [name for name in columns if name not in {*labels, "split", "lengths"}]
        arrays["x"], arrays["lengths"] = _values(path, names, [columns[name] for name in names])
    if "lengths" in columns:
        arrays["lengths"] = _cells(path, "lengths", columns["lengths"])
    return InMemory(path, arrays)


def _cells(path: Path, name: str, cells: Sequence[Any]) -> np.ndarray:
    """Return a column as integers, else as floats, else as texts."""
    if all(isinstance(cell, str) for cell in cells):
        for kind in (int, float):
            try:
                return np.array([kind(cell) for cell in cells])
            except (ValueError, OverflowError):
                continue
        return np.array([cell.strip() for cell in cells])
    return _array(path, name, cells)


def _array(path: Path, name: str, values: Sequence[Any]) -> np.ndarray:
    try:
        array = np.array(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biufU":
        raise InputError(f"{path}: the {name} are not all numbers, all texts, or lists of one length; fill the gaps")
    return array


def _numbers(path: Path, row: int, cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    for kind in (np.int64, np.float64):
        try:
            return np.array(cell.split(), dtype=kind)
        except (ValueError, OverflowError):
            continue
    raise InputError(f"{path}, row {row}: the sequence {cell[:40]!r} is not numbers with spaces between")


def _values(path: Path, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of one value each as floats (rows, values), and where the rows end."""
    if not names:
        raise InputError(f"{path}: no columns of values, and no column named x or sequence")
    x = np.zeros((len(columns[0]), len(names)))
    empty = np.array([[cell is None or cell == "" for cell in column] for column in columns]).T
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        for row, cell in enumerate(column):
            if not empty[row, place]:
                try:
                    x[row, place] = float(cell)
                except (TypeError, ValueError):
                    raise InputError(f"{path}, row {row}, column {name!r}: {str(cell)[:40]!r} is no number") from None
    lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
    for row in np.flatnonzero(empty.sum(axis=1) != len(names) - lengths):
        column = names[int(np.argmax(empty[row]))]
        raise InputError(f"{path}, row {row}, column {column!r}: an empty cell; only the end of a row may be empty")
    return x, lengths
