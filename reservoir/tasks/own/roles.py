"""Which column of a table is the label, the id, the time, the group, the sequence, and which are values.

Flags name columns. For the others the rule is, in this order:

=========  ============================================================================================
role       column
=========  ============================================================================================
left out   a first column, or one called ``index``, that counts the rows; a column without a name
label      ``label`` or ``y`` (``y0``, ``y1`` ... are several outputs), or the only one of `USUAL_LABELS`
id         ``id``, ``series_id`` or ``case``, or a column such as ``patient_id`` without repetitions
group      ``groups``
sequence   ``x`` or ``sequence``; a single column of lists; or, if all others are texts, the longer one,
           and a second one is then the label
time       ``time``, ``t``, ``step``, ``timestamp``, ``date`` or ``datetime`` with dates or rising numbers
values     all others, in their order
=========  ============================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.cells import is_number, is_sequences, is_text
from reservoir.tasks.own.paths import names_files
from reservoir.tasks.own.tables import Table

USUAL_LABELS = (
    "label", "labels", "y", "class", "target", "category", "fault", "outcome", "diagnosis", "sentiment", "stars",
)  # fmt: skip
"""Names of columns of labels, in small letters or capitals."""

SEQUENCES = ("x", "sequence")
IDS = ("id", "series_id", "case")
TIMES = ("time", "t", "step", "timestamp", "date", "datetime")

NAMED_ID = re.compile(r"\w*([_ -](id|ID|Id)|[a-z](Id|ID))|(?i:uuid|guid)")
NO_NAME = re.compile(r"Unnamed: \d+|__index_level_\d+__")
DECIMAL = re.compile(r"-?\d+\.\d+")

FEWEST_COUNTED = 4
"""Rows from which on a column of their numbers, or of rising times, is taken for no value."""


@dataclass
class Roles:
    """The columns of a table by role; "" or an empty list where no column has it.

    ``chosen`` has the choices made by rule, which new sequences are read with; ``notes`` describe them.
    """

    labels: list[str]
    id: str = ""
    time: str = ""
    group: str = ""
    sequence: str = ""
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)


def text_columns(asked: OwnDataOptions) -> list[str]:
    """Return the names of columns whose cells are read as they are written, whatever they look like."""
    named = (asked.label, asked.id, asked.group, asked.text)
    return [*filter(None, named), *USUAL_LABELS, *SEQUENCES, *IDS, "groups", "split", *(f"y{n}" for n in range(10))]


def choose_roles(table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None) -> Roles:
    """Return the columns by role, and drop those that are left out from the table.

    Parameters
    ----------
    table : Table
        The table; columns that are left out are removed from its frame.
    asked : OwnDataOptions
        The columns that flags name.
    known : mapping, optional
        The parameters of a task, for new sequences: columns that only training needs may then be missing.
    """
    return _Chooser(table, asked, known).roles()


class _Chooser:
    def __init__(self, table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None):
        self.table, self.asked, self.known, self.labelled = table, asked, known or {}, known is None
        self.notes: list[str] = []
        self.chosen: dict[str, Any] = {}

    @property
    def frame(self) -> Any:
        return self.table.frame

    def roles(self) -> Roles:
        self._drop()
        labels = self._labels()
        group = self._named("group") or ("groups" if "groups" in self.frame else "")
        row_id = self._id(labels)
        sequence = self._sequence(labels, row_id, group)
        labels = labels or ([self.chosen["label"]] if "label" in self.chosen else [])
        if not labels and self.labelled:
            refuse_unlabelled(self.table, sequence)
        time = self._named("time")
        return Roles(labels, row_id, time, group, sequence, self.notes, self.chosen)

    def _named(self, role: str) -> str:
        """Return the column that a flag names; new sequences need only that of texts."""
        name = getattr(self.asked, role) or ""
        if name and name not in self.frame:
            if self.labelled or role == "text":
                refuse_column(self.table, name, role)
            return ""
        return name

    def _drop(self) -> None:
        for name in filter(None, map(str.strip, str(self.asked.drop or "").split(","))):
            if name in self.frame:
                self.table.frame = self.frame.drop(columns=name)
            elif self.labelled:
                refuse_column(self.table, name, "drop")
        named = {self.asked.label, self.asked.id, self.asked.time, self.asked.group, *self.known.get("columns", ())}
        first = {self.frame.columns[0]} if self.labelled and len(self.frame.columns) else set()
        counting = (first | {"index"}) & set(self.frame) - named - {*IDS, *self._labels()}
        for name in [name for name in self.frame if name not in named]:
            if name in counting and counts_rows(self.frame[name]):
                self.notes.append(f"the column {name!r} is left out, as it counts the rows")
            elif NO_NAME.fullmatch(name):
                self.notes.append(f"the column {name!r} is left out, as it has no name")
            else:
                continue
            self.table.frame = self.frame.drop(columns=name)

    def _labels(self) -> list[str]:
        if named := self._named("label"):
            return [named]
        usual = usual_labels(self.table, self.known.get("columns", ()), alone=self.labelled)
        if self.labelled and len(usual) == 1 and usual[0] not in {"label", "y"}:
            self.chosen["label"] = usual[0]
        return usual

    def _id(self, labels: list[str]) -> str:
        taken = {self.asked.group, self.asked.text, self.asked.time, *labels}
        free = [name for name in self.frame if name not in taken]
        name = self._named("id")
        if not name:
            name = next((name for name in free if name.lower() in IDS), "")
            name = name or (self._unique_id(free) if self.labelled else "")
            self.chosen |= {"id": name} if name else {}
        return name

    def _unique_id(self, names: list[str]) -> str:
        """Return a column with the name of an id and without repetitions; refuse one with repetitions."""
        for name in [name for name in names if NAMED_ID.fullmatch(name)]:
            texts = self.frame[name].astype(str)
            if len(texts) < FEWEST_COUNTED or texts.str.contains(".", regex=False).any():
                continue  # measured, as a mid_id of 0.25 is
            if texts.is_unique:
                return name
            raise InputError(
                f"{self.table.path}: the column {name!r} repeats the same ids; say --id {name} if their "
                f"rows make one sequence, --group {name} if each row is a sequence of its own, or --drop {name}"
            )
        return ""

    def _sequence(self, labels: list[str], row_id: str, group: str) -> str:
        """Return the column that holds whole sequences, and choose a second column of texts as the label."""
        if whole := self._named("text"):
            return whole
        others = {*labels, row_id, group, "split", "lengths", self.asked.time}
        others |= {name for name in self.frame if name.lower() in TIMES and are_times(self.frame[name])}
        rest = [name for name in self.frame if name not in others]
        values = self.known.get("columns", ())
        for name in [name for name in SEQUENCES if name in rest and name not in values]:
            if len(rest) == 1 or not is_number(self.frame[name]):  # else x is one value of several, as in x, y, z
                return name
        paths = [name for name in rest if names_files(self.table, name)]
        if len(paths) == 1:
            self.chosen["text"] = paths[0]
            return paths[0]
        if self.labelled and len(rest) == 1 and is_sequences(self.frame[rest[0]]):
            return rest[0]
        if not rest or not all(is_text(self.frame[name]) for name in rest):
            return ""
        text = max(rest, key=lambda name: int(self.frame[name].astype(str).str.len().sum()))
        more = [name for name in rest if name != text]
        if self.labelled and len(more) != (not labels):
            raise InputError(
                f"{self.table.path}: texts in the columns {rest}; say which is --text and which is --label"
            )
        self.chosen["text"] = text
        if self.labelled and more:
            self.chosen["label"] = more[0]
            self.notes.append(f"the column {more[0]!r} is the label")
        return text


def usual_labels(table: Table, others: Collection[str], *, alone: bool) -> list[str]:
    """Return the columns with usual names of labels; if ``alone``, refuse to choose among several.

    ``others`` are columns that have other roles.
    """
    places = {"x", "y", "z"} <= set(table.frame) and is_number(table.frame["x"])
    free = [name for name in table.frame if name not in others and not (places and name == "y")]
    outputs = [name for name in free if re.fullmatch(r"y\d+", name)]
    usual = [name for name in free if name.lower() in USUAL_LABELS]
    if not usual:
        return outputs
    if len(usual + outputs) > 1 and alone:
        raise InputError(
            f"{table.path}: labels may be in the columns {usual + outputs}; say --label NAME, and "
            "--drop those that are no values"
        )
    return usual[:1]


def choose_labels(table: Table, asked: OwnDataOptions, others: Collection[str]) -> list[str]:
    """Return the columns of labels in a table of labels, whose columns ``others`` have other roles."""
    if asked.label:
        if asked.label not in table.frame:
            refuse_column(table, asked.label, "label")
        return [asked.label]
    found = usual_labels(table, others, alone=True)
    rest = [name for name in table.frame if name not in {*others, asked.group, "groups", "split"}]
    found = found or (rest if len(rest) == 1 else [])
    if not found:
        refuse_unlabelled(table, next(iter(others), ""))
    return found


def time_of_rows(table: Table, *, has_ids: bool) -> str:
    """Return a column that dates rows which are whole sequences; refuse one with the same times for several rows."""
    for name in [name for name in table.frame if name.lower() in TIMES]:
        column = table.frame[name]
        texts = column.astype(str)
        repeated = 2 * texts.nunique() <= len(texts) and not texts.str.contains(".", regex=False).any()
        if repeated and not has_ids:
            raise InputError(
                f"{table.path}: the column {name!r} repeats the same times, as in long form, and no column "
                f"is called id; say --id NAME, or --drop {name}"
            )
        if are_times(column):
            return name
    return ""


def counts_rows(column: Any) -> bool:
    """Return whether cells are the numbers of the rows, from 0 or 1."""
    texts = column.astype(str).tolist()
    return len(texts) >= FEWEST_COUNTED and any(
        texts == [str(row + first) for row in range(len(texts))] for first in (0, 1)
    )


def are_times(column: Any) -> bool:
    """Return whether cells are dates, or numbers each of which is larger than the one before."""
    if column.dtype.kind in "iuf":
        return len(column) >= FEWEST_COUNTED and bool((np.diff(column.to_numpy()) > 0).all())
    return dates_of(column) is not None


def dates_of(column: Any) -> np.ndarray | None:
    """Return texts that are all dates as ISO 8601 writes them as times of one clock, (rows,); else None."""
    import pandas as pd

    if not all(isinstance(cell, str) and "-" in cell for cell in column):
        return None
    found = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    return None if found.isna().any() else found.dt.tz_localize(None).to_numpy()


def refuse_column(table: Table, name: str, role: str) -> NoReturn:
    """Refuse a flag that names a column which is not in the table."""
    names = list(table.frame)
    if role == "text" and "," in name:
        raise InputError(
            f"{table.path}: --text {name}: one column is read; write both texts into one, with the separator of the "
            "model between, such as ' [SEP] '"
        )
    raise InputError(f"{table.path}: no column {name!r} (--{role}) among {names}{nearest(name, names)}")


def refuse_unlabelled(table: Table, sequence: str) -> NoReturn:
    """Refuse a table without a column of labels; suggest one if only one is likely."""
    frame = table.frame
    bare = " (is the line of names missing?)" if any(DECIMAL.fullmatch(name) for name in frame) else ""
    words = [name for name in frame if name != sequence and is_text(frame[name])]
    name = words[0] if len(words) == 1 else "NAME"
    raise InputError(
        f"{table.path}: no column of labels among {list(frame)}{bare}; call it label, or say --label {name}"
    )
