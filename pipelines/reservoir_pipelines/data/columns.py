"""The columns of a table: their names in messages, what their cells hold, and their cells as times and values."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.option_fields import typed
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.rows import EMPTY_CELL
from reservoir_pipelines.data.table import SUFFIXES, Table, read_table

# ---- names in options and messages


MAX_SHOWN = 20
"""Number of names of columns in a message."""


def listed(names: Sequence[str]) -> str:
    """Return the first names as text, for a message."""
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def separated(names: object) -> list[str]:
    """Return the names of columns that an option gives, separated by commas."""
    return [name for name in map(str.strip, str(names or "").split(",")) if name]


def example(path: Path | str, options: OwnDataOptions, **changes: Any) -> str:
    """Return the command that reads a file with the user's options and these changes, to copy from a message."""
    return typed("extract", [str(path)], replace(options, **changes))


def require_column(
    path: Path, names: Sequence[str], name: str | None, role: str = "", fitted: Collection[str] = ()
) -> None:
    """Refuse a table without a column (if any) that the flag ``role`` names, or that a readout needs.

    ``fitted`` are the columns that the readout has, so the remedy does not suggest them.
    """
    if not name or name in names:
        return
    if role:
        problem = f"{path}: no column {name!r} (--{role}) among {listed(names)}"
    else:
        problem = (
            f"{path}: no column {name!r}, which the readout was fitted on, among {listed(names)}; "
            f"rename the column that holds it to {name!r}"
        )
    parts = separated(name)
    names_several = len(parts) > 1 and {*parts} <= {*names}
    if names_several:
        hint = f"; give one column: add one that joins the cells of {listed(parts)}"
    else:
        hint = nearest(name, [other for other in names if other not in fitted])
    raise InputError(problem + hint)


# ---- what cells hold


EMPTY = ("", "na", "n/a", "nan", "null", "none")
"""How tables write an empty cell, in small letters or capitals."""

MOST = 0.5
"""A column holds what more than this share of its filled cells hold; the others are bad rows."""

SWITCHES = {"true": "1", "false": "0"} | dict.fromkeys(EMPTY, "nan")  # cells that stand for a number


def filled(column: Any) -> Any:
    """Return the cells of a column that are not empty."""
    cells = column[column.notna()]
    are_numbers = column.dtype.kind in "biuf"  # NumPy's kinds: booleans, integers and floats
    return cells if are_numbers else cells[cells != ""]


def as_texts(column: Any) -> Any:
    """Return a column as texts without spaces at their ends, ``""`` for an empty cell."""
    return column.astype(object).where(column.notna(), "").astype(str).str.strip()


def holds_lists(column: Any) -> bool:
    """Return whether a cell is a list, as in JSON Lines and Parquet."""
    return column.dtype == object and any(isinstance(cell, list | np.ndarray) for cell in column)


def holds_chats(column: Any) -> bool:
    """Return whether the first filled cell is a list of messages, each a mapping with a role."""
    if column.dtype != object:
        return False
    first = next((cell for cell in column if isinstance(cell, list | np.ndarray) and len(cell)), [])
    return all(isinstance(message, dict) and "role" in message for message in first) and len(first) > 0


def holds_single_numbers(table: Table, name: str) -> bool:
    """Return whether most filled cells are one number; not if one is like 007, whose zeros may mean something."""
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return True
    if holds_lists(column):
        return False
    # Empty cells, true and false say nothing about the others.
    texts = table.with_points(as_texts(column))
    texts = texts[~texts.str.lower().isin(SWITCHES)]
    if not len(texts):
        return True
    numbers: Any = pd.to_numeric(texts, errors="coerce")
    most_are_numbers = numbers.notna().mean() > MOST
    has_leading_zeros = texts.str.match(r"0\d").any()
    return bool(most_are_numbers and not has_leading_zeros)


def holds_sequences(column: Any) -> bool:
    """Return whether a cell is a list, or all filled cells are texts of numbers and at least one has a separator."""
    if holds_lists(column):
        return True
    texts = as_texts(filled(column))
    # A bracket counts as a separator: it begins a list, also one of a single number.
    has_separator = bool(texts.str.contains(r"[\s,;\[]").any())
    return has_separator and all(numbers_of_text(text) is not None for text in texts)


def holds_digits(column: Any) -> bool:
    """Return whether the cells are strings of digits without separators, such as 0110, which are letters."""
    texts = as_texts(filled(column))
    return bool(texts.str.fullmatch(r"\d+").all() and (texts.str.len() > 1).any())


