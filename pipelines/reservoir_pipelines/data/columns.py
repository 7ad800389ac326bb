"""The role of each column of a table: label, id, time, group, sequence or value; see ``docs/guides/data.md``."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.labels import are_numbers, is_large, read_labels, written_numbers
from reservoir_pipelines.data.tables import (
    EMPTY,
    EMPTY_CELL,
    MAX_TEXT,
    SUFFIXES,
    THOUSANDS,
    Table,
    read_table,
)

USUAL_LABELS = (
    "label", "labels", "y", "class", "target", "category", "fault", "outcome", "diagnosis", "sentiment", "stars",
)  # fmt: skip
"""Usual names of label columns, in lower or upper case."""

SEQUENCES = ("x", "sequence")
IDS = ("id", "series_id", "case")
TIMES = ("time", "t", "step", "timestamp", "date", "datetime")
NAMED_ID = re.compile(r"\w*([_ -](id|ID|Id)|[a-z](Id|ID))|(?i:uuid|guid)")
NO_NAME = re.compile(r"Unnamed: \d+|__index_level_\d+__")
# a number, a date, or a number with a unit: 1.2 mV or €1.234,56
MEASURED = r"\W{0,2}\d[\d.,:/-]*\s?\D{0,8}"
DIGITS = r"[-+]?[0-9][0-9.,]*"
MAX_OUTPUTS = 1000  # columns y0, y1 ... whose cells are read as text
MIN_COUNTED = 4  # rows that a column needs to be recognised as row numbers or times
# Dates with dots name the day first. Dates with slashes are refused, because 1/2/2026 has two meanings.
DATES = ("ISO8601", *(f"%d.%m.%Y{clock}" for clock in ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")))
SWITCHES = {"true": "1", "false": "0"} | dict.fromkeys(EMPTY, "nan")  # cells that stand for a number

FILES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
    "recordings": (".csv", ".tsv", ".parquet"),
}
"""Suffixes of files that are one sequence each; a folder is read as the first kind of which it has files."""

MAX_SHOWN = 20  # names of columns in a message
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
    # choices of the rules, which are needed to read new data
    chosen: dict[str, Any] = field(default_factory=dict)


def text_columns(asked: OwnDataOptions) -> list[str]:
    """Return the names of columns whose cells are read as text, even if they look like numbers."""
    named = filter(None, (asked.label, asked.id, asked.group, asked.text))
    outputs = [f"y{n}" for n in range(MAX_OUTPUTS)]
    return [*named, *USUAL_LABELS, *SEQUENCES, *IDS, "groups", "split", *outputs]


def choose_roles(table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None) -> Roles:
    """Return the columns by role; remove unnamed, dropped and row-number columns."""
    frame, values = table.frame, (known or {}).get("columns", ())

    def named(role: str) -> str:
        name = getattr(asked, role) or ""
        if known is None or role == "text":
            require_column(table, name, role if known is None else "")
        return name if name in frame else ""

    roles = Roles()
    for name in separated(asked.drop):
        require_column(table, name if known is None else None, "drop")
        if name in frame:
            frame.pop(name)
    others = {*values, asked.text or ""}
    roles.labels = [named("label")] if named("label") else usual_labels(table, others, alone=known is None)
    if (
        known is None
        and not asked.label
        and len(roles.labels) == 1
        and roles.labels[0] not in {"label", "y"}
    ):
        roles.chosen["label"] = roles.labels[0]
    _leave_out(frame, roles, {asked.label, asked.id, asked.time, asked.group, *values, *roles.labels, *IDS})
    roles.group = named("group") or ("groups" if "groups" in frame else "")
    roles.id = named("id")
    if not roles.id and (
        name := _id_column(table, {asked.group, asked.text, asked.time, *roles.labels}, known)
    ):
        roles.id = roles.chosen["id"] = name
    taken = {*roles.labels, roles.id, roles.group, "split", asked.time}
    taken |= {name for name in frame if name.lower() in TIMES and are_times(frame[name])}
    rest = [name for name in frame if name not in taken]
    label = _only_other_column(frame, rest) if known is None and not roles.labels else ""
    if label:
        frame[label] = _as_written(table, label, asked)
        roles.labels = [label]
        roles.chosen["label"] = label
        roles.notes.append(f"the column {label!r} is the label")
        rest.remove(label)
    for name in roles.labels if known is None else ():
        if (frame[name].astype(str) == name).any():
            remedy = "give the file one line of column names, at the top"
            roles.notes.append(f"column {name!r} has its own name as a label; {remedy}")
    roles.sequence = named("text") or _sequence(table, roles, rest, known)
    if known is None and (not roles.labels or roles.sequence in roles.labels):
        refuse_unlabelled(table)
    roles.time = named("time")
    return roles


def separated(names: object) -> list[str]:
    """Return the names of columns that an option gives, separated by commas."""
    return [name for name in map(str.strip, str(names or "").split(",")) if name]


def _leave_out(frame: Any, roles: Roles, kept: Collection[str | None]) -> None:
    """Remove columns without a name, and a first column, or ``index``, that counts the rows."""
    for place, name in enumerate(list(frame)):
        counts = (place == 0 or name == "index") and counts_rows(frame[name])
        if name not in kept and (counts or NO_NAME.fullmatch(name)):
            reason = "counts the rows" if counts else "has no name"
            roles.notes.append(f"the column {name!r} is left out because it {reason}")
            frame.pop(name)


def _id_column(table: Table, taken: Collection[str | None], known: Mapping[str, Any] | None) -> str:
    """Return the column of ids, or ""; refuse a column that is called like one and repeats its cells."""
    free = [name for name in table.frame if name not in taken]
    name = next((name for name in free if name.lower() in IDS), "")
    if name or known is not None:
        return name
    name = next(filter(NAMED_ID.fullmatch, free), "")
    if name and not table.frame[name].astype(str).is_unique:
        problem, flag = f"{table.path}: the column {name!r} repeats the same ids", quote(name)
        ways = f"--id {flag} if all rows of an id are one sequence, --group {flag} if each row is one"
        raise InputError(problem, f"pass {ways}, or --drop {flag}")
    return name


def _only_other_column(frame: Any, names: Sequence[str]) -> str:
    """Return the one of two columns that is not a sequence; "" for other numbers of columns or of sequences."""
    different = {name: 2 * frame[name].astype(str).nunique() > len(frame) for name in names}
    sequences = [n for n in names if is_sequences(frame[n]) or (different[n] and is_text(frame[n]))]
    others = [name for name in names if name not in sequences]
    return others[0] if len(sequences) == len(others) == 1 else ""


def _as_written(table: Table, name: str, asked: OwnDataOptions) -> Any:
    """Return a column of numbers as the texts of its file, because 007 and 7 may be two labels."""
    column, path = table.frame[name], table.path
    if column.dtype.kind not in "iuf" or path.suffix.lower() not in (".csv", ".tsv"):
        return column
    return read_table(path, [name], asked.decimal).frame[name]


def _sequence(table: Table, roles: Roles, rest: list[str], known: Mapping[str, Any] | None) -> str:
    """Return the column among ``rest`` that holds whole sequences, or ""."""
    frame, values = table.frame, (known or {}).get("columns", ())
    for name in [name for name in SEQUENCES if name in rest and name not in values]:
        if len(rest) == 1 or not is_number(frame[name]):  # else x is one value of several, as in x, y, z
            return name
    paths = [name for name in rest if names_files(table.path.parent, filled(frame[name]))]
    if len(paths) == 1:
        roles.chosen["text"] = paths[0]
        return paths[0]
    if known is None and len(rest) == 1 and is_sequences(frame[rest[0]]):
        return rest[0]
    texts = [name for name in rest if is_text(frame[name])]
    if not texts or len(texts) < len(rest):
        return ""
    text = max(texts, key=lambda name: int(frame[name].astype(str).str.len().sum()))
    cells = filled(frame[text]).astype(str).str.strip()
    if cells.str.fullmatch(MEASURED).mean() > MAX_TEXT:
        raise InputError(
            f"{table.path}: most cells of {text!r} are numbers with units, or dates, such as {cells.iloc[-1]!r}",
            f"remove units and dates, or pass --text {quote(text)} to read letters",
        )
    roles.chosen["text"] = text
    return text


def usual_labels(table: Table, others: Collection[str], *, alone: bool) -> list[str]:
    """Return columns with usual names of labels, not of ``others``; if ``alone``, refuse to choose among several."""
    places = {"y"} if {"x", "y", "z"} <= set(table.frame) and is_number(table.frame["x"]) else set()
    free = [name for name in table.frame if name not in {*others, *places}]
    outputs = [name for name in free if re.fullmatch(r"y\d+", name)]
    usual = [name for name in free if name.lower() in USUAL_LABELS]
    if usual and len(usual + outputs) > 1 and alone:
        raise InputError(
            f"{table.path}: labels may be in the columns {', '.join(usual + outputs)}",
            "pass --label NAME, and --drop the columns that are not values",
        )
    return usual[:1] or outputs


def time_of_rows(table: Table, *, has_ids: bool) -> str:
    """Return the column of times of rows that are whole sequences; refuse a column whose times repeat."""
    for name in [name for name in table.frame if name.lower() in TIMES]:
        texts = table.frame[name].astype(str)
        repeated = 2 * texts.nunique() <= len(texts) and not texts.str.contains(".", regex=False).any()
        if repeated and not has_ids:
            start = f"{table.path}: the column {name!r} repeats the same times, as in long form, but no"
            raise InputError(f"{start} column is called id", f"pass --id NAME, or --drop {quote(name)}")
        if are_times(table.frame[name]):
            return name
    return ""


def require_column(table: Table, name: str | None, role: str = "", known: Collection[str] = ()) -> None:
    """Refuse a table without a column (if any) that the flag ``role`` names, or that a readout needs (``known``)."""
    names = list(table.frame)
    if not name or name in names:
        return
    who = f" (--{role})" if role else ", which the readout was fitted on,"
    remedy = "" if role else f"; rename the column that holds it to {name!r}"
    close = nearest(name, [other for other in names if other not in known])
    if len(several := separated(name)) > 1 and {*several} <= {*names}:
        close = f"; give one column: add one that joins the cells of {listed(several)}"
    raise InputError(f"{table.path}: no column {name!r}{who} among {listed(names)}{remedy}{close}")


def refuse_unlabelled(table: Table) -> NoReturn:
    """Refuse a table without a column of labels."""
    raise InputError(
        f"{table.path}: no column of labels among {', '.join(table.frame)}",
        "call the column of the labels 'label', or pass --label NAME",
    )


def listed(names: Sequence[str]) -> str:
    """Return the first names as text, for a message."""
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def files_kind(names: Iterable[str]) -> str:
    """Return the kind in `FILES` that has the suffixes of all names; else ""."""
    lower = [name.lower() for name in names]
    return next(
        (kind for kind, ends in FILES.items() if lower and all(name.endswith(ends) for name in lower)), ""
    )


def with_slashes(name: str) -> Path:
    """Return the path of a cell; tables from Windows have backslashes."""
    return Path(name.strip().replace("\\", "/"))


def names_files(folder: Path, cells: Any) -> str:
    """Return the kind of files that the first cells name; "" if no such file is in the folder."""
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
    """Return whether the first filled cell is a text that is not made of numbers."""
    first = next(iter(filled(column)), None)
    return isinstance(first, str) and first.strip().lower() not in EMPTY and as_numbers(first) is None


def is_number(column: Any) -> bool:
    """Return whether each filled cell is one number; 007 is not, because its zeros may mean something."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return True
    cells = filled(column).astype(str).str.strip()
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    return bool(numbers.notna().all() and not cells.str.match(r"0\d").any())


