"""A table as arrays: rows of values, whole sequences in cells, or several lines per sequence (long form)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.cells import (
    check_values,
    filled,
    is_digits,
    is_sequences,
    is_text,
    labels_of,
    sequences_of,
    values_of,
)
from reservoir.tasks.own.each import labels_of_each, padded_labels, spaced_words
from reservoir.tasks.own.roles import SEQUENCES, TIMES, choose_roles, dates_of, time_of_rows
from reservoir.tasks.own.tables import Table
from reservoir.tasks.own.texts import Texts

MOST_NAMES = 256
"""Columns of values are known by name up to this number; beyond it they are steps of a series, known by order."""

MOST_SHOWN = 8


class TableReader:
    """Reads the columns of a table by their roles.

    Parameters
    ----------
    table : Table
        The table.
    asked : OwnDataOptions
        The columns that flags name, and what to do about missing values and bad rows.
    known : mapping, optional
        The parameters of a task: new sequences are read as those of the task were, and need no labels.
    """

    def __init__(self, table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None):
        self.table, self.asked, self.labelled, self.known = table, asked, known is None, known or {}
        self.bad = BadRows(str(table.path), table.places, skip=asked.skip_bad_rows if known is None else None)
        for row, reason in table.faults.items():
            self.bad.add(row, reason)
        self.fill = asked.missing != "refuse"
        self.roles = choose_roles(table, asked, known)
        self.frame = table.frame
        self.notes, self.chosen = self.roles.notes, self.roles.chosen
        self.arrays: dict[str, np.ndarray] = {}
        self.texts: list[str] | None = None

    def arrays_of_table(self) -> Arrays:
        """Return the arrays, whichever columns hold them."""
        ids = self._ids()
        repeats = bool(ids) and len(set(ids)) < len(ids)
        if not self.roles.sequence and (repeats if self.labelled else self.known.get("long", False)):
            self._long(ids or ["0"] * len(self.frame))
        else:
            self._wide(ids)
            kept = self.bad.kept()
            self.arrays = {name: array[kept] for name, array in self.arrays.items()}
            if self.texts is not None:
                self.texts = [text for text, good in zip(self.texts, kept, strict=True) if good]
        arrays = Arrays(self.arrays) if self.texts is None else Texts(str(self.table.path), self.texts, self.arrays)
        arrays.notes, arrays.chosen = [*self.notes, *self.bad.notes()], self.chosen
        return arrays

    def _pop(self, name: str) -> Any:
        column = self.frame[name]
        self.frame = self.table.frame = self.frame.drop(columns=name)
        return column

    def _ids(self) -> list[str]:
        name = self.roles.id
        if not name:
            return []
        ids = [str(cell) for cell in self._pop(name)]
        if not self.asked.id and len(set(ids)) == len(ids):
            self.notes.append(f"the column {name!r} names the rows, and is no value")
        return ids

    def _labels_and_groups(self) -> None:
        required = self.bad if self.labelled else None
        y = [labels_of(self.table, name, required) for name in self.roles.labels if name in self.frame]
        self.frame = self.table.frame = self.frame.drop(columns=[n for n in self.roles.labels if n in self.frame])
        if y:
            self.arrays["y"] = y[0] if len(y) == 1 else np.stack(y, axis=1)
        for array, name in {"split": "split", "groups": self.roles.group}.items():
            if name in self.frame:
                self.arrays[array] = np.array([str(cell).strip() for cell in self._pop(name)])

    # ---- one line per sequence

    def _wide(self, ids: list[str]) -> None:
        whole, time = self.roles.sequence, self.roles.time
        if not time and self.labelled and (time := time_of_rows(self.table, has_ids=bool(ids))):
            self.chosen["time"] = time
        if ids:
            repeats = len(set(ids)) < len(ids)
            if repeats and (self.asked.id or not self.labelled):
                ids = [f"{name}#{row}" for row, name in enumerate(ids)]
            elif repeats and not self.roles.group:
                self.arrays["groups"] = np.array(ids)
                self.notes.append(f"rows with the same {self.roles.id!r} are kept in one split")
            self.arrays["ids"] = np.array(ids)
        if whole:
            self.frame[whole] = spaced_words(self.frame[whole])
            if len(self.roles.labels) == 1 and self._labels_of_each(self.roles.labels[0], whole):
                self.roles.labels = []
        self._labels_and_groups()
        if time in self.frame:
            self._pop(time)
            self.notes.append(f"the column {time!r} is left out, as each row is a sequence of its own")
        lengths = self._pop("lengths").to_numpy() if "lengths" in self.frame else None
        if whole:
            self._sequences(whole)
        else:
            self._values()
        if lengths is not None:
            self.arrays["lengths"] = lengths

    def _labels_of_each(self, label: str, whole: str) -> bool:
        """Take labels of every letter, word or value of the sequences, where they are such."""
        known = None if self.labelled else self.known.get("each", "")
        if known == "" or label not in self.frame:
            return False
        sequences = self.frame[whole]
        if not (self.asked.text or is_text(sequences)):
            sequences = sequences.map(lambda cell: cell.split() if isinstance(cell, str) else cell)
        found = labels_of_each(self.bad, list(sequences), list(self.frame[label]), known=known)
        if found is None:
            return False
        kind, parts = found
        if self.labelled:
            self.arrays["y"], self.arrays["units"] = padded_labels(self.bad, label, parts)
            self.chosen["each"] = kind
            self.notes.append(f"the column {label!r} labels every {kind} of {whole!r}")
        elif any(parts):
            self.arrays["y"] = np.array([*parts, None], object)[:-1]  # the None keeps lists of one length apart
        self._pop(label)
        return True

    def _sequences(self, whole: str) -> None:
        cells = self._pop(whole)
        if len(self.frame.columns):
            self.notes.append(
                f"columns that are not read, beside {whole!r}: {', '.join(list(self.frame)[:MOST_SHOWN])}"
            )
        numbers = self.known.get("numbers", False) or (self.labelled and is_sequences(cells))
        if numbers and whole not in SEQUENCES:
            self.chosen |= {"text": whole, "numbers": True}
        if not numbers and (self.asked.text or is_text(cells) or is_digits(cells)):
            self.chosen["text"] = whole
            self.texts = [str(cell).strip() for cell in cells.astype(object).where(cells.notna(), "")]
            for row in (row for row, text in enumerate(self.texts) if not text or "\0" in text):
                self.bad.add(row, "an empty text" if not self.texts[row] else "a NUL in the text", "write a text there")
            return
        self.table.frame = cells.to_frame(whole)
        found = sequences_of(self.table, whole, self.bad)
        for row, one in enumerate(found):
            if not self.fill and one.dtype.kind == "f" and np.isnan(one).any():
                self.bad.add(row, f"a missing value in column {whole!r}", "fill it, pass --missing interpolate or mask")
        kept = self.bad.kept()
        x, lengths = padded(str(self.table.path), [one for one, good in zip(found, kept, strict=True) if good])
        self.arrays["x"], self.arrays["lengths"] = spread(x, kept), spread(lengths, kept)

    def _values(self) -> None:
        """Take columns of one value each as floats (rows, values); rows may end early."""
        self._choose_values()
        names = list(self.frame)
        empty = np.stack(
            [(self.frame[name].isna() | (self.frame[name].astype(object) == "")) for name in names], axis=1
        )
        lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
        for row in np.flatnonzero(empty.all(axis=1)):
            self.bad.add(row, "no value", "fill the row")
        if short := int((lengths < len(names)).sum()):
            self.notes.append(f"{short:,} rows end before the last column, at their last value")
            self.chosen["early"] = True
        if self.labelled and (shown := runs_of(names)):
            self.notes.append(f"{len(names)} values per row: {shown}")
        x = np.stack([values_of(self.table, name, self.bad) for name in names], axis=1)
        x[np.arange(len(names)) >= lengths[:, None]] = 0
        check_values(x, names, self.bad, fill=self.fill)
        self.arrays["x"], self.arrays["lengths"] = x, lengths

    def _choose_values(self) -> None:
        """Keep the columns of values that the task knows, in its order; rows may end before the last of them."""
        known = self.known.get("columns", [])
        if known:
            early = self.known.get("early", False)
            end = sum(1 for name in known if name in self.frame) if early else len(known)
            for name in known[: max(end, 1)]:
                if name not in self.frame:
                    others = [other for other in self.frame if other not in known]
                    raise InputError(
                        f"{self.table.path}: no column {name!r}, as there was where the readout was fitted, among "
                        f"{list(self.frame)}{nearest(name, others)}"
                    )
            self.frame = self.table.frame = self.frame[[name for name in known if name in self.frame]]
        names = list(self.frame)
        if not names:
            raise InputError(f"{self.table.path}: no columns of values; give one column per value of a sequence")
        order, before = checksums(names), self.known.get("order", [])
        if before[1:] == order[1:] and before != order:
            raise InputError(f"{self.table.path}: its columns stand in another order than where the readout was fitted")
        self.chosen |= {"columns": names} if len(names) <= MOST_NAMES else {"order": order}

    # ---- several lines per sequence

    def _long(self, ids: Sequence[str]) -> None:
        name, path = self.roles.id or "id", self.table.path
        self._labels_and_groups()
        time = self.roles.time or next((name for name in self.frame if name.lower() in TIMES), "")
        if time:
            self.chosen |= {} if self.asked.time else {"time": time}
        times = self._ordered(time) if time else np.arange(len(ids))
        self.chosen["long"] = True
        self._choose_values()
        names = list(self.frame)
        tokens = np.stack([values_of(self.table, column, self.bad) for column in names], axis=1)
        check_values(tokens, names, self.bad, fill=self.fill)
        series = {key: place for place, key in enumerate(dict.fromkeys(ids))}
        member = np.array([series[key] for key in ids])
        order = np.lexsort((times, member))
        same = (np.diff(member[order]) == 0) & (times[order][1:] == times[order][:-1])
        for row in order[1:][same]:
            self.bad.add(row, f"{ids[row]!r} has two rows at {time} {times[row]}", "keep one of them")
        for array, values in self.arrays.items():
            self._check_same(array, name, values, values[order[np.searchsorted(member[order], member)]])
        # A sequence with a bad line is left out as a whole: a step that is missing would shift those behind it.
        broken = np.unique(member[~self.bad.kept()])
        starts, lengths = np.searchsorted(member[order], np.arange(len(series))), np.bincount(member)
        good = np.setdiff1d(np.arange(len(series)), broken)
        self.arrays = {array: values[order[starts[good]]] for array, values in self.arrays.items()}
        x = [tokens[order[starts[one] : starts[one] + lengths[one]]] for one in good]
        if not x:
            raise InputError(f"{path}: every sequence has a line that cannot be read")
        self.arrays["x"], self.arrays["lengths"] = padded(str(path), x)
        self.arrays["ids"] = np.array(list(series))[good]
        by = f"by {time!r}" if time else "as the file has them"
        self.notes.append(
            f"long form: {len(ids):,} rows make {len(series):,} sequences, one per {name!r}, in order {by}, "
            f"with the values {', '.join(names[:MOST_SHOWN])}"
        )

    def _ordered(self, name: str) -> np.ndarray:
        """Return a column of times, numbers or dates as ISO 8601 writes them, to sort by."""
        column = self._pop(name)
        if column.dtype.kind in "iuf":
            return column.to_numpy()
        found = dates_of(column)
        if found is None:
            first = next(iter(filled(column)), "")
            raise InputError(
                f"{self.table.path}, column {name!r}: times like {str(first)[:40]!r} tell no order; write dates as "
                f"2024-12-31, or numbers, or say --drop {name} if the rows stand in order"
            )
        return found

    def _check_same(self, array: str, name: str, values: np.ndarray, first: np.ndarray) -> None:
        """Refuse a label, group or split that changes inside a sequence."""
        unlike = (values != first).reshape(len(values), -1).any(axis=1)
        if unlike.any():
            row, what = int(np.argmax(unlike)), "label" if array == "y" else array
            raise InputError(
                f"{self.table.path}, {self.table.places[row]}: another {what} than before under the same {name!r}; if "
                f"each row is a sequence of its own, say --group {name} or --drop {name}; labels of steps are for .npz"
            )


def spread(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return an array (rows, ...) with the given values in the kept rows, and zeros in the others."""
    full = np.zeros((len(kept), *array.shape[1:]), array.dtype)
    full[kept] = array
    return full


def checksums(names: Sequence[str]) -> list[int]:
    """Return a checksum of names in their order, and one of them in any."""
    return [zlib.crc32("\n".join(some).encode()) for some in (names, sorted(names))]


def runs_of(names: Sequence[str]) -> str:
    """Return names for a message, ``t0 ... t29`` for those that are counted through; "" where that is all of them."""
    stem = re.compile(r"\d+$")
    runs = [list(run) for _, run in groupby(names, lambda name: stem.sub("", name))]
    if len(runs) == 1 and (len(names) == 1 or stem.search(names[0])):
        return ""
    shown = [f"{run[0]} ... {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs]
    return ", ".join(shown[:MOST_SHOWN]) + (", ..." if len(shown) > MOST_SHOWN else "")