def may_separate_thousands(column: Any) -> bool:
    """Return whether a comma in the cells may separate thousands: every cell with one is like 1,037."""
    texts = as_texts(filled(column))
    with_comma = texts[texts.str.contains(",")]
    return bool(with_comma.str.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+").all())


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
    separator = next((mark for mark in ",;" if mark in cell), None)  # None splits at spaces
    for kind in (np.int64, np.float64):
        with suppress(ValueError, OverflowError):
            return np.array(cell.split(separator), dtype=kind)
    return None


def numbers_of_list(cell: Any) -> np.ndarray | None:
    """Return a list of numbers, or of lists of one length, as an array with NaN for None; else None."""
    try:
        array = np.asarray(cell)
        # A list with None becomes an array of objects; as a float, None is NaN.
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    are_numbers = array.dtype.kind in "uifb"
    return array if are_numbers and array.ndim in {1, 2} and array.size else None


# ---- cells that name files


FILES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
    "recordings": (".csv", ".tsv", ".parquet"),
}
"""Suffixes of files that are one sequence each; a folder is read as the first kind of which it has files."""

FIRST_ROWS = 5
"""Number of first rows that must all name files of one kind if a column holds paths."""


def files_kind(names: Iterable[str]) -> str:
    """Return the kind in `FILES` that has the suffixes of all names; else ""."""
    lower = [name.lower() for name in names]
    for kind, suffixes in FILES.items():
        if lower and all(name.endswith(suffixes) for name in lower):
            return kind
    return ""


def with_slashes(name: str) -> Path:
    """Return the path of a cell; tables from Windows have backslashes."""
    return Path(name.strip().replace("\\", "/"))


def names_files(folder: Path, cells: Any) -> str:
    """Return the kind of files that the first cells name; "" if no such file is in the folder."""
    # The system refuses to look for a path that is very long or has a NUL.
    cells = list(cells[:FIRST_ROWS])
    if not all(isinstance(cell, str) and len(cell) < 1000 and "\0" not in cell for cell in cells):
        return ""
    kind = files_kind(cell.strip() for cell in cells)
    exists = kind and any((folder / with_slashes(cell)).is_file() for cell in cells)
    return kind if exists else ""