def is_sequences(column: Any) -> bool:
    """Return whether each filled cell is a list or a text of numbers, one of them with several."""
    cells = filled(column)
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if not texts:
        return any(isinstance(cell, list) for cell in cells)
    several = [text for text in texts if re.search(r"[\s,;\[]", text)]
    thousands = all(re.fullmatch(THOUSANDS, text) for text in several)
    return not thousands and all(as_numbers(text) is not None for text in texts)


def is_digits(column: Any) -> bool:
    """Return whether the cells are strings of digits without separators, read as letters."""
    cells = filled(column)
    digits = all(isinstance(cell, str) and cell.strip().isdecimal() for cell in cells)
    return digits and any(len(cell) > 1 for cell in cells)


def counts_rows(column: Any) -> bool:
    """Return whether cells are row numbers that start at 0 or 1."""
    texts, rows = column.astype(str).tolist(), len(column)
    return rows >= MIN_COUNTED and any(
        texts == [str(row + first) for row in range(rows)] for first in (0, 1)
    )


def are_times(column: Any) -> bool:
    """Return whether cells are dates, or strictly increasing numbers."""
    times = times_of(column)
    numbers = times is not None and times.dtype.kind != "M"
    return times is not None and not (numbers and (len(times) < MIN_COUNTED or (np.diff(times) <= 0).any()))


