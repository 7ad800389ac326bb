"""What the columns of a table are for: labels, ids, times, groups, a text, or values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.cells import check_gaps, column, is_text, labels_of, numbers, ordered, pad, values
from reservoir.tasks.own.columns import Columns
from reservoir.tasks.own.each import take_each
from reservoir.tasks.own.guesses import (
    IDS,
    INDEX,
    SEQUENCES,
    TIMES,
    are_times,
    checksums,
    counts_rows,
    holds_digits,
    holds_sequences,
    ids_among,
    labels_among,
    listed,
    refuse,
    refuse_unlabelled,
    single,
    spaced,
    times_among,
)
from reservoir.tasks.own.tables import Table
from reservoir.tasks.own.texts import Texts

MOST_NAMES = 256
"""So many columns of values are known again by their names; more are places of a series, known by their number."""


class Sorting:
    """A table whose columns are taken out one role after the other; the values are what is left.

    A table of new sequences is read as the one of a task was, by the ``parameters`` that were found there; columns may
    be missing that only training needs.
    """

    def __init__(self, path: Path, table: Table, roles: OwnDataOptions, parameters: Mapping[str, Any] | None = None):
        self.path, self.table, self.roles, self.labelled = path, dict(table), roles, parameters is None
        self.parameters, self.fill = parameters or {}, roles.missing != "refuse"
        self.rows = len(next(iter(table.values()), ()))
        self.notes: list[str] = []
        self.found: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.texts: list[str] | None = None

    def arrays_of_table(self) -> Columns:
        """Return the arrays, whichever columns hold them."""
        self._drop()
        labels = self._labels()
        ids = self._ids()
        groups = self._named("group") or ("groups" if "groups" in self.table else "")
        whole = self._whole()
        labels = labels or self._labels()
        if not labels and self.labelled:
            refuse_unlabelled(self.path, self.table, whole)
        time = self._named("time")
        repeats = bool(ids) and len(set(ids)) < self.rows
        if not whole and (repeats if self.labelled else self.parameters.get("long", False)):
            self._long(ids or ["0"] * self.rows, labels, groups, time)
        else:
            self._wide(ids, labels, groups, time, whole)
        where, texts = str(self.path), self.texts
        columns = Columns(self.arrays) if texts is None else Texts(where, texts, self.arrays)
        columns.notes, columns.found = self.notes, self.found
        return columns

    # ---- which column is what

    def _drop(self) -> None:
        for name in filter(None, map(str.strip, str(self.roles.drop or "").split(","))):
            if name not in self.table and self.labelled:
                refuse(self.path, self.table, name, "drop")
            self.table.pop(name, None)
        named = {
            self.roles.label,
            self.roles.id,
            self.roles.time,
            self.roles.group,
            *self.parameters.get("columns", ()),
        }
        kept = {*named, *IDS, *self._labels()}
        for name in {next(iter(self.table), "") if self.labelled else "index", "index"} & self.table.keys() - kept:
            if counts_rows(self.table[name]):
                del self.table[name]
                self.notes.append(f"the column {name!r} is left out, as it counts the rows")
        for name in [name for name in self.table if INDEX.fullmatch(name) and name not in named]:
            del self.table[name]
            self.notes.append(f"the column {name!r} is left out, as it has no name")

    def _named(self, role: str) -> str:
        name = getattr(self.roles, role)
        if name and name not in self.table:
            if self.labelled or role == "text":
                refuse(self.path, self.table, name, role)
            return ""
        return name

    def _labels(self) -> list[str]:
        if named := self._named("label"):
            return [named]
        found = labels_among(self.table, self.parameters.get("columns", ()))
        if "label" in found and len(found) > 1 and self.labelled:
            raise InputError(
                f"{self.path}: labels in the columns {found[:8]}; say --label NAME, and --drop those that are no values"
            )
        return found

    def _ids(self) -> Sequence[Any]:
        taken = {self.roles.group, self.roles.label, self.roles.text, self.roles.time, *self._labels()}
        free = [name for name in self.table if name not in taken]
        name = self._named("id") or next((name for name in free if name.lower() in IDS), "")
        if not name and self.labelled:
            name = ids_among(self.path, {name: self.table[name] for name in free})
        if not name:
            return ()
        ids = [str(cell) for cell in self.table.pop(name)]
        if not self.roles.id:
            self.found["id"] = name
            if len(set(ids)) == self.rows:
                self.notes.append(f"the column {name!r} names the rows, and is no value")
        return ids

    def _whole(self) -> str:
        """Return the column that holds whole sequences: the one named, x or sequence, or the only texts."""
        if whole := self._named("text"):
            return whole
        labels, others = self._labels(), {"split", "lengths", "groups", self.roles.group, self.roles.time}
        others |= {name for name in self.table if name.lower() in TIMES and are_times(self.table[name])}
        rest = [name for name in self.table if name not in {*labels, *others}]
        known = self.parameters.get("columns", ())
        for name in [name for name in SEQUENCES if name in self.table and name not in known]:
            if len(rest) == 1 or not single(self.table[name]):  # else x is one value of several, as in x, y, z
                return name
        if self.labelled and len(rest) == 1 and holds_sequences(self.table[rest[0]]):
            return rest[0]
        if not rest or not all(is_text(self.table[name]) for name in rest):
            return ""
        text = max(rest, key=lambda name: sum(len(str(cell)) for cell in self.table[name]))
        more = [name for name in rest if name != text]
        if self.labelled and len(more) != (not labels):
            raise InputError(f"{self.path}: texts in the columns {rest[:8]}; say which are --text and --label")
        self.found["text"] = text
        for name in more:
            if self.labelled:
                self.found["label"] = name
                self.table["label"] = self.table.pop(name)
                self.notes.append(f"the column {name!r} is the label")
            else:
                del self.table[name]
        return text

    # ---- one line per sequence

    def _wide(self, ids: Sequence[Any], labels: list[str], groups: str, time: str, whole: str) -> None:
        if not time and self.labelled and (time := times_among(self.path, self.table, known=bool(ids))):
            self.found["time"] = time
        if ids:
            repeats = len(set(ids)) < self.rows
            if repeats and (self.roles.id or not self.labelled):
                ids = [f"{name}#{row}" for row, name in enumerate(ids)]
            elif repeats and not groups:
                self.arrays["groups"] = np.array(ids)
                self.notes.append(f"rows with the same {self.found['id']!r} are kept in one split")
            self.arrays["ids"] = np.array(ids)
        if whole:
            self.table[whole] = spaced(self.table[whole])
        each = whole and len(labels) == 1 and self._take_each(labels[0], whole)
        self._take([] if each else labels, groups)
        if time:
            del self.table[time]
            self.notes.append(f"the column {time!r} is left out, as each row is a sequence of its own")
        lengths = self.table.pop("lengths", None)
        if whole:
            self._sequences(whole)
        else:
            self._values()
        if lengths is not None:
            self.arrays["lengths"] = column(self.path, "lengths", lengths)

    def _take_each(self, label: str, whole: str) -> bool:
        """Take labels of every letter, word or value of the sequences, where they are such."""
        known = None if self.labelled else self.parameters.get("each", "")
        taken = take_each(self.path, self.table, label, whole, text=bool(self.roles.text), known=known)
        if taken is None:
            return False
        kind, arrays = taken
        del self.table[label]
        if self.labelled:
            self.found["each"] = kind
            self.notes.append(f"the column {label!r} labels every {kind} of {whole!r}")
        self.arrays |= arrays
        return True

    def _take(self, labels: list[str], groups: str) -> None:
        y = [labels_of(self.path, name, self.table.pop(name), every=self.labelled) for name in labels]
        if y:
            self.arrays["y"] = y[0] if len(y) == 1 else np.stack(y, axis=1)
        if "split" in self.table:
            self.arrays["split"] = np.array([str(cell).strip() for cell in self.table.pop("split")])
        if groups:
            self.arrays["groups"] = np.array([str(cell).strip() for cell in self.table.pop(groups)])

    def _sequences(self, whole: str) -> None:
        sequences = self.table.pop(whole)
        if self.table:
            self.notes.append(f"columns that are not read, beside {whole!r}: {', '.join(list(self.table)[:8])}")
        several = self.parameters.get("numbers", False) or (self.labelled and holds_sequences(sequences))
        if several and whole not in SEQUENCES:
            self.found |= {"text": whole, "numbers": True}
        if not several and (self.roles.text or is_text(sequences) or holds_digits(sequences)):
            texts = ["" if cell is None else str(cell) for cell in sequences]
            self.found["text"], self.texts = whole, texts
        else:
            found = [numbers(self.path, row, cell) for row, cell in enumerate(sequences)]
            self.arrays["x"], self.arrays["lengths"] = pad(str(self.path), found, fill=self.fill)

    def _values(self) -> None:
        """Take columns of one value each as floats (rows, values); rows may end early."""
        self._choose()
        names, columns = list(self.table), list(self.table.values())
        empty = np.array([[cell is None or cell == "" for cell in cells] for cells in columns]).T
        lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
        if short := int((lengths < len(names)).sum()):
            self.notes.append(f"{short:,} rows end before the last column, at their last value")
            self.found["early"] = True
        if self.labelled and (shown := listed(names)):
            self.notes.append(f"{len(names)} values per row: {shown}")
        x = np.stack([values(self.path, name, cells) for name, cells in zip(names, columns, strict=True)], axis=1)
        x[np.arange(len(names)) >= lengths[:, None]] = 0
        check_gaps(self.path, x, names, fill=self.fill)
        self.arrays["x"], self.arrays["lengths"] = x, lengths

    def _choose(self) -> None:
        """Keep the columns of values that the task knows, in its order; rows may end before the last of them."""
        known = self.parameters.get("columns", [])
        if not self.labelled and known:
            early = self.parameters.get("early", False)
            end = sum(1 for name in known if name in self.table) if early else len(known)
            for name in known[: max(end, 1)]:
                if name not in self.table:
                    others = [other for other in self.table if other not in known]
                    raise InputError(
                        f"{self.path}: no column {name!r}, as there was where the readout was fitted, among "
                        f"{list(self.table)[:8]}{nearest(name, others)}"
                    )
            self.table = {name: self.table[name] for name in known if name in self.table}
        names = list(self.table)
        if not names:
            raise InputError(f"{self.path}: no columns of values; give one column per value of a sequence")
        order, before = checksums(names), self.parameters.get("order", [])
        if before[1:] == order[1:] and before != order:
            raise InputError(f"{self.path}: its columns stand in another order than where the readout was fitted")
        self.found |= {"columns": names} if len(names) <= MOST_NAMES else {"order": order}

    # ---- several lines per sequence

    def _long(self, ids: Sequence[Any], labels: list[str], groups: str, time: str) -> None:
        name = self.roles.id or self.found.get("id", "id")
        series = {key: place for place, key in enumerate(dict.fromkeys(ids))}
        self._take(labels, groups)
        time = time or next((name for name in self.table if name.lower() in TIMES), "")
        if time:
            self.found |= {} if self.roles.time else {"time": time}
            times = ordered(self.path, time, self.table.pop(time))
        else:
            times = np.arange(self.rows)
        member = np.array([series[key] for key in ids])
        order = np.lexsort((times, member))
        same = (np.diff(member[order]) == 0) & (times[order][1:] == times[order][:-1])
        if same.any():
            row = int(order[1:][same][0])
            raise InputError(f"{self.path}, row {row}: {ids[row]!r} has two rows at {time} {times[row]}; keep one")
        lengths = np.bincount(member)
        self.found["long"] = True
        self._choose()
        tokens = np.stack([values(self.path, column, cells) for column, cells in self.table.items()], axis=1)
        check_gaps(self.path, tokens, list(self.table), fill=self.fill)
        for array in list(self.arrays):
            self.arrays[array] = self._of_series(array, name, member, order, lengths)
        ends = np.cumsum(lengths)
        x = [tokens[order[end - n : end]] for end, n in zip(ends, lengths, strict=True)]
        self.arrays["x"], self.arrays["lengths"] = pad(str(self.path), x)
        self.arrays["ids"] = np.array(list(series))
        by = f"by {time!r}" if time else "as the file has them"
        self.notes.append(
            f"long form: {self.rows:,} rows make {len(series):,} sequences, one per {name!r}, in order {by}, "
            f"with the values {', '.join(list(self.table)[:8])}"
        )

    def _of_series(
        self, array: str, name: str, member: np.ndarray, order: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Return what is the same in all rows of a sequence, once for each."""
        values = self.arrays[array]
        first = values[order[np.cumsum(lengths) - lengths]]
        unlike = values != first[member]
        if unlike.any():
            row = int(np.argmax(unlike.reshape(self.rows, -1).any(axis=1)))
            what = "label" if array == "y" else array
            raise InputError(
                f"{self.path}, row {row}: another {what} than before under the same {name!r}; if each row is a "
                f"sequence of its own, say --group {name} or --drop {name}; labels of steps are read from .npz"
            )
        return first
