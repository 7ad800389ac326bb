"""The columns of a table: their names in messages, what their cells hold, and their cells as times and values."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.option_fields import typed
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.rows import EMPTY_CELL
from reservoir_pipelines.data.table import SUFFIXES, Table, read_table

# ---- names in options and messages


MAX_SHOWN = 20
"""Most names of columns in a message."""


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message: the first `MAX_SHOWN`, and how many more there are."""
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
    """Refuse a table that has no column of a name.

    Parameters
    ----------
    path : Path
        The table, for messages.
    names : sequence of str
        The names of its columns.
    name : str, optional
        The column that is needed; if it is empty or None, nothing is checked.
    role : str
        The flag that names the column; empty if the column is one that a readout was fitted on.
    fitted : collection of str
        All columns that the readout was fitted on, which the remedy does not suggest in place of the missing one.
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
    # The name may be a list of columns, where only one is allowed, or misspelt.
    listed_names = separated(name)
    names_several_columns = len(listed_names) > 1 and {*listed_names} <= {*names}
    if names_several_columns and role == "label":
        hint = (
            "; several labels of a row are in columns called y0, y1 ...: rename these, and pass no --label"
        )
    elif names_several_columns:
        hint = f"; give one column: add one that joins the cells of {listed(listed_names)}"
    else:
        hint = nearest(name, [other for other in names if other not in fitted])
    raise InputError(problem + hint)


# ---- what cells hold


EMPTY = ("", "na", "n/a", "nan", "null", "none")
"""How tables write an empty cell, in small letters or capitals."""

MOST = 0.5
"""A column holds what more than this share of its filled cells hold; the others are bad rows."""

NUMBERS_OF_WORDS = {"true": "1", "false": "0"} | dict.fromkeys(EMPTY, "nan")
"""Cells, in small letters, that stand for a number, and that number as text; an empty cell is NaN."""


def filled(column: Any) -> Any:
    """Return the cells of a column that are neither missing nor the empty text."""
    cells = column[column.notna()]
    are_numbers = column.dtype.kind in "biuf"  # NumPy's kinds: booleans, integers and floats
    return cells if are_numbers else cells[cells != ""]


def as_written(column: Any) -> Any:
    """Return a column as texts, ``""`` for an empty cell."""
    return column.astype(object).where(column.notna(), "").astype(str)


def as_texts(column: Any) -> Any:
    """Return a column as texts without spaces at their ends, ``""`` for an empty cell."""
    return as_written(column).str.strip()


def holds_lists(column: Any) -> bool:
    """Return whether a cell is a list, as in JSON Lines and Parquet."""
    return column.dtype == object and any(isinstance(cell, list | np.ndarray) for cell in column)


def holds_chats(column: Any) -> bool:
    """Return whether the first list in a column is one of messages, each a mapping with a role."""
    if column.dtype != object:
        return False
    first_list = next((cell for cell in column if isinstance(cell, list | np.ndarray) and len(cell)), None)
    if first_list is None:
        return False
    return all(isinstance(message, dict) and "role" in message for message in first_list)


def holds_single_numbers(table: Table, name: str) -> bool:
    """Return whether most filled cells of a column are a single number.

    Digits like 007, whose zeros may mean something, are not numbers: one such cell is enough.
    """
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return True
    if holds_lists(column):
        return False
    # Empty cells, true and false stand for numbers, but say nothing about the other cells.
    texts = table.with_points(as_texts(column))
    texts = texts[~texts.str.lower().isin(NUMBERS_OF_WORDS)]
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
    are_digits = texts.str.fullmatch(r"\d+").all()
    some_have_several = (texts.str.len() > 1).any()
    return bool(are_digits and some_have_several)


def may_separate_thousands(column: Any) -> bool:
    """Return whether a comma in the cells may separate thousands: every cell with one is like 1,037."""
    texts = as_texts(filled(column))
    with_comma = texts[texts.str.contains(",")]
    return bool(with_comma.str.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+").all())


def holds_words(column: Any) -> bool:
    """Return whether most texts in a column are not made of numbers; False if it has no texts."""
    texts = [cell for cell in filled(column) if isinstance(cell, str)]
    word_count = sum(numbers_of_text(text) is None for text in texts)
    return word_count > MOST * len(texts)


def numbers_of_text(cell: str) -> np.ndarray | None:
    """Return the numbers of a text, (numbers,), or of a JSON list, also (steps, channels); None if it has others.

    The numbers are separated by commas, semicolons or spaces; NumPy's brackets may stand around them.
    """
    if cell.strip().startswith("["):
        with suppress(ValueError, RecursionError):
            return numbers_of_list(json.loads(cell))
        # Brackets without JSON are those of an array as NumPy prints it, with spaces between the numbers.
        cell = cell.strip().strip("[]")
    separator = next((mark for mark in ",;" if mark in cell), None)  # None splits at spaces
    # Integers if all are integers, else floats.
    for kind in (np.int64, np.float64):
        with suppress(ValueError, OverflowError):
            return np.array(cell.split(separator), dtype=kind)
    return None


def numbers_of_list(cell: Any) -> np.ndarray | None:
    """Return a list of numbers, or of lists of one length, as an array of one or two axes with NaN for None.

    Return None for an empty list and for anything else.
    """
    try:
        array = np.asarray(cell)
        # A list with None becomes an array of objects; as a float, None is NaN.
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    are_numbers = array.dtype.kind in "uifb"
    return array if are_numbers and array.ndim in {1, 2} and array.size else None


# ---- cells that name files


KIND_SUFFIXES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
    "recordings": (".csv", ".tsv", ".parquet"),
}
"""Suffixes of files that are one sequence each; a folder is read as the first kind of which it has files."""

FIRST_ROWS = 5
"""Number of first rows that must all name files of one kind if a column holds paths."""


def files_kind(names: Iterable[str]) -> str:
    """Return the kind in `KIND_SUFFIXES` of files with such names; "" if there are none, or of several kinds."""
    lower_names = [name.lower() for name in names]
    if not lower_names:
        return ""
    for kind, suffixes in KIND_SUFFIXES.items():
        if all(name.endswith(suffixes) for name in lower_names):
            return kind
    return ""


def with_slashes(name: str) -> Path:
    """Return the path of a cell; tables from Windows have backslashes."""
    return Path(name.strip().replace("\\", "/"))


def names_files(folder: Path, cells: Any) -> str:
    """Return the kind in `KIND_SUFFIXES` of the files that the first cells name; "" if the folder has none."""
    first_cells = list(cells[:FIRST_ROWS])
    # The system refuses to look for a path that is very long or has a NUL.
    may_be_paths = all(
        isinstance(cell, str) and len(cell) < 1000 and "\0" not in cell for cell in first_cells
    )
    kind = files_kind(cell.strip() for cell in first_cells) if may_be_paths else ""
    if not kind:
        return ""
    some_exist = any((folder / with_slashes(cell)).is_file() for cell in first_cells)
    return kind if some_exist else ""


def named_kind(path: Path) -> str:
    """Return the kind in `KIND_SUFFIXES` of the files that a table names in its first rows; "" for any other path."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return ""
    frame = read_table(path, rows=FIRST_ROWS).frame
    for name in frame:
        kind = names_files(path.parent, filled(frame[name]))
        if kind:
            return kind
    return ""


