"""A table as arrays, in three forms: rows of values, whole sequences in cells, or several lines per sequence (long)."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own import columns
from reservoir.tasks.own.arrays import Arrays, Skipped, padded
from reservoir.tasks.own.tables import OR_FILL, OR_OFFSET, BadRows, Table
from reservoir.tasks.own.texts import UNKNOWN, Texts

EVENTS = string.ascii_uppercase + string.ascii_lowercase + string.digits  # the letters that stand for names of events
MAX_DIGITS = 24  # most digits of a number that is one label; each digit of a longer number is a label


class TableReader:
    """Reads a table by the roles of its columns; for new sequences, ``known`` has the parameters of their task."""

    def __init__(self, table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None):
        self.table, self.asked, self.labelled, self.known = table, asked, known is None, known or {}
        self.fill = asked.missing != "refuse"
        self.roles = columns.choose_roles(table, asked, known)
        self.notes, self.chosen = self.roles.notes, self.roles.chosen
        self.notes += columns.number_notes(table.commas, table.percents)
        self.arrays: dict[str, np.ndarray] = {}
        self.texts: list[str] | None = None
        self.skipped: Skipped = {}

    def arrays_of_table(self) -> Arrays:
        """Return the arrays of a table in any of the three forms."""
        table, name, labels = self.table, self.roles.id, columns.listed(self.roles.labels)
        cells: Any = table.frame.pop(name) if name else []
        ids = [str(cell) for cell in cells]
        repeats = len(set(ids)) < len(ids)
        for role, column in (("id", name), ("time", self.roles.time)) if self.known.get("long") else ():
            if not column:  # lines would be mixed, or in another order
                columns.require_column(table, getattr(self.asked, role), known=self.known.get("columns", ()))
        if name and not self.asked.id and not repeats:
            self.notes.append(f"the column {name!r} holds names of the rows, so it is not read as a value")
        event = self._column_of_events() if repeats or not self.labelled else ""
        if (event or not self.roles.sequence) and (repeats if self.labelled else self.known.get("long", False)):
            for row in np.flatnonzero(cells.isna()) if name else ():
                table.bad.add(row, f"an empty cell in column {name!r}", "fill it")
            self._long(ids or ["0"] * len(table.frame), event)
        else:
            self._wide(ids)
            kept = table.bad.kept()
            self.skipped = table.bad.skipped(self.arrays.get("ids", ()))
            self.arrays = {name: array[kept] for name, array in self.arrays.items()}
            if self.texts is not None:
                self.texts = [text for text, good in zip(self.texts, kept, strict=True) if good]
        arrays = Arrays(self.arrays) if self.texts is None else Texts(str(table.path), self.texts, self.arrays)
        arrays.notes, arrays.chosen, arrays.label = [*self.notes, *table.bad.notes()], self.chosen, labels
        arrays.skipped = self.skipped
        return arrays

    def _column_of_events(self) -> str:
        """Return the column with the name of an event in each row of a sequence, or ""."""
        frame, column = self.table.frame, self.roles.sequence
        if not self.labelled:
            return (self.known.get("columns") or [""])[0] if "events" in self.known else ""
        timed = self.roles.time or any(name.lower() in columns.TIMES for name in frame)
        if not (column and timed and self.asked.id) or self.roles.group or columns.is_sequences(frame[column]):
            return ""
        return column if frame[column].nunique() <= min(len(EVENTS), len(frame) / 2) else ""

    def _letters_of(self, event: str) -> np.ndarray:
        """Return a letter for the event of each row; new events get that of unknown letters."""
        cells = self.table.frame[event]
        for row in np.flatnonzero(cells.isna()):
            self.table.bad.add(row, f"an empty cell in column {event!r}", "fill it")
        texts = cells.astype(str).str.strip()
        names = self.known.get("events") or sorted(set(texts[cells.notna()]))
        letters = dict(zip(names, EVENTS, strict=False))
        self.chosen["events"] = names
        self.chosen.pop("text", None)
        listed = columns.listed([f"{letter} {name}" for name, letter in letters.items()])
        self.notes.append(f"the events of {event!r} are read as letters: {listed}")
        return texts.map(letters).fillna(UNKNOWN).to_numpy(str)

    def _labels_and_groups(self) -> None:
        if names := [name for name in self.roles.labels if name in self.table.frame]:
            self.arrays["y"] = y = columns.joined_labels(self.table, names, self.asked, required=self.labelled)
            texts = {str(cell).strip() for cell in columns.filled(self.table.frame[names[0]])}
            if y.ndim == 1 and y.dtype.kind == "i" and len(texts) > len(numbers := np.unique(y)):
                count = f"{names[0]} has {len(texts):,} different texts for {len(numbers):,} numbers"
                self.notes.append(f"{count}; texts such as 007 and 7 are read as the same number")
            self.table.frame = self.table.frame.drop(columns=names)
        for array, name in {"split": "split", "groups": self.roles.group}.items():
            if name in self.table.frame:
                cells: Any = self.table.frame.pop(name)
                for row in np.flatnonzero(cells.isna()) if self.labelled else ():
                    self.table.bad.add(row, f"an empty cell in column {name!r}", "fill it")
                self.arrays[array] = np.array([str(cell).strip() for cell in cells])

    def _wide(self, ids: list[str]) -> None:
        table, whole, time = self.table, self.roles.sequence, self.roles.time
        if not time and self.labelled and (time := columns.time_of_rows(table, has_ids=bool(ids))):
            self.chosen["time"] = time
        if len(set(ids)) < len(ids):
            if time and self.asked.id and self.labelled and not self.roles.group:
                problem = (
                    f"{table.path}: rows with the same {self.roles.id!r} are not joined: {whole!r} has too many names"
                )
                raise InputError(f"{problem}; number its cells and pass --symbols, or pass --group instead of --id")
            if not (self.roles.group or self.asked.group or (self.asked.id and self.labelled)):
                self.arrays["groups"] = np.array(ids)
                self.notes.append(f"rows with the same {self.roles.id!r} are kept in one split")
            if self.asked.id or not self.labelled:
                ids = [f"{name}#{row}" for row, name in enumerate(ids)]
        if ids:
            self.arrays["ids"] = np.array(ids)
        if whole and len(self.roles.labels) == 1 and self._labels_of_each(self.roles.labels[0], whole):
            self.roles.labels = []
        self._labels_and_groups()
        if time in table.frame:
            table.frame.pop(time)
            self.notes.append(f"the column {time!r} is left out, because each row is a whole sequence")
        if whole:
            self._sequences(whole)
        else:
            self._values()

    def _labels_of_each(self, label: str, whole: str) -> bool:
        """Read a column with a label for every token; return False if it does not have that form.

        The cells must be lists, or texts (most of them different) of as many letters or words as their sequence has
        tokens. Numbers are labels of whole sequences, even if they have as many digits as the sequence has tokens.
        """
        bad, known = self.table.bad, "each" in self.known
        if label not in self.table.frame or not (self.labelled or known):
            return False
        labels, sequences = self.table.frame[label], self.table.frame[whole]
        if self.labelled and columns.is_number(labels) and max(len(str(cell)) for cell in labels) <= MAX_DIGITS:
            return False
        if not (self.asked.text or columns.is_text(sequences)):
            sequences = sequences.map(lambda cell: cell.split() if isinstance(cell, str) else cell)
        stripped = [cell.strip() if isinstance(cell, str) else cell for cell in sequences]
        sizes = [len(cell) if hasattr(cell, "__len__") else 0 for cell in stripped]
        parts = [_parts(cell) for cell in labels]
        given = [row for row, part in enumerate(parts) if part]
        lists = any(isinstance(cell, list | np.ndarray) for cell in labels)
        different = lists or len({str(labels[row]) for row in given}) > len(given) / 2
        wrong = [row for row in given if sizes[row] != len(parts[row])]
        fit = different and any(len(part) > 1 for part in parts) and len(wrong) < len(given) / 2
        if not (fit or known):
            return False
        for row in wrong if fit else ():
            bad.add(row, f"{len(parts[row])} labels for {sizes[row]} tokens")
        if fit and not self.labelled:
            self.arrays["y"] = np.array([*(part or None for part in parts), None], object)[:-1]
        if self.labelled:
            counts = np.array([len(part) for part in parts], np.int64)
            for row in np.flatnonzero(counts == 0):
                bad.add(row, f"no labels in column {label!r}")
            flat = columns.typed(f"{bad.where}, column {label!r}", [one for part in parts for one in part])
            self.arrays["y"] = np.zeros((len(counts), counts.max()), flat.dtype)
            self.arrays["y"][np.arange(counts.max()) < counts[:, None]] = flat
            self.chosen["each"] = "token"
            self.notes.append(f"the column {label!r} labels every token of {whole!r}")
        self.table.frame.pop(label)
        return True

    def _sequences(self, whole: str) -> None:
        """Read a column of texts, or of lists or texts of numbers."""
        bad, cells = self.table.bad, self.table.frame.pop(whole)
        if others := list(self.table.frame):
            self.notes.append(f"only {whole!r} is read, not the columns {columns.listed(others)}")
        numbers = self.known.get("numbers", False) or (self.labelled and columns.is_sequences(cells))
        if numbers and whole not in columns.SEQUENCES:
            self.chosen |= {"text": whole, "numbers": True}
        if not numbers and (self.asked.text or columns.is_text(cells) or columns.is_digits(cells)):
            self.chosen["text"] = whole
            self.texts = [str(cell).strip() for cell in cells.astype(object).where(cells.notna(), "")]
            for row in (row for row, text in enumerate(self.texts) if not text or "\0" in text):
                bad.add(row, "an empty text" if not self.texts[row] else "a NUL in the text", "write a text there")
            return
        found: dict[int, np.ndarray] = {}
        for row, cell in enumerate(cells):
            array = columns.as_numbers(cell) if isinstance(cell, str) else columns.as_sequence(cell)
            tokens = next(iter(found.values())).shape[1:] if found else None
            if array is None or not array.size:
                start = f"{str(cell)[:40]!r} is " if isinstance(cell, str | list) and cell else ""
                remedy = "write numbers there, or letters as one text"
                bad.add(row, f"{start}not a sequence of numbers in column {whole!r}", remedy)
            elif tokens is not None and array.shape[1:] != tokens:
                bad.add(row, f"tokens of shape {array.shape[1:]}, but {tokens} in the rows before")
            else:
                found[row] = array
                if not self.fill and array.dtype.kind == "f" and np.isnan(array).any():
                    reason, remedy = f"a missing value in column {whole!r}", "fill it" + OR_FILL * self.labelled
                    bad.add(row, reason, remedy)
        kept = np.flatnonzero(bad.kept())
        x, lengths = padded(str(self.table.path), [found[row] for row in kept.tolist()])
        for name, array in {"x": x, "lengths": lengths}.items():
            self.arrays[name] = np.zeros((len(cells), *array.shape[1:]), array.dtype)
            self.arrays[name][kept] = array

    def _values(self) -> None:
        """Read columns with one value per cell as floats (rows, values); rows may end early."""
        names, frame = self._choose_values(), self.table.frame
        empty = np.stack([frame[name].isna() | (frame[name].astype(object) == "") for name in names], axis=1)
        lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
        for row in np.flatnonzero(empty.all(axis=1)):
            self.table.bad.add(row, "no value", "fill the row")
        if short := int((lengths < len(names)).sum()):
            self.notes.append(f"{short:,} rows have no value in the last columns, and end at their last value")
            self.chosen["early"] = True
        if self.labelled and not all(name[-1:].isdigit() for name in names):
            self.notes.append(f"{len(names)} values per row: {columns.listed(names)}")
        self.arrays["x"] = columns.values_of(self.table, names, fill=self.fill, new=not self.labelled, lengths=lengths)
        self.arrays["lengths"] = lengths

    def _choose_values(self) -> list[str]:
        """Keep the task's value columns, in its order, and return them; rows may end before the last column."""
        table, known = self.table, self.known.get("columns", [])
        if known:
            end = sum(name in table.frame for name in known) if self.known.get("early") else len(known)
            for name in known[: max(end, 1)]:
                columns.require_column(table, name, known=known)
            table.frame = table.frame[[name for name in known if name in table.frame]]
        names = list(table.frame)
        if not names:
            raise InputError(f"{table.path}: no columns of values; give one column per value of a sequence")
        self.chosen["columns"] = names
        return names

    def _long(self, ids: Sequence[str], event: str) -> None:
        import pandas as pd

        table, name = self.table, self.roles.id or "id"
        self._labels_and_groups()
        time = self.roles.time or next((name for name in table.frame if name.lower() in columns.TIMES), "")
        self.chosen |= {"long": True} | ({"time": time} if time else {})
        times = self._ordered(time) if time else np.arange(len(ids))
        if event and self.labelled:
            table.frame = table.frame[[event]]
        names = self._choose_values()
        tokens = (
            self._letters_of(event) if event else columns.values_of(table, names, fill=self.fill, new=not self.labelled)
        )
        member, series = pd.factorize(np.array(ids))
        one_of_them = "keep one of them" + OR_OFFSET * (times.dtype.kind == "M")
        twice = np.flatnonzero(pd.DataFrame({"series": member, "time": times}).duplicated())
        for row in [] if event else twice.tolist():
            table.bad.add(row, f"{ids[row]!r} has two rows at {time} {times[row]}", one_of_them)
        first = np.unique(member, return_index=True)[1]
        self._check_one_label(name, first[member])
        # A sequence with a bad line is left out as a whole: a missing step would shift the later steps.
        good = np.setdiff1d(np.arange(len(series)), member[~table.bad.kept()])
        if not len(good):
            problem = f"{table.path}: every sequence has a line that cannot be read"
            raise InputError(f"{problem} ({table.bad.notes()[0]}); fix these lines")
        for line, (_, reason) in table.bad.skipped(ids).items():
            self.skipped.setdefault(int(member[line]), (ids[line], reason))
        rows = np.split(np.lexsort((times, member)), np.cumsum(np.bincount(member))[:-1])
        self.arrays = {array: values[first[good]] for array, values in self.arrays.items()}
        self.arrays["ids"] = series[good]
        if event:
            self.texts = ["".join(tokens[rows[one]]) for one in good]
        else:
            tokens = tokens[:, 0] if self.asked.symbols and len(names) == 1 else tokens
            self.arrays["x"], self.arrays["lengths"] = padded(str(table.path), [tokens[rows[one]] for one in good])
        by = f"by {time!r}" if time else "as in the file"
        made = f"{len(ids):,} rows make {len(series):,} sequences, one per {name!r}, ordered {by}"
        plain = len(names) == 1 and not (event or self.asked.symbols or self.asked.values)
        whole = plain and bool((tokens % 1 == 0).all())
        values = columns.listed(names) + "; pass --symbols for events" * whole
        self.notes.append(f"long form: {made}, with the values {values}")

    def _check_one_label(self, name: str, first: np.ndarray) -> None:
        """Refuse rows whose label, group or split differs from that of the ``first`` row of their sequence."""
        for array, values in self.arrays.items():
            unlike = (values != values[first]).reshape(len(values), -1).any(axis=1)
            if unlike.any():
                row, what = int(np.argmax(unlike)), "label" if array == "y" else array
                place = self.table.bad.places[row]
                start = f"{self.table.path}, {place}: the {what} differs from earlier rows with this {name!r}"
                flags = f"--group {quote(name)} or --drop {quote(name)} if each row is a whole sequence"
                remedy = f"pass {flags}, or use an .npz file to label steps"
                raise InputError(f"{start}; {remedy if self.labelled else 'make them equal'}")

    def _ordered(self, name: str) -> np.ndarray:
        """Return a column of times, numbers or ISO 8601 dates, as an array that can be sorted."""
        column, bad = self.table.frame.pop(name), self.table.bad
        for row in np.flatnonzero(column.isna()):
            bad.add(row, f"an empty cell in column {name!r}", "fill it")
        found = columns.times_of(column.ffill().bfill())
        if found is None:
            first = str(next(iter(columns.filled(column)), ""))[:40]
            problem = f"{self.table.path}, column {name!r}: times like {first!r} cannot be sorted"
            or_drop = f", or pass --drop {quote(name)} if the rows are in order" if self.labelled else ""
            raise InputError(f"{problem}; write dates as 2024-12-31, or numbers{or_drop}")
        return found


def columns_as_arrays(
    cells: Mapping[str, Sequence[Any]], bad: BadRows, asked: OwnDataOptions, known: Any, **roles: str | None
) -> Arrays:
    """Return columns of texts, labels, ids, groups and splits as arrays, read with the flags ``roles``."""
    import pandas as pd

    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})
    named: Any = {"regression": asked.regression, "classes": asked.classes, **roles}
    found = TableReader(Table(Path(bad.where), frame, bad), OwnDataOptions(**named), known).arrays_of_table()
    found.chosen = {name: found.chosen[name] for name in ("each",) if name in found.chosen}
    return found


def _parts(label: Any) -> list[Any]:
    if isinstance(label, str):
        return label.split() if " " in label.strip() else list(label.strip())
    return list(label) if isinstance(label, list | np.ndarray) else []
