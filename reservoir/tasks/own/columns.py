"""The role of each column of a table: label, id, time, group, sequence or value; see ``docs/guides/data.md``."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.labels import FEW_CLASSES, read_labels
from reservoir.tasks.own.tables import EMPTY, MAX_TEXT, OR_FILL, SUFFIXES, Table, read_table

USUAL_LABELS = (
    "label", "labels", "y", "class", "target", "category", "fault", "outcome", "diagnosis", "sentiment", "stars",
)  # fmt: skip
"""Usual names of label columns, in lower or upper case."""

SEQUENCES = ("x", "sequence")
IDS = ("id", "series_id", "case")
TIMES = ("time", "t", "step", "timestamp", "date", "datetime")
NAMED_ID = re.compile(r"\w*([_ -](id|ID|Id)|[a-z](Id|ID))|(?i:uuid|guid)")
YEAR_LAST = re.compile(r"^(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?!\d)")
NO_NAME = re.compile(r"Unnamed: \d+|__index_level_\d+__")
MEASURED = r"\W{0,2}\d[\d.,:/-]*\s?\D{0,8}"  # a number, a date, or a number with a unit: 1.2 mV or €1.234,56
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})*")
MIN_COUNTED = 4  # rows that a column needs to be recognised as row numbers, ids or times
MAX_ODD = 0.05  # largest share of labels that are not numbers in a column of targets, without --regression

FILES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
    "recordings": (".csv", ".tsv", ".parquet"),
}
"""Suffixes of files that are one sequence each; a folder is read as the first kind of which it has files."""

MAX_SHOWN, MAX_NAMES = 8, 20  # names in a message, and names of columns that replace a missing one
PEEKED = 5  # number of first rows that must all name files of one kind if a column holds paths


@dataclass
class Roles:
    """The columns of a table by role; "" or an empty list if no column has the role."""

    labels: list[str] = field(default_factory=list)
    id: str = ""
    time: str = ""
    group: str = ""
    sequence: str = ""
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)  # choices of the rules, which are needed to read new data


def text_columns(asked: OwnDataOptions) -> list[str]:
    """Return the names of columns whose cells are read as text, even if they look like numbers."""
    named = (asked.label, asked.id, *separated(asked.id), asked.group, asked.text)
    return [*filter(None, named), *USUAL_LABELS, *SEQUENCES, *IDS, "groups", "split", *(f"y{n}" for n in range(10))]


def choose_roles(table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None) -> Roles:
    """Return the columns by role; remove columns of row numbers, unnamed columns and dropped columns."""
    values = (known or {}).get("columns", ())

    def named(role: str) -> str:
        name = getattr(asked, role) or ""
        if known is None or role == "text":
            require_column(table, name, role if known is None else "")
        return name if name in table.frame else ""

    roles = Roles()
    if asked.id:
        _join_ids(table, asked)
    for name in separated(asked.drop):
        if name in table.frame:
            table.frame.pop(name)
        elif known is None:
            require_column(table, name, "drop")
    roles.labels = [named("label")] if named("label") else usual_labels(table, values, alone=known is None)
    if known is None and not asked.label and len(roles.labels) == 1 and roles.labels[0] not in {"label", "y"}:
        roles.chosen["label"] = roles.labels[0]
    kept = {asked.label, asked.id, asked.time, asked.group, *values}
    for place, name in enumerate(list(table.frame)):
        counts = (name == "index" or (known is None and place == 0)) and name not in {*IDS, *roles.labels}
        reason = "counts the rows" if counts and counts_rows(table.frame[name]) else "has no name"
        if name not in kept and (reason != "has no name" or NO_NAME.fullmatch(name)):
            roles.notes.append(f"the column {name!r} is left out because it {reason}")
            table.frame.pop(name)
    roles.group = named("group") or ("groups" if "groups" in table.frame else "")
    roles.id = named("id")
    if not roles.id:
        taken = {asked.group, asked.text, asked.time, *roles.labels}
        free = [name for name in table.frame if name not in taken]
        roles.id = next((name for name in free if name.lower() in IDS), "")
        roles.id = roles.id or (_unique_id(table, free) if known is None else "")
        roles.chosen |= {"id": roles.id} if roles.id else {}
    roles.sequence = named("text") or _sequence(table, roles, asked.time, known)
    if not roles.labels and known is None:
        _choose_only_other_column(table, roles, asked.time)
    roles.time = named("time")
    return roles


def separated(names: object) -> list[str]:
    """Return the names of columns that an option gives, separated by commas."""
    return [name for name in map(str.strip, str(names or "").split(",")) if name]


def _join_ids(table: Table, asked: OwnDataOptions) -> None:
    """Replace the columns of an id of several, such as ``machine,cycle``, by one, which has the name of the flag."""
    frame, names = table.frame, separated(asked.id)
    if asked.id not in frame and all(name in frame for name in names):
        texts = [frame[name].astype(str).where(frame[name].notna()) for name in names]
        frame[asked.id] = texts[0].str.cat(texts[1:], sep=",")
        table.frame = frame.drop(columns=[*({*names} - {asked.label, asked.group, "groups"})])


def _unique_id(table: Table, names: list[str]) -> str:
    """Return a column with the name of an id and unique cells; refuse a column with such a name and repeated cells."""
    for name in filter(NAMED_ID.fullmatch, names):
        texts = table.frame[name].astype(str)
        if len(texts) < MIN_COUNTED or texts.str.contains(".", regex=False).any():
            continue  # a measured value, such as a mid_id of 0.25
        if texts.is_unique:
            return name
        start, flag = f"{table.path}: the column {name!r} repeats the same ids; pass --id", quote(name)
        whole = f"--group {flag} if each row is a whole sequence"
        raise InputError(f"{start} {flag} if all rows of an id are one sequence, {whole}, or --drop {flag}")
    return ""


def _choose_only_other_column(table: Table, roles: Roles, time: str | None) -> None:
    """Choose the only column besides a sequence as the label; refuse a table with none or several."""
    others = [name for name in _free(table, roles, time) if name != roles.sequence]
    if not roles.sequence or len(others) != 1 or (is_text(table.frame[others[0]]) and table.frame[others[0]].is_unique):
        different = {name: table.frame[name].astype(str).nunique() for name in others}
        few = [name for name in others if is_text(table.frame[name]) or 1 < different[name] <= FEW_CLASSES]
        refuse_unlabelled(table, others if roles.sequence else few)
    roles.labels = others
    roles.chosen["label"] = others[0]
    roles.notes.append(f"the column {others[0]!r} is the label")


def _free(table: Table, roles: Roles, time: str | None) -> list[str]:
    """Return the columns without a role."""
    taken = {*roles.labels, roles.id, roles.group, "split", time}
    taken |= {name for name in table.frame if name.lower() in TIMES and are_times(table.frame[name])}
    return [name for name in table.frame if name not in taken]


def _sequence(table: Table, roles: Roles, time: str | None, known: Mapping[str, Any] | None) -> str:
    """Return the column that holds whole sequences, or ""."""
    frame, values = table.frame, (known or {}).get("columns", ())
    rest = _free(table, roles, time)
    for name in [name for name in SEQUENCES if name in rest and name not in values]:
        if len(rest) == 1 or not is_number(frame[name]):  # else x is one value of several, as in x, y, z
            return name
    paths = [name for name in rest if names_files(table.path.parent, filled(frame[name]))]
    if len(paths) == 1:
        roles.chosen["text"] = paths[0]
        return paths[0]
    two_columns = known is None and not roles.labels and len(rest) == 2
    numbers = [name for name in rest if is_sequences(frame[name])] if two_columns or len(rest) == 1 else []
    if known is None and len(numbers) == 1:
        return numbers[0]
    texts = [name for name in rest if is_text(frame[name])]
    mostly_different = len(texts) == 1 and 2 * frame[texts[0]].nunique() > len(frame)
    if not texts or not (len(texts) == len(rest) or (two_columns and mostly_different)):
        return ""
    text = max(texts, key=lambda name: int(frame[name].astype(str).str.len().sum()))
    cells = filled(frame[text]).astype(str).str.strip()
    if known is None and cells.str.fullmatch(MEASURED).mean() > MAX_TEXT:
        problem = f"{table.path}: most cells of {text!r} are numbers with units, or dates, such as {cells.iloc[-1]!r}"
        raise InputError(f"{problem}; remove units, lines of units and dates, or pass --text NAME to read letters")
    roles.chosen["text"] = text
    return text


def usual_labels(table: Table, others: Collection[str], *, alone: bool) -> list[str]:
    """Return columns with usual names of labels, except ``others``; if ``alone``, refuse to choose among several."""
    places = {"x", "y", "z"} <= set(table.frame) and is_number(table.frame["x"])
    free = [name for name in table.frame if name not in others and not (places and name == "y")]
    outputs = [name for name in free if re.fullmatch(r"y\d+", name)]
    usual = [name for name in free if name.lower() in USUAL_LABELS]
    if usual and len(usual + outputs) > 1 and alone:
        problem = f"{table.path}: labels may be in the columns {usual + outputs}"
        raise InputError(f"{problem}; pass --label NAME, and --drop the columns that are not values")
    return usual[:1] or outputs


def choose_labels(table: Table, asked: OwnDataOptions, key: str, *, new: bool) -> list[str]:
    """Return the columns of labels in a table of labels, whose column ``key`` names the files or records."""
    if asked.label:
        require_column(table, asked.label, "" if new else "label")
        return [asked.label]
    rest = [name for name in table.frame if name not in {key, asked.group, "groups", "split"}]
    found = usual_labels(table, {key}, alone=not new)
    if not found and len(rest) != 1:
        refuse_unlabelled(table, rest, "call it 'label'" if new else "")
    return found or rest


def time_of_rows(table: Table, *, has_ids: bool) -> str:
    """Return the column of times of rows that are whole sequences; refuse a column whose times repeat."""
    for name in [name for name in table.frame if name.lower() in TIMES]:
        texts = table.frame[name].astype(str)
        repeated = 2 * texts.nunique() <= len(texts) and not texts.str.contains(".", regex=False).any()
        if repeated and not has_ids:
            start = f"{table.path}: the column {name!r} repeats the same times, as in long form, but no column"
            raise InputError(f"{start} is called id; pass --id NAME, or --drop {quote(name)}")
        if are_times(table.frame[name]):
            return name
    return ""


def require_column(table: Table, name: str | None, role: str = "", known: Collection[str] = ()) -> None:
    """Refuse a table without a column (if any) that the flag ``role`` names, or that a readout needs (``known``)."""
    names = list(table.frame)
    if not name or name in names:
        return
    name = next((part for part in separated(name) if part not in names), name)  # of an id of several columns
    who = f" (--{role})" if role else ", which the readout was fitted on,"
    remedy = "" if role else f"; rename the column that holds it to {name!r}"
    close = nearest(name, [other for other in names if other not in known])
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    raise InputError(f"{table.path}: no column {name!r}{who} among {names[:MAX_NAMES]}{more}{remedy}{close}")


def refuse_unlabelled(table: Table, names: Collection[str], remedy: str = "") -> NoReturn:
    """Refuse a table without a column of labels; suggest those of ``names`` that are not unique texts."""
    frame = table.frame
    missing = " (is the header line missing?)" if any(re.fullmatch(r"-?\d+\.\d+", name) for name in frame) else ""
    flags = [f"--label {quote(name)}" for name in names if not (is_text(frame[name]) and frame[name].is_unique)]
    remedy = remedy or "pass " + (" or ".join(flags[:MAX_SHOWN]) or "--label NAME")
    raise InputError(f"{table.path}: no column of labels among {list(frame)}{missing}; {remedy}")


def listed(names: Sequence[str]) -> str:
    """Return the first few names as text, for a message."""
    return ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")


def number_notes(commas: Sequence[str], percents: Sequence[str] = ()) -> list[str]:
    """Return lines that name the columns whose decimal commas were read as points, or percent signs removed."""
    remedy = "pass --decimal . if they are something else"
    notes = [f"commas are read as decimal points in {listed(commas)}; {remedy}"] if commas else []
    return notes + [f"percent signs are removed in {listed(percents)}: 12.3% is read as 12.3"] * bool(percents)


def files_kind(names: Iterable[str]) -> str:
    """Return the kind in `FILES` that has the suffixes of all names; else ""."""
    lower = [name.lower() for name in names]
    return next((kind for kind, ends in FILES.items() if lower and all(name.endswith(ends) for name in lower)), "")


def with_slashes(name: str) -> Path:
    """Return the path of a cell; tables from Windows have backslashes."""
    return Path(name.strip().replace("\\", "/"))


def names_files(folder: Path, cells: Any) -> str:
    """Return the kind of files that the first cells name, by their suffixes; "" if no such file is in the folder."""
    cells = list(cells[:PEEKED])
    if not all(isinstance(cell, str) and len(cell) < 1000 and "\0" not in cell for cell in cells):
        return ""
    kind = files_kind(cell.strip() for cell in cells)
    return kind if kind and any((folder / with_slashes(cell)).is_file() for cell in cells) else ""


def named_kind(path: Path) -> str:
    """Return the kind of files that a table names in its first rows; "" for other tables."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return ""
    table = read_table(path, rows=PEEKED)
    columns = (filled(table.frame[name]) for name in table.frame)
    return next(filter(None, (names_files(path.parent, column) for column in columns)), "")


