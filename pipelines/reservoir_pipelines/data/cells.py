"""What the cells of a column hold: single numbers, sequences of numbers, words or lists."""

import json
from contextlib import suppress
from typing import Any

import numpy as np

from reservoir_pipelines.data.table import Table

EMPTY = ("", "na", "n/a", "nan", "null", "none")
"""How tables write an empty cell, in small letters or capitals."""

MOST = 0.5
"""A column holds what more than this share of its filled cells hold; the others are bad rows."""

SWITCHES = {"true": "1", "false": "0"} | dict.fromkeys(EMPTY, "nan")  # cells that stand for a number


def filled(column: Any) -> Any:
    """Return the cells of a column that are not empty."""
    cells = column[column.notna()]
    return cells if column.dtype.kind in "biuf" else cells[cells != ""]


def as_texts(column: Any) -> Any:
    """Return a column as texts without spaces at their ends, ``""`` for an empty cell."""
    return column.astype(object).where(column.notna(), "").astype(str).str.strip()


def holds_lists(column: Any) -> bool:
    """Return whether a cell is a list, as in JSON Lines and Parquet."""
    return column.dtype == object and any(isinstance(cell, list | np.ndarray) for cell in column)


def holds_single_numbers(table: Table, name: str) -> bool:
    """Return whether most filled cells are one number; not if one is like 007, whose zeros may mean something."""
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return True
    if holds_lists(column):
        return False
    texts = table.with_points(as_texts(column))
    texts = texts[~texts.str.lower().isin(SWITCHES)]
    numbers: Any = pd.to_numeric(texts, errors="coerce")
    return bool(numbers.notna().mean() > MOST and not texts.str.match(r"0\d").any()) or not len(texts)


def holds_sequences(column: Any) -> bool:
    """Return whether each filled cell is a list or a text of numbers, and one of them has several."""
    if holds_lists(column):
        return True
    texts = as_texts(filled(column))
    several = texts.str.contains(r"[\s,;\[]").any()
    return bool(several) and all(numbers_of_text(text) is not None for text in texts)


def holds_digits(column: Any) -> bool:
    """Return whether the cells are strings of digits without separators, such as 0110, which are letters."""
    texts = as_texts(filled(column))
    return bool(texts.str.fullmatch(r"\d+").all() and (texts.str.len() > 1).any())


def holds_words(column: Any) -> bool:
    """Return whether most filled cells are texts that are not made of numbers."""
    texts = [cell for cell in filled(column) if isinstance(cell, str)]
    words = sum(numbers_of_text(text) is None for text in texts)
    return words > MOST * len(texts)


def numbers_of_text(cell: str) -> np.ndarray | None:
    """Return the numbers of a text: a JSON list, or separated by spaces, commas or semicolons; else None."""
    if cell.strip().startswith("["):
        with suppress(ValueError, RecursionError):
            return numbers_of_list(json.loads(cell))
        cell = cell.strip().strip("[]")  # as NumPy prints an array
    separator = next((mark for mark in ",;" if mark in cell), None)
    for kind in (np.int64, np.float64):
        with suppress(ValueError, OverflowError):
            return np.array(cell.split(separator), dtype=kind)
    return None


def numbers_of_list(cell: Any) -> np.ndarray | None:
    """Return a list of numbers, or of lists of one length, as an array with NaN for None; else None."""
    try:
        array = np.asarray(cell)
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "uifb" and array.ndim in {1, 2} and array.size else None
