"""What the columns of a table are for where nobody says it: by their names, and by what is in them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.tasks.own.cells import as_numbers, dates, is_text
from reservoir.tasks.own.tables import Table

LABELS = ("y", "label")
"""Names of a column of labels; with a number behind (``y0``, ``y1``) they are several outputs."""

SEQUENCES = ("x", "sequence")
"""Names of a column that holds whole sequences; without it the other columns are the values, in their order."""

IDS = ("id", "series_id", "case")
TIMES = ("time", "t", "step", "timestamp", "date", "datetime")
"""Names of columns of ids and of times, in small letters or capitals."""

NAMED_ID = re.compile(r"\w*([_ -](id|ID|Id)|[a-z](Id|ID))|(?i:uuid|guid)")
INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")
DECIMAL = re.compile(r"-?\d+\.\d+")
STEM = re.compile(r"\d+$")
MOST_SHOWN = 8

FEWEST_COUNTED = 4
"""Rows from which on a column of their numbers, or of rising times, is no value."""


def counts_rows(cells: Sequence[Any]) -> bool:
    """Return whether cells are the numbers of the rows, from 0 or 1."""
    texts = [str(cell) for cell in cells]
    return len(texts) >= FEWEST_COUNTED and any(
        texts == [str(row + first) for row in range(len(texts))] for first in (0, 1)
    )


def ids_among(path: Path, table: Mapping[str, Sequence[Any]]) -> str:
    """Return a column called as ids are, such as patient_id, of which no two are alike; refuse one that repeats."""
    for name, cells in table.items():
        texts = [str(cell) for cell in cells]
        measured = len(texts) < FEWEST_COUNTED or any("." in text for text in texts)
        if measured or not NAMED_ID.fullmatch(name):
            continue
        if len(set(texts)) == len(texts):
            return name
        raise InputError(
            f"{path}: the column {name!r} has the same ids again and again; say --id {name} if their rows make one "
            f"sequence, --group {name} if each row is a sequence of its own, or --drop {name}"
        )
    return ""


def times_among(path: Path, table: Mapping[str, Sequence[Any]], *, known: bool) -> str:
    """Return a column that says when each row was, and is no value; refuse one of long form, unless ids are known."""
    for name in [name for name in table if name.lower() in TIMES]:
        if not known and _repeat(table[name]):
            raise InputError(
                f"{path}: the column {name!r} has the same times again and again, as in long form, and no column is "
                f"called id; say --id NAME, or --drop {name}"
            )
        if are_times(table[name]):
            return name
    return ""


def are_times(cells: Sequence[Any]) -> bool:
    """Return whether cells are dates, or numbers each of which is larger than the one before."""
    try:
        return len(cells) >= FEWEST_COUNTED and bool((np.diff(np.array(cells, np.float64)) > 0).all())
    except (TypeError, ValueError):
        return dates(cells) is not None


def _repeat(cells: Sequence[Any]) -> bool:
    """Return whether times stand there several times on average: whole numbers or texts, not measured values."""
    texts = [str(cell) for cell in cells]
    return 2 * len(set(texts)) <= len(texts) and not any("." in text for text in texts)


def labels_among(table: Mapping[str, Sequence[Any]], values: Sequence[str]) -> list[str]:
    """Return the columns called as labels are, but for ``values``, and for y where x, y and z are places."""
    found = [name for name in table if name in LABELS or (name[:1] == "y" and name[1:].isdigit())]
    places = {"x", "y", "z"} <= table.keys() and single(table["x"])
    return [name for name in found if name not in values and not (places and name == "y")]


def single(cells: Sequence[Any]) -> bool:
    """Return whether each cell is one number, or empty; 007 is no number but letters."""
    plain = [0 if cell is None or cell == "" else cell for cell in cells]
    try:
        numbers = np.array(plain, np.float64).ndim == 1
    except (TypeError, ValueError):
        return False
    return numbers and not any(isinstance(cell, str) and re.fullmatch(r"0\d+", cell.strip()) for cell in plain)


def holds_sequences(cells: Sequence[Any]) -> bool:
    """Return whether each cell is a sequence: a list, or a text of numbers, some of them of several."""
    texts = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
    if not texts:
        return any(isinstance(cell, list) for cell in cells)
    grouped = all(re.fullmatch(r"[-+]?\d{1,3}(,\d{3})*", text) for text in texts)  # thousands, as 1,250
    several = not grouped and any(re.search(r"[\s,;\[]", text) for text in texts)
    return several and all(as_numbers(text) is not None for text in texts)


def holds_digits(cells: Sequence[Any]) -> bool:
    """Return whether cells are digits with nothing between them, which are letters: no sequence is one number."""
    return all(isinstance(cell, str) and cell.strip().isdecimal() for cell in cells) and any(len(c) > 1 for c in cells)


def checksums(names: Sequence[str]) -> list[int]:
    """Return a checksum of names in their order, and one of them in any."""
    return [zlib.crc32("\n".join(some).encode()) for some in (names, sorted(names))]


def listed(names: Sequence[str]) -> str:
    """Return names for a message, ``t0 ... t29`` of those that are counted through; "" where that is all of them."""
    runs = [list(run) for _, run in groupby(names, lambda name: STEM.sub("", name))]
    if len(runs) == 1 and (len(names) == 1 or STEM.search(names[0])):
        return ""
    shown = [f"{run[0]} ... {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs]
    return ", ".join(shown[:MOST_SHOWN]) + (", ..." if len(shown) > MOST_SHOWN else "")


def spaced(cells: Sequence[Any]) -> Sequence[Any]:
    """Return lists of words, as labels of words come with, as texts; other cells as they are."""
    if not all(isinstance(cell, list) and cell and all(isinstance(word, str) for word in cell) for cell in cells):
        return cells
    return [" ".join("".join(word.split()) or "_" for word in cell) for cell in cells]


def refuse(path: Path, table: Table, name: str, role: str) -> NoReturn:
    """Say that a column that was named is not there."""
    if role == "text" and "," in name:
        raise InputError(
            f"{path}: --text {name}: one column is read; write both texts into one, with the separator of the model "
            "between, such as ' [SEP] '"
        )
    raise InputError(f"{path}: no column {name!r} (--{role}) among {list(table)[:8]}{nearest(name, table)}")


def refuse_unlabelled(path: Path, table: Table, whole: str) -> NoReturn:
    """Say that no column is one of labels, and which may be meant."""
    bare = " (is the line of names missing?)" if any(DECIMAL.fullmatch(name) for name in table) else ""
    words = [name for name, cells in table.items() if name != whole and is_text(cells)]
    name = words[0] if len(words) == 1 else "NAME"
    raise InputError(f"{path}: no column of labels among {list(table)[:8]}{bare}; call it label, or say --label {name}")