def filled(column: Any) -> Any:
    """Return the cells of a column that are not empty."""
    given = column[column.notna()]
    return given[given != ""] if given.dtype.kind not in "biuf" else given


def is_text(column: Any) -> bool:
    """Return whether a column holds texts: its first filled cell is a text that is not made of numbers."""
    first = next(iter(filled(column)), None)
    return isinstance(first, str) and first.strip().lower() not in EMPTY and as_numbers(first) is None


def is_number(column: Any) -> bool:
    """Return whether each filled cell is one number; 007 is not, because its zeros may mean something."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return True
    cells = filled(column)
    if any(isinstance(cell, list) or re.fullmatch(r"0\d+", str(cell).strip()) for cell in cells):
        return False
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    return bool(numbers.notna().all())


def is_sequences(column: Any) -> bool:
    """Return whether each cell is a sequence: a list or a text of numbers, of which at least one has several."""
    cells = filled(column)
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if not texts:
        return any(isinstance(cell, list) for cell in cells)
    several = any(re.search(r"[\s,;\[]", text) for text in texts) and not all(map(THOUSANDS.fullmatch, texts))
    return several and all(as_numbers(text) is not None for text in texts)


def is_digits(column: Any) -> bool:
    """Return whether the cells are strings of digits without separators, which are read as letters."""
    cells = filled(column)
    digits = all(isinstance(cell, str) and cell.strip().isdecimal() for cell in cells)
    return digits and any(len(cell) > 1 for cell in cells)


def counts_rows(column: Any) -> bool:
    """Return whether cells are row numbers, from 0 or 1."""
    texts, rows = column.astype(str).tolist(), len(column)
    return rows >= MIN_COUNTED and any(texts == [str(row + first) for row in range(rows)] for first in (0, 1))


def are_times(column: Any) -> bool:
    """Return whether cells are dates, or strictly increasing numbers."""
    if column.dtype.kind in "iuf":
        return len(column) >= MIN_COUNTED and bool((np.diff(column.to_numpy()) > 0).all())
    return times_of(column) is not None


def times_of(column: Any) -> np.ndarray | None:
    """Return numbers, or dates in UTC, as an array that can be sorted, (rows,); None for other cells.

    Dates have the form of ISO 8601, or the day or month first, as in 14.10.2025. If the cells do not show which of the
    two is first, they are sorted only if both readings give the same order.
    """
    import pandas as pd

    if column.dtype.kind in "iuf":
        return column.to_numpy() if column.notna().all() else None
    if not all(isinstance(cell, str) and ("-" in cell or YEAR_LAST.match(cell)) for cell in column):
        return None
    found = []
    for form in (r"\3-\2-\1", r"\3-\1-\2") if YEAR_LAST.match(next(iter(column), "")) else ("",):
        dates = column.str.replace(YEAR_LAST, form, regex=True)
        times = pd.to_datetime(dates, format="ISO8601", utc=True, errors="coerce")
        found += [] if times.isna().any() else [times.dt.tz_localize(None).to_numpy()]
    order = [np.unique(times, return_inverse=True)[1] for times in found]
    return found[0] if found and (order[0] == order[-1]).all() else None


def in_order(table: Table, name: str, *, new: bool) -> tuple[Table, float]:
    """Return the rows of a recording sorted by a column of times, and the median step, for dates in seconds.

    Times may repeat only if they are in order. If they cannot be sorted, rows keep their order, and the step is NaN.
    """
    times = times_of(table.frame[name])
    if times is None:
        return table, np.nan
    if (times[1:] < times[:-1]).any():
        if len(np.unique(times)) < len(times):
            or_drop = "" if new else f", or pass --drop {quote(name)} if they are sorted"
            raise InputError(f"{table.path}: the times in {name!r} repeat and are not in order; sort the rows{or_drop}")
        order = np.argsort(times)
        table, times = table.take(order.tolist()), times[order]
    steps = np.diff(times) / (np.timedelta64(1, "s") if times.dtype.kind == "M" else 1)
    return table, float(np.median(steps)) if len(steps) else 0.0


def as_numbers(cell: str) -> np.ndarray | None:
    """Return the numbers of a text: a JSON list, or separated by spaces, commas or semicolons; else None."""
    if cell.strip().startswith("["):
        with suppress(ValueError, RecursionError):
            return as_sequence(json.loads(cell))
        cell = cell.strip().strip("[]")  # as NumPy prints an array
    between = next((mark for mark in ",;" if mark in cell), None)
    for kind in (np.int64, np.float64):
        with suppress(ValueError, OverflowError):
            return np.array(cell.split(between), dtype=kind)
    return None


def as_sequence(cell: Any) -> np.ndarray | None:
    """Return a list of numbers, or of lists of one length, as an array with NaN for None; None for anything else."""
    try:
        array = np.asarray(cell)
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "uifb" and array.ndim in {1, 2} and array.size else None


def values_of(
    table: Table, names: Sequence[str], *, fill: bool, new: bool, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Return columns of single numbers as floats (rows, columns), 0 after ``lengths``; with ``fill``, NaN if empty.

    Messages about ``new`` rows, which a saved readout reads, name no flags of `extract`.
    """
    import pandas as pd

    columns = []
    for name in names:
        table.check_dots(name, new=new)
        column = table.frame[name]
        if column.dtype.kind in "biuf":
            columns.append(column.to_numpy(np.float64))
            continue
        texts = column.astype(object).where(column.notna(), "").map(lambda cell: str(cell).strip())
        lower = texts.str.lower()
        empty = lower.isin(EMPTY)
        switches = texts.mask(empty, "nan").mask(lower == "true", "1").mask(lower == "false", "0")
        numbers: Any = pd.to_numeric(switches, errors="coerce")
        wrong = (numbers.isna() & ~empty).to_numpy()
        if wrong.sum() > MAX_TEXT * (~empty).sum():
            row = int(np.argmax(wrong))
            others = [name] if is_sequences(column) else [other for other in names if is_text(table.frame[other])]
            text = max(others, key=lambda other: table.frame[other].astype(str).str.len().sum(), default=name)
            dates = times_of(column) is not None
            or_time = f"pass --time {quote(name)} if the rows are steps in time, or " if dates else ""
            # Recordings, which are read without --skip-bad-rows, take no --text either.
            no_text = table.bad.skip is None or (dates and text == name)
            or_else = "" if no_text else f", or pass --text {quote(text)} if the texts are the data"
            drop = f"{or_time}leave the column out with --drop {quote(name)}{or_else}"
            problem = f"{table.path}, {table.bad.places[row]}: {texts[row][:40]!r} is not a number in column {name!r}"
            raise InputError(f"{problem}; {'write numbers there' if new else drop}")
        for row in np.flatnonzero(wrong):
            table.bad.add(row, f"{texts[row][:40]!r} is not a number in column {name!r}", "fix the cell")
        columns.append(numbers.to_numpy(np.float64))
    x = np.stack(columns, axis=1)
    if lengths is not None:
        x[np.arange(len(names)) >= lengths[:, None]] = 0
    wrong = np.isinf(x) | (np.isnan(x) & (not fill))
    for row in np.flatnonzero(wrong.any(axis=1)):
        place = int(np.argmax(wrong[row]))
        if np.isnan(x[row, place]):
            table.bad.add(row, f"an empty cell in column {names[place]!r}", "fill it" + ("" if new else OR_FILL))
        else:
            table.bad.add(row, f"column {names[place]!r} is {x[row, place]}", "fix the cell")
    return x


