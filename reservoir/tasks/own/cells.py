"""Cells of a table: what they hold, and the arrays that are made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.tables import EMPTY, Table

MOST_TEXT = 0.5
"""Share of the filled cells that may be no numbers in a column of values; with more of them it is a column of text."""

THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})*")
LEADING_ZERO = re.compile(r"0\d+")


def filled(column: Any) -> Any:
    """Return the cells of a column that are not empty."""
    given = column[column.notna()]
    return given[given != ""] if given.dtype.kind not in "biuf" else given


def is_text(column: Any) -> bool:
    """Return whether a column holds texts: its first filled cell is one, and not numbers."""
    first = next(iter(filled(column)), None)
    return isinstance(first, str) and first.strip().lower() not in EMPTY and as_numbers(first) is None


def is_number(column: Any) -> bool:
    """Return whether each filled cell is one number; 007 is not, as its zeros may mean something."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return True
    cells = filled(column)
    if any(
        isinstance(cell, list) or (isinstance(cell, str) and LEADING_ZERO.fullmatch(cell.strip())) for cell in cells
    ):
        return False
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    return bool(numbers.notna().all())


def is_sequences(column: Any) -> bool:
    """Return whether each cell is a sequence: a list, or a text of numbers, some of them of several."""
    cells = filled(column)
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if not texts:
        return any(isinstance(cell, list) for cell in cells)
    several = any(re.search(r"[\s,;\[]", text) for text in texts) and not all(map(THOUSANDS.fullmatch, texts))
    return several and all(as_numbers(text) is not None for text in texts)


def is_digits(column: Any) -> bool:
    """Return whether the cells are digits with nothing between them, which are letters: no sequence is one number."""
    cells = filled(column)
    digits = all(isinstance(cell, str) and cell.strip().isdecimal() for cell in cells)
    return digits and any(len(cell) > 1 for cell in cells)


def as_numbers(cell: str) -> np.ndarray | None:
    """Return numbers with spaces, commas or semicolons between, or a list in JSON; None for other texts."""
    if cell.strip().startswith("["):
        try:
            return as_sequence(json.loads(cell))
        except (ValueError, RecursionError):
            cell = cell.strip().strip("[]")  # as NumPy prints an array
    between = next((mark for mark in ",;" if mark in cell), None)
    for kind in (np.int64, np.float64):
        try:
            return np.array(cell.split(between), dtype=kind)
        except (ValueError, OverflowError):
            continue
    return None


def as_sequence(cell: Any) -> np.ndarray | None:
    """Return a list of numbers or of lists of numbers of one length as an array, None in it as NaN; else None."""
    try:
        array = np.asarray(cell)
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "uifb" and array.ndim in {1, 2} and array.size else None


def values_of(table: Table, name: str, bad: BadRows) -> np.ndarray:
    """Return a column of single numbers as floats (rows,), NaN where a cell is empty.

    A row whose cell is neither empty nor a number is bad.
    """
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64)
    texts = column.astype(object).where(column.notna(), "").map(lambda cell: str(cell).strip())
    lower = texts.str.lower()
    empty = lower.isin(EMPTY)
    numbers: Any = pd.to_numeric(
        texts.mask(empty, "nan").mask(lower == "true", "1").mask(lower == "false", "0"), errors="coerce"
    )
    wrong = (numbers.isna() & ~empty).to_numpy()
    if wrong.sum() > MOST_TEXT * (~empty).sum():
        row = int(np.argmax(wrong))
        or_else = f", or pass --text {name} if it holds the sequences" if is_sequences(column) else ""
        raise InputError(
            f"{table.path}, {table.places[row]}: {texts[row][:40]!r} is not a number in column {name!r}; leave the "
            f"column out with --drop {name}{or_else}"
        )
    for row in np.flatnonzero(wrong):
        bad.add(row, f"{texts[row][:40]!r} is not a number in column {name!r}", "fix the cell")
    return numbers.to_numpy(np.float64)


def check_values(x: np.ndarray, names: Sequence[str], bad: BadRows, *, fill: bool) -> None:
    """Note rows of values (rows, columns) with infinite numbers, or with empty cells that are not to be filled."""
    wrong = np.isinf(x) | (np.isnan(x) & (not fill))
    for row in np.flatnonzero(wrong.any(axis=1)):
        place = int(np.argmax(wrong[row]))
        if np.isnan(x[row, place]):
            bad.add(row, f"an empty cell in column {names[place]!r}", "fill it, pass --missing interpolate or mask")
        else:
            bad.add(row, f"column {names[place]!r} is {x[row, place]}", "fix the cell")


def sequences_of(table: Table, name: str, bad: BadRows) -> list[np.ndarray]:
    """Return a column of whole sequences, lists or texts of numbers, as arrays; rows that hold none are bad."""
    found: list[np.ndarray] = []
    for row, cell in enumerate(table.frame[name]):
        array = as_numbers(cell) if isinstance(cell, str) else as_sequence(cell)
        first = next((one for one in found if one.size), None)
        if array is None or not array.size:
            shown = f"{cell[:40]!r} is " if isinstance(cell, str) and cell else ""
            bad.add(row, f"{shown}no sequence of numbers in column {name!r}")
        elif first is not None and array.shape[1:] != first.shape[1:]:
            bad.add(row, f"tokens of shape {array.shape[1:]}, before {first.shape[1:]}")
            array = None
        found.append(np.zeros(0) if array is None else array)
    return found


def labels_of(table: Table, name: str, bad: BadRows | None, *, shown: str = "") -> np.ndarray:
    """Return a column of labels: integers, else floats, else texts (rows,), or (rows, n) of lists of one length.

    Rows without a label are bad; where there is no ``bad``, as new sequences need no labels, they have None.
    """
    column = table.frame[name].astype(object)
    given = np.array([not _lacks(cell) for cell in column])
    if not given.all() and bad is not None:
        for row in np.flatnonzero(~given):
            bad.add(row, f"no label in column {shown or name!r}")
    labels = typed(f"{table.path}, column {name!r}", [cell for cell, has in zip(column, given, strict=True) if has])
    if given.all():
        return labels
    full = (
        np.full((len(given), *labels.shape[1:]), None, object)
        if bad is None
        else np.zeros_like(labels, shape=(len(given), *labels.shape[1:]))
    )
    full[given] = labels
    return full


def _lacks(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and np.isnan(cell))


def typed(where: str, cells: Sequence[Any]) -> np.ndarray:
    """Return cells as integers, else as floats, else as texts (rows,), or (rows, n) of lists of one length."""
    if all(isinstance(cell, str) for cell in cells):
        for kind in (int, float):
            try:
                return np.array([kind(cell) for cell in cells])
            except (ValueError, OverflowError):
                continue
        return np.array([cell.strip() for cell in cells], dtype=str)
    try:
        array = np.array(list(cells))
    except (ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biufU":
        raise InputError(
            f"{where}: labels are not all numbers, all texts, or lists of one length; write them in one form"
        )
    return array