# ---- times


OTHER_GAP = 1.5
"""Ratio of the time between two rows to the usual one from which a note says that times are not equally spaced."""

UNEQUAL_TIMES = "the times are not equally spaced"
"""Begins this note, so that `predict` finds it among the notes on new rows."""


def times_of(column: Any) -> np.ndarray | None:
    """Return a column of times as an array (rows,) that can be sorted; None for cells that are no times, or missing.

    Times are numbers, or ISO 8601 dates, which become datetime64 in UTC.
    """
    import pandas as pd

    if column.dtype.kind in "iuf":
        return column.to_numpy() if column.notna().all() else None
    # Without a hyphen, pandas would also read numbers such as 2024 as dates.
    if not all(isinstance(cell, str) and "-" in cell for cell in column):
        return None
    times = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    return times.dt.tz_localize(None).to_numpy() if times.notna().all() else None


def sortable_times(table: Table, name: str, *, may_lack_times: bool = False) -> np.ndarray:
    """Return a column of times as `times_of` does; a row with an empty cell is bad, and other cells are refused.

    ``may_lack_times`` says that rows without times would be read in their order, so that the remedy names ``--drop``.
    """
    column = table.frame[name]
    for row in np.flatnonzero(column.isna()):
        table.bad.add(row, f"no time in column {name!r}")
    # An empty cell gets the time of a neighbour, so that the others can be read; its row is bad.
    times = times_of(column.ffill().bfill())
    if times is None:
        remedy = "write ISO 8601 dates such as 2024-12-31 or 2024-12-31T08:00, or numbers"
        if may_lack_times:
            remedy += f", or pass --drop {quote(name)} if the rows are in order"
        raise InputError(_problem_of_times(table, name), remedy)
    return times