def times_of(column: Any) -> np.ndarray | None:
    """Return numbers, or dates in UTC, as a sortable array, (rows,); None for other cells."""
    import pandas as pd

    if column.dtype.kind in "iuf":
        return column.to_numpy() if column.notna().all() else None
    if not all(isinstance(cell, str) and ("-" in cell or cell.count(".") > 1) for cell in column):
        return None
    points = column.str.replace(",", ".")  # fractions of a second
    for form in DATES:
        times = pd.to_datetime(points, format=form, utc=True, errors="coerce")
        if times.notna().all():
            return times.dt.tz_localize(None).to_numpy()
    return None


def sortable_times(table: Table, name: str) -> np.ndarray:
    """Return a column of times as `times_of` does; an empty cell is a bad row, and other cells are refused."""
    column = table.frame[name]
    for row in np.flatnonzero(column.isna()):
        table.bad.add(row, f"no time in column {name!r}")
    found = times_of(column.ffill().bfill())
    if found is None:
        like = str(next(iter(filled(column)), ""))[:40]
        problem = f"{table.path}, column {name!r}: times like {like!r} cannot be sorted"
        remedy = f"write dates as 2024-12-31, or numbers, or pass --drop {quote(name)}"
        raise InputError(problem, f"{remedy} if the rows are in order")
    return found


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
    """Return a list of numbers, or of lists of one length, as an array with NaN for None; else None."""
    try:
        array = np.asarray(cell)
        array = np.asarray(cell, np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "uifb" and array.ndim in {1, 2} and array.size else None


def values_of(
    table: Table, names: Sequence[str], *, fill: bool, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Return columns of single numbers as floats (rows, columns), 0 after ``lengths``; with ``fill``, NaN if empty."""
    x = np.stack([_numbers_of(table, name) for name in names], axis=1)
    if lengths is not None:
        x[np.arange(len(names)) >= lengths[:, None]] = 0
    wrong = np.isinf(x) | (np.isnan(x) & (not fill))
    for row in np.flatnonzero(wrong.any(axis=1)):
        place = int(np.argmax(wrong[row]))
        problem = EMPTY_CELL if np.isnan(x[row, place]) else f"{x[row, place]} in column"
        table.bad.add(row, f"{problem} {names[place]!r}")
    return x


def _numbers_of(table: Table, name: str) -> np.ndarray:
    """Return a column as floats; other cells are bad rows, and a column of mostly such cells is refused."""
    import pandas as pd

    table.check_thousands(name)
    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64)
    texts = column.astype(object).where(column.notna(), "").astype(str).str.strip()
    cells = table.with_points(texts.str.lower()).map(lambda cell: SWITCHES.get(cell, cell))
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    empty = (cells == "nan").to_numpy()
    wrong = np.flatnonzero(numbers.isna() & ~empty)
    for row in wrong:
        table.bad.add(row, f"{texts[row][:40]!r} is not a number in column {name!r}")
    if len(wrong) > MAX_TEXT * (~empty).sum():
        problem = f"{table.path}, {table.bad.places[wrong[0]]}: {texts[wrong[0]][:40]!r} is not a number"
        likely = "--decimal , or " if re.fullmatch(r"[-+]?\d+,\d+", texts[wrong[0]]) else ""
        likely = f"--time {quote(name)} or " if times_of(column) is not None else likely
        flag = f"{likely}--drop {quote(name)}, or the flag of its role: --id, --group, --time or --text"
        raise InputError(f"{problem} in column {name!r}", f"write numbers there, or pass {flag}")
    return numbers.to_numpy(np.float64)


def joined_labels(
    table: Table, names: Sequence[str], asked: OwnDataOptions, *, required: bool
) -> np.ndarray:
    """Return columns of labels, (rows,) or (rows, outputs); refuse texts and numbers together."""
    found = [labels_of(table, name, asked, required=required) for name in names]
    kinds = {y.dtype.kind for y in found}
    if kinds == {"U", "i"} and all(are_numbers(y.ravel().tolist()) for y in found if y.dtype.kind == "U"):
        found, kinds = [y.astype(str) for y in found], {"U"}  # 07 in one column makes 7 a text in another
    if "U" in kinds and len(kinds) > 1:
        raise InputError(
            f"{table.path}: some of the labels {', '.join(names)} are numbers and some are not",
            "fit one at a time, with --label, and --drop for the others",
        )
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def labels_of(table: Table, name: str, asked: OwnDataOptions, *, required: bool) -> np.ndarray:
    """Return a column of labels as `typed` does; an empty or odd cell is a bad row if labels are ``required``."""
    table.check_thousands(name)
    where, column = f"{table.path}, column {name!r}", table.frame[name].astype(object)
    points = table.with_points(column)
    texts = points.where(column.notna(), "").astype(str).str.strip()
    given = (texts != "").to_numpy(copy=True)
    for row in np.flatnonzero(~given) if required else ():
        table.bad.add(row, f"no label in column {name!r}")
    for row in np.flatnonzero(given)[_odd_labels(texts[given], asked)] if required else ():
        table.bad.add(
            row, f"the label {texts[row][:40]!r} in column {name!r} is not a finite number, as most are"
        )
        given[row] = False
    if required and not (asked.classes or asked.regression) and are_numbers(texts[given].tolist()):
        for row in (int(row) for row in np.flatnonzero(given) if is_large(points[row])):
            table.bad.add(row, f"the label {texts[row][:40]} in column {name!r} does not fit into 64 bits")
            table.bad.remedies[row] = "pass --classes to read labels as names, or --regression for targets"
            given[row] = False
    labels = typed(where, points[given].tolist(), asked)
    if labels.dtype.kind == "U":
        cells = [str(label) for label in labels.flat]
        if table.decimal == ",":
            labels = np.array([str(cell).strip() for cell in column[given]])
        # With a mark for decimals or thousands, and not a number as it is: not names, unless the user says so.
        odd = all(re.fullmatch(DIGITS, str(label)) for label in labels.flat) and not are_numbers(cells)
        if odd and not asked.classes:
            problem = f"{where}: labels like {labels.item(0)!r} are not numbers with the decimal mark"
            raise InputError(
                f"{problem} {table.decimal!r}", "write numbers, or pass --decimal or --classes"
            )
    shape = (len(given), *labels.shape[1:])
    full = np.zeros_like(labels, shape=shape) if required or given.all() else np.full(shape, None, object)
    full[given] = labels
    return full


def _odd_labels(texts: Any, asked: OwnDataOptions) -> np.ndarray:
    """Return which labels are not finite numbers, (rows,), if most are targets of a regression, or all are numbers."""
    import pandas as pd

    numbers = np.asarray(pd.to_numeric(texts, errors="coerce"), np.float64)
    odd = ~np.isfinite(numbers)
    if odd.sum() > MAX_TEXT * len(odd) or not len(odd):
        return np.zeros_like(odd)
    if not np.isnan(numbers).any():
        return odd
    whole = bool((numbers[~odd] % 1 == 0).all())
    classes = asked.classes or (whole and not asked.regression and read_labels(numbers[~odd]).names)
    return odd & (not classes)


def typed(where: str, cells: Sequence[Any], asked: OwnDataOptions) -> np.ndarray:
    """Return cells as integers, else as floats, else as texts: (rows,), or (rows, n) for lists of one length.

    Cells that become equal as numbers but are not equal as labels are texts, such as 007 and 7, and
    true and 1.
    """
    if asked.regression:
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(list(cells), np.float64)
    if all(isinstance(cell, str) for cell in cells):
        texts = [cell.strip() for cell in cells]
        numbers = written_numbers(texts, classes=asked.classes)
        return np.array(texts, str) if numbers is None else numbers
    values = [value for cell in cells for value in _leaves(cell)]
    kinds = {type(value) for value in values}
    mixed = bool in kinds and len(kinds) > 1
    large = float not in kinds and any(map(is_large, values))
    as_texts = kinds <= {bool, int, float, str} and (mixed or large)
    try:
        array = np.array(list(cells), dtype=str if as_texts else None)
    except (ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biufU":
        raise InputError(
            f"{where}: labels are not all numbers, all texts, or lists of one length", "use one form"
        )
    return array


def _leaves(cell: Any) -> Iterator[Any]:
    """Yield the values of nested lists."""
    if not isinstance(cell, list | np.ndarray):
        yield cell
        return
    for inner in cell:
        yield from _leaves(inner)