def joined_labels(table: Table, names: Sequence[str], asked: OwnDataOptions, *, required: bool) -> np.ndarray:
    """Return columns of labels, (rows,) or (rows, outputs); refuse texts and numbers that are not whole together."""
    found = [labels_of(table, name, asked, required=required) for name in names]
    texts = [name for name, y in zip(names, found, strict=True) if y.dtype.kind == "U"]
    numbers = [name for name, y in zip(names, found, strict=True) if y.dtype.kind == "f" and (y % 1 != 0).any()]
    if texts and numbers:
        problem = f"{table.path}: the label {texts[0]!r} has classes, but {numbers[0]!r} has numbers that are not whole"
        raise InputError(f"{problem}; fit one at a time, with --label {quote(texts[0])} --drop {quote(numbers[0])}")
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def labels_of(table: Table, name: str, asked: OwnDataOptions, *, required: bool) -> np.ndarray:
    """Return a column of labels as `typed` does; an empty or odd cell is a bad row if labels are ``required``."""
    column = table.frame[name].astype(object)
    texts = column.where(column.notna(), "").astype(str).str.strip()
    given = (texts != "").to_numpy(copy=True)
    for row in np.flatnonzero(~given) if required else ():
        table.bad.add(row, f"no label in column {name!r}")
    for row in np.flatnonzero(given)[_odd_labels(texts[given], asked)] if required else ():
        table.bad.add(row, f"the label {texts[row][:40]!r} in column {name!r} is not a finite number", "fix the cell")
        given[row] = False
    labels = typed(f"{table.path}, column {name!r}", column[given].tolist())
    if labels.dtype.kind == "f":
        table.check_dots(name, new=not required)
    shape = (len(given), *labels.shape[1:])
    full = np.zeros_like(labels, shape=shape) if required or given.all() else np.full(shape, None, object)
    full[given] = labels
    return full