def _problem_of_times(table: Table, name: str) -> str:
    """Return why a column of times cannot be sorted: a cell is no time, or some are numbers and others dates."""
    import pandas as pd

    column = table.frame[name]
    rows = np.flatnonzero(column.notna())
    if not len(rows):
        return f"{table.path}: the column {name!r} of times is empty"
    # What each filled cell is when it is read alone. A negative number has a hyphen, too.
    texts = as_texts(column)
    numbers: Any = pd.to_numeric(table.with_points(texts), errors="coerce")
    dates = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    are_numbers = numbers.notna().to_numpy()[rows]
    are_dates = ~are_numbers & (texts.str.contains("-") & dates.notna()).to_numpy()[rows]
    are_other = ~(are_numbers | are_dates)
    are_mixed = are_numbers.any() and are_dates.any()
    if are_mixed and not are_other.any():
        # The first cell that is not like the first of all.
        row = rows[np.argmax(are_numbers != are_numbers[0])]
        first, other = texts[rows[0]][:40], texts[row][:40]
        return (
            f"{table.path}, {table.bad.places[row]}, column {name!r}: numbers and dates are mixed, such as "
            f"{first!r} and {other!r}, which cannot be sorted"
        )
    row = rows[np.argmax(are_other)]
    return f"{table.path}, {table.bad.places[row]}, column {name!r}: times like {texts[row][:40]!r} cannot be sorted"