def named_kind(path: Path) -> str:
    """Return the kind of files that a table names in its first rows; "" for other tables."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return ""
    frame = read_table(path, rows=FIRST_ROWS).frame
    kinds = (names_files(path.parent, filled(frame[name])) for name in frame)
    return next(filter(None, kinds), "")


# ---- times


OTHER_GAP = 1.5
"""Ratio of the time between two rows to the usual one from which a note says that times are not equally spaced."""


def times_of(column: Any) -> np.ndarray | None:
    """Return numbers, or ISO 8601 dates in UTC, as a sortable array, (rows,); None for other cells."""
    import pandas as pd

    if column.dtype.kind in "iuf":
        return column.to_numpy() if column.notna().all() else None
    if not all(isinstance(cell, str) and "-" in cell for cell in column):
        return None
    times = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    return times.dt.tz_localize(None).to_numpy() if times.notna().all() else None


def sortable_times(table: Table, name: str) -> np.ndarray:
    """Return a column of times as `times_of` does; an empty cell is a bad row, and other cells are refused."""
    column = table.frame[name]
    for row in np.flatnonzero(column.isna()):
        table.bad.add(row, f"no time in column {name!r}")
    # An empty cell gets the time of a neighbour, so that the others can be read; its row is bad.
    times = times_of(column.ffill().bfill())
    if times is None:
        first = str(next(iter(filled(column)), ""))[:40]
        raise InputError(
            f"{table.path}, column {name!r}: times like {first!r} cannot be sorted",
            f"write ISO 8601 dates such as 2024-12-31, or numbers, or pass --drop {quote(name)} "
            "if the rows are in order",
        )
    return times


def notes_on_gaps(times: np.ndarray, member: np.ndarray) -> list[str]:
    """Return a note if the ``times`` (rows,) of the sequences ``member`` (rows,) of int are not equally spaced.

    A gap is irregular if it differs from the median gap of its sequence by a factor of more than `OTHER_GAP`.
    """
    # The gaps between neighbouring times of the same sequence, with the number of the sequence of each gap.
    order = np.lexsort((times, member))
    same_sequence = np.diff(member[order]) == 0
    gaps = np.diff(times[order].astype("datetime64[ns]") if times.dtype.kind == "M" else times[order])
    gaps, sequence = gaps[same_sequence].astype(np.float64), member[order][1:][same_sequence]
    if not len(gaps):
        return []
    # The median of each sequence: sorted by sequence and gap, it is in the middle of the rows of the sequence.
    by_size = np.lexsort((gaps, sequence))
    counts = np.bincount(sequence)
    present = np.flatnonzero(counts)
    middles = (np.cumsum(counts) - counts + counts // 2)[present]
    usual = np.zeros(len(counts))
    usual[present] = gaps[by_size][middles]
    is_irregular = (gaps > OTHER_GAP * usual[sequence]) | (gaps * OTHER_GAP < usual[sequence])
    if not is_irregular.any():
        return []
    return [
        f"the times are not equally spaced: {is_irregular.sum():,} of {len(gaps):,} steps are more than {OTHER_GAP:g} "
        "times as long, or as short, as the usual step. The features take all steps for equal: interpolate the values "
        "at equal times, or add the time since the row before as a column"
    ]


# ---- values


def values_of(
    table: Table,
    names: Sequence[str],
    options: OwnDataOptions,
    *,
    fill: bool,
    lengths: np.ndarray | None = None,
    data: str = "",
) -> np.ndarray:
    """Return columns of single numbers as floats (rows, columns), 0 after ``lengths`` (rows,).

    An infinite number, and an empty cell unless ``fill`` keeps it as NaN, make the row bad. ``data`` is
    the path of the data if the table is only a part of it.
    """
    # Read column by column. A few cells that are not numbers make their rows bad; if most filled cells are not
    # numbers, the column does not hold values and is refused.
    x = np.empty((len(table.frame), len(names)))
    for place, name in enumerate(names):
        numbers, not_numbers, filled_cells = _numbers_of_column(table, name)
        for row in not_numbers:
            cell = str(table.frame[name][row]).strip()[:40]
            table.bad.add(row, f"{cell!r} is not a number in column {name!r}")
        if len(not_numbers) > MOST * filled_cells:
            _refuse_column(table, names, name, int(not_numbers[0]), options, data or str(table.path))
        x[:, place] = numbers
    if lengths is not None:
        x[np.arange(len(names)) >= lengths[:, None]] = 0
    # Infinite and empty cells make a row bad, which is noted with the first of them. Cells that are not numbers are NaN
    # too, but their rows have a reason already, and a row keeps its first reason.
    refuses_empty = not fill
    is_refused = np.isinf(x) | (np.isnan(x) & refuses_empty)
    for row in np.flatnonzero(is_refused.any(axis=1)):
        place = int(np.argmax(is_refused[row]))
        problem = EMPTY_CELL if np.isnan(x[row, place]) else f"{x[row, place]} in column"
        table.bad.add(row, f"{problem} {names[place]!r}")
    return x


def _numbers_of_column(table: Table, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a column as floats, the rows whose cell is not a number, and the number of filled cells."""
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64), np.empty(0, np.int64), len(column)
    texts = table.with_points(as_texts(column).str.lower())
    cells = texts.map(lambda cell: SWITCHES.get(cell, cell))
    is_empty = (cells == "nan").to_numpy()  # `SWITCHES` gives every empty cell this text
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    not_numbers = np.flatnonzero(numbers.isna() & ~is_empty)
    return numbers.to_numpy(np.float64), not_numbers, int((~is_empty).sum())


def _refuse_column(
    table: Table, names: Sequence[str], name: str, row: int, options: OwnDataOptions, data: str
) -> NoReturn:
    """Refuse a column that does not hold values, with the flag that says what it probably holds."""
    column = table.frame[name]
    cell = str(column[row]).strip()
    only_texts = not any(table.frame[other].dtype.kind in "biuf" for other in names)
    # What it probably holds: decimal commas, times, letters or names of files, or else something to leave out.
    has_commas = re.fullmatch(r"[-+]?\d+(,\d+)+", cell)
    if has_commas and table.decimal == ".":
        if may_separate_thousands(column):  # 1,037 is read in two ways, of which no example may choose one
            raise InputError(
                f"{table.path}, {table.bad.places[row]}: the comma of {cell[:40]!r} in column {name!r} may separate "
                "thousands",
                "remove such commas, or pass --decimal , if they are decimal marks",
            )
        flag, value = "decimal", ","
    elif times_of(column) is not None:
        flag, value = "time", name
    elif names_files(table.path.parent, filled(column)):
        flag, value = "text", name
    elif only_texts:  # sequences are longer than names
        flag, value = "text", max(names, key=lambda other: as_texts(table.frame[other]).str.len().mean())
    else:
        flag, value = "drop", ",".join([*separated(options.drop), name])
    command = example(data, options, **{flag: value})
    other_flags = "or the flag of its role (--id, --group, --time or --text)"
    raise InputError(
        f"{table.path}, {table.bad.places[row]}: {cell[:40]!r} is not a number in column {name!r}",
        f"write numbers there, or pass --{flag} {quote(value)}, {other_flags}, for example: {command}",
    )
