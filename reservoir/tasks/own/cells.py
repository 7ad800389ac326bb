"""Cells of a table as arrays of numbers or texts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.columns import check_padding

GAPS = {"", "na", "n/a", "nan", "null", "none"}
"""What an empty cell is written as, in any case."""

SWITCHES = {"false": 0.0, "true": 1.0}


def is_text(cells: Sequence[Any]) -> bool:
    """Return whether a column holds texts: its first cell that is not empty is one, and not numbers."""
    first = next((cell for cell in cells if cell is not None and cell != ""), None)
    return isinstance(first, str) and first.strip().lower() not in GAPS and as_numbers(first) is None


def column(path: Path, name: str, cells: Sequence[Any]) -> np.ndarray:
    """Return a column as integers, else as floats, else as texts (rows,), or (rows, n) of lists of one length."""
    if all(isinstance(cell, str) for cell in cells):
        for kind in (int, float):
            try:
                return np.array([kind(cell) for cell in cells])
            except (ValueError, OverflowError):
                continue
        return np.array([cell.strip() for cell in cells])
    return array_of(path, name, cells)


def array_of(path: Path, name: str, values: Sequence[Any]) -> np.ndarray:
    """Return numbers, texts, or lists of one length as an array."""
    try:
        array = np.array(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biufU":
        raise InputError(f"{path}: the {name} are not all numbers, all texts, or lists of one length; fill the gaps")
    return array


def pad(where: str, sequences: Sequence[Any], *, fill: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of different lengths as one array, with zeros at the ends, and the lengths.

    None among numbers is NaN where it is to be filled in later.
    """
    arrays = []
    for row, sequence in enumerate(sequences):
        try:
            array = np.asarray(sequence, np.float64 if fill and isinstance(sequence, list) else None)
        except (TypeError, ValueError):
            array = np.empty(0, object)
        if array.dtype.kind not in "uifb" or array.ndim not in {1, 2} or not array.size:
            raise InputError(f"{where}, row {row}: no sequence of numbers, or of lists of numbers of one length")
        if array.shape[1:] != (arrays[0].shape[1:] if arrays else array.shape[1:]):
            raise InputError(f"{where}, row {row}: tokens of shape {array.shape[1:]}, before {arrays[0].shape[1:]}")
        arrays.append(array)
    lengths = np.array([len(array) for array in arrays], np.int64)
    kind = np.result_type(*arrays)
    check_padding(where, lengths, kind.itemsize)
    x = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), kind)
    for row, array in enumerate(arrays):
        x[row, : len(array)] = array
    return x, lengths


def numbers(path: Path, row: int, cell: Any) -> Any:
    """Return a cell of a whole sequence: a list as it is, a text of numbers with spaces between as an array."""
    if not isinstance(cell, str):
        return cell
    found = as_numbers(cell)
    if found is None:
        raise InputError(f"{path}, row {row}: the sequence {cell[:40]!r} is not numbers with spaces or commas between")
    return found


def labels_of(path: Path, name: str, cells: Sequence[Any], *, every: bool) -> np.ndarray:
    """Return a column of labels; where not ``every`` row needs one, None (as an object) for those without."""
    given = np.array([not (cell is None or (isinstance(cell, str) and not cell.strip())) for cell in cells])
    if given.all():
        return column(path, name, cells)
    if every:
        row = int(np.argmin(given))
        raise InputError(f"{path}, row {row}, column {name!r}: no label; remove the row, or give its label")
    found = np.full(len(cells), None, object)
    if given.any():
        found[given] = column(path, name, [cell for cell, there in zip(cells, given, strict=True) if there])
    return found


def ordered(path: Path, name: str, cells: Sequence[Any]) -> np.ndarray:
    """Return a column of times: numbers, or dates as ISO 8601 writes them."""
    texts = [cell.isoformat() if hasattr(cell, "isoformat") else cell for cell in cells]
    times = column(path, name, texts)
    found = dates(times.tolist()) if times.dtype.kind == "U" else times
    if found is None:
        raise InputError(
            f"{path}, column {name!r}: times like {str(times[0])[:40]!r} tell no order; write dates as 2024-12-31, or "
            f"numbers, or say --drop {name} if the rows stand in order"
        )
    return found


def dates(cells: Sequence[Any]) -> np.ndarray | None:
    """Return texts that are all dates as ISO 8601 writes them, on one clock where they name several, else None."""
    if not all(isinstance(cell, str) and "-" in cell for cell in cells):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy counts time zones in, and warns that it does not keep them
            return np.array([cell.strip().removesuffix("Z") for cell in cells], "datetime64[us]")
    except ValueError:
        return None


def values(path: Path, name: str, cells: Sequence[Any]) -> np.ndarray:
    """Return a column of single numbers as floats (rows,), NaN where a cell is empty."""
    try:
        return np.array(cells, np.float64)
    except (TypeError, ValueError):
        return np.array([_value(path, row, name, cell) for row, cell in enumerate(cells)])


def _value(path: Path, row: int, name: str, cell: Any) -> float:
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in GAPS):
        return np.nan
    if isinstance(cell, str) and cell.strip().lower() in SWITCHES:
        return SWITCHES[cell.strip().lower()]
    try:
        return float(cell)
    except (TypeError, ValueError):
        what = f"{str(cell)[:40]!r} is no number"
        several = isinstance(cell, list) or (isinstance(cell, str) and as_numbers(cell) is not None)
        or_else = f", or say --text {name} if it holds the sequences" if several else ""
        raise InputError(
            f"{path}, row {row}, column {name!r}: {what}; leave the column out (--drop {name}){or_else}"
        ) from None


def as_numbers(cell: str) -> np.ndarray | list[Any] | None:
    """Return numbers with spaces, commas or semicolons between, or a list as JSON writes it; None of other texts."""
    if cell.strip().startswith("["):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            cell = cell.strip().strip("[]")  # as NumPy prints an array
    between = next((mark for mark in ",;" if mark in cell), None)
    for kind in (np.int64, np.float64):
        try:
            return np.array(cell.split(between), dtype=kind)
        except (ValueError, OverflowError):
            continue
    return None


def check_gaps(path: Path, x: np.ndarray, names: Sequence[str], *, fill: bool) -> None:
    """Refuse empty cells among values (rows, columns), unless they are to be filled."""
    gaps = np.argwhere(np.isnan(x))
    if len(gaps) and not fill:
        row, place = (int(i) for i in gaps[0])
        raise InputError(
            f"{path}, row {row}, column {names[place]!r}: an empty cell; only the end of a row may be empty, or say "
            "--missing interpolate or mask"
        )