def _odd_labels(texts: Any, asked: OwnDataOptions) -> np.ndarray:
    """Return which labels are not finite numbers, (rows,); none if the labels are names, or many are words."""
    import pandas as pd

    numbers = np.asarray(pd.to_numeric(texts, errors="coerce"), np.float64)
    odd, words = ~np.isfinite(numbers), np.isnan(numbers) & (texts.str.lower() != "nan")
    found, whole = np.unique(numbers[~odd]), bool((numbers[~odd] % 1 == 0).all())
    names = asked.classes or len(found) <= FEW_CLASSES or (whole and read_labels(numbers[~odd]).names)
    return odd & (words.mean() <= (MAX_TEXT if asked.regression else 0 if names else MAX_ODD))


def typed(where: str, cells: Sequence[Any]) -> np.ndarray:
    """Return cells as integers, else as floats, else as texts: (rows,), or (rows, n) for lists of one length."""
    if all(isinstance(cell, str) for cell in cells):
        for kind in (int, float):
            with suppress(ValueError, OverflowError):
                return np.array([kind(cell) for cell in cells])
        return np.array([cell.strip() for cell in cells], dtype=str)
    try:
        array = np.array(list(cells))
    except (ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biufU":
        raise InputError(f"{where}: labels are not all numbers, all texts, or lists of one length; use one form")
    return array