def notes_on_gaps(times: np.ndarray, sequence: np.ndarray) -> list[str]:
    """Return a note if the times within sequences are not equally spaced.

    A gap is irregular if it differs from the median gap of its sequence by a factor of more than `OTHER_GAP`.

    Parameters
    ----------
    times : array (rows,)
        The time of each row: numbers or datetime64.
    sequence : array (rows,) of int
        The number of the sequence of each row.
    """
    # The gaps between neighbouring times, in order, of the same sequence, and the number of the sequence of each gap.
    order = np.lexsort((times, sequence))
    sorted_times, sorted_sequence = times[order], sequence[order]
    if times.dtype.kind == "M":
        sorted_times = sorted_times.astype("datetime64[ns]")
    is_within_sequence = np.diff(sorted_sequence) == 0
    gaps = np.diff(sorted_times)[is_within_sequence].astype(np.float64)
    sequence_of_gap = sorted_sequence[1:][is_within_sequence]
    if not len(gaps):
        return []
    # The median gap of each sequence. Sorted by sequence and size, the gaps of a sequence begin after those of all
    # sequences before, and its median is in the middle of them. Sequences of one row have no gap.
    by_size = np.lexsort((gaps, sequence_of_gap))
    gap_counts = np.bincount(sequence_of_gap)
    sequences_with_gaps = np.flatnonzero(gap_counts)
    starts = np.cumsum(gap_counts) - gap_counts
    middles = (starts + gap_counts // 2)[sequences_with_gaps]
    usual = np.zeros(len(gap_counts))
    usual[sequences_with_gaps] = gaps[by_size][middles]
    usual_gap = usual[sequence_of_gap]
    is_irregular = (gaps > OTHER_GAP * usual_gap) | (gaps * OTHER_GAP < usual_gap)
    if not is_irregular.any():
        return []
    return [
        f"{UNEQUAL_TIMES}: {is_irregular.sum():,} of {len(gaps):,} steps are more than {OTHER_GAP:g} "
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
    """Return columns of single numbers as floats, (rows, columns); rows with other cells become bad.

    Parameters
    ----------
    table : Table
        The table, whose bad rows are noted in ``table.bad``.
    names : sequence of str
        The columns to read.
    options : OwnDataOptions
        The user's options, for the example in a message.
    fill : bool
        Whether empty cells stay NaN, because they are filled later; else their rows are bad.
    lengths : array (rows,) of int, optional
        The number of columns, from the first, that count in each row; the others are 0. By default all count.
    data : str
        The path of the data if the table is only a part of them.
    """
    # Read column by column. A few cells that are not numbers make their rows bad; if most filled cells are not
    # numbers, the column does not hold values and is refused.
    x = np.empty((len(table.frame), len(names)))
    for column, name in enumerate(names):
        numbers = _numbers_of_column(table, name)
        for row in numbers.other_rows:
            cell = str(table.frame[name][row]).strip()[:40]
            table.bad.add(row, f"{cell!r} is not a number in column {name!r}")
        if len(numbers.other_rows) > MOST * numbers.filled_count:
            first_row = int(numbers.other_rows[0])
            _refuse_column(table, names, name, first_row, options, data or str(table.path))
        x[:, column] = numbers.values
    if lengths is not None:
        x[np.arange(len(names)) >= lengths[:, None]] = 0
    # Infinite and empty cells make a row bad, which is noted with the first of them. Cells that are not numbers are NaN
    # too, but their rows have a reason already, and a row keeps its first reason.
    refuses_empty = not fill
    is_refused = np.isinf(x) | (np.isnan(x) & refuses_empty)
    for row in np.flatnonzero(is_refused.any(axis=1)):
        column = int(np.argmax(is_refused[row]))
        value = x[row, column]
        problem = EMPTY_CELL if np.isnan(value) else f"{value} in column"
        table.bad.add(row, f"{problem} {names[column]!r}")
    return x


class _Numbers(NamedTuple):
    """The numbers in a column: ``values`` (rows,), NaN for cells that are empty or not numbers."""

    values: np.ndarray
    other_rows: np.ndarray  # the rows whose cell is filled, but not a number
    filled_count: int  # number of cells that are not empty


def _numbers_of_column(table: Table, name: str) -> _Numbers:
    """Return the numbers in a column of a table; true and false are 1 and 0."""
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return _Numbers(column.to_numpy(np.float64), np.empty(0, np.int64), len(column))
    texts = table.with_points(as_texts(column).str.lower())
    cells = texts.map(lambda cell: NUMBERS_OF_WORDS.get(cell, cell))
    is_empty = (cells == "nan").to_numpy()  # `NUMBERS_OF_WORDS` gives every empty cell this text
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    other_rows = np.flatnonzero(numbers.isna() & ~is_empty)
    return _Numbers(numbers.to_numpy(np.float64), other_rows, int((~is_empty).sum()))


def _may_be_groups(table: Table, name: str, options: OwnDataOptions) -> bool:
    """Return whether a column may say where each sequence of a table in long form is from, such as its machine.

    Its value is then the same in all rows of a sequence, and some sequences share it. Without groups, sequences of one
    machine would be in several splits.
    """
    if not options.id or options.id not in table.frame or options.group:
        return False
    values_of_sequences = table.frame.groupby(options.id)[name].nunique()
    return bool((values_of_sequences == 1).all()) and 2 < table.frame[name].nunique() < len(
        values_of_sequences
    )


def _refuse_column(
    table: Table, names: Sequence[str], name: str, row: int, options: OwnDataOptions, data: str
) -> NoReturn:
    """Refuse a column that does not hold values, with the flag that says what it probably holds.

    ``names`` are the columns that were to be read as values, ``name`` is the one to refuse, ``row`` has its first cell
    that is not a number, and ``data`` is the path of the data.
    """
    column = table.frame[name]
    cell = str(column[row]).strip()
    no_column_is_numeric = not any(table.frame[other].dtype.kind in "biuf" for other in names)
    # What it probably holds: decimal commas, times, letters or names of files, groups, or else something to leave out.
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
    elif no_column_is_numeric:  # the column of the longest texts, because sequences are longer than names
        mean_lengths = {other: as_texts(table.frame[other]).str.len().mean() for other in names}
        flag, value = "text", max(names, key=mean_lengths.__getitem__)
    elif _may_be_groups(table, name, options):
        flag, value = "group", name
    else:
        flag, value = "drop", ",".join([*separated(options.drop), name])
    command = example(data, options, **{flag: value})
    other_flags = "or the flag of its role (--id, --group, --time or --text)"
    if flag == "group":
        other_flags = f"--drop {quote(name)} to leave it out, {other_flags}"
    raise InputError(
        f"{table.path}, {table.bad.places[row]}: {cell[:40]!r} is not a number in column {name!r}",
        f"write numbers there, or pass --{flag} {quote(value)}, {other_flags}, for example: {command}",
    )
