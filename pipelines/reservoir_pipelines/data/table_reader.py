"""A table as arrays, in three forms: rows of values, whole sequences in cells, or several lines per sequence (long)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data import columns
from reservoir_pipelines.data.arrays import Arrays, Skipped, padded
from reservoir_pipelines.data.tables import EMPTY_CELL, BadRows, Table
from reservoir_pipelines.data.texts import Texts


class TableReader:
    """Reads a table by the roles of its columns; for new sequences, ``known`` has the parameters of their task."""

    def __init__(self, table: Table, asked: OwnDataOptions, known: Mapping[str, Any] | None = None):
        self.table, self.asked, self.labelled, self.known = table, asked, known is None, known or {}
        self.fill = asked.missing != "refuse"
        self.roles = columns.choose_roles(table, asked, known)
        self.notes, self.chosen = self.roles.notes, self.roles.chosen
        self.notes += table.notes()
        # x of dtype object holds texts, or sequences of several lengths
        self.arrays: dict[str, np.ndarray] = {}
        self.skipped: Skipped = {}

    def arrays_of_table(self) -> Arrays:
        """Return the arrays of a table in any of the three forms."""
        table, name, label = self.table, self.roles.id, columns.listed(self.roles.labels)
        ids = [str(cell) for cell in table.frame[name]] if name else []
        repeats = len(set(ids)) < len(ids)
        if name and not self.asked.id and not repeats:
            self.notes.append(f"the column {name!r} holds names of the rows, so it is not read as a value")
        if not self.roles.sequence and (repeats if self.labelled else "long" in self.known):
            self._long(ids)
        else:
            self._wide(ids, repeats=repeats)
            kept = table.bad.kept()
            self.skipped = table.bad.skipped(self.arrays.get("ids", ()))
            self.arrays = {name: array[kept] for name, array in self.arrays.items()}
        arrays = self._padded()
        arrays.notes, arrays.chosen, arrays.label = [*self.notes, *table.bad.notes()], self.chosen, label
        arrays.skipped = self.skipped
        return arrays

    def _padded(self) -> Arrays:
        where, x = str(self.table.path), self.arrays.pop("x")
        if x.dtype == object and isinstance(x[0], str):
            return Texts(where, x.tolist(), self.arrays)
        if x.dtype == object:
            x, self.arrays["lengths"] = padded(where, x.tolist())
        return Arrays({"x": x, **self.arrays})

    def _labels_and_groups(self) -> None:
        if names := [name for name in self.roles.labels if name in self.table.frame]:
            self.arrays["y"] = columns.joined_labels(self.table, names, self.asked, required=self.labelled)
            self.table.frame = self.table.frame.drop(columns=names)
        for array, name in {"split": "split", "groups": self.roles.group}.items():
            if name in self.table.frame:
                cells: Any = self.table.frame.pop(name)
                for row in np.flatnonzero(cells.isna()) if self.labelled else ():
                    self.table.bad.add(row, f"no {array} in column {name!r}")
                self.arrays[array] = np.array([str(cell).strip() for cell in cells])

    def _wide(self, ids: list[str], *, repeats: bool) -> None:
        table, whole, time, group = self.table, self.roles.sequence, self.roles.time, self.roles.group
        if not time and self.labelled and (time := columns.time_of_rows(table, has_ids=bool(ids))):
            self.chosen["time"] = time
        timed = time or any(name.lower() in columns.TIMES for name in table.frame)
        if repeats and self.asked.id and self.labelled and timed and not group:
            problem = f"{table.path}: rows with the same {self.roles.id!r} are not joined: {whole!r} holds sequences"
            ways = "number names of events and pass --symbols, or pass --group instead of --id"
            raise InputError(problem, ways)
        if repeats and not (group or self.asked.group):
            self.arrays["groups"] = np.array(ids)
            self.notes.append(f"rows with the same {self.roles.id!r} are kept in one split")
        if ids:
            self.arrays["ids"] = np.array(
                [f"{name}#{row}" for row, name in enumerate(ids)] if repeats else ids
            )
            table.frame.pop(self.roles.id)
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

        The cells must be lists, or texts (most of them different) of as many letters or words as
        there are tokens.
        """
        bad, known = self.table.bad, "each" in self.known
        if label not in self.table.frame or not (self.labelled or known):
            return False
        labels, sequences = self.table.frame[label], self.table.frame[whole]
        if self.labelled and columns.is_number(labels):
            return False
        letters = self.asked.text or columns.is_text(sequences)
        sizes = [_token_count(cell, letters=bool(letters)) for cell in sequences]
        parts = [_parts(cell) for cell in labels]
        given = [row for row, part in enumerate(parts) if part]
        wrong = [row for row in given if sizes[row] != len(parts[row])]
        lists = any(isinstance(cell, list | np.ndarray) for cell in labels)
        different = lists or len({str(labels[row]) for row in given}) > len(given) / 2
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
            cells = [cell for part in parts for cell in part]
            flat = columns.typed(f"{bad.where}, column {label!r}", cells, self.asked)
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
        lists = any(isinstance(cell, list) for cell in cells)
        numbers = lists or self.known.get("numbers") or (self.labelled and columns.is_sequences(cells))
        if numbers and whole not in columns.SEQUENCES:
            self.chosen |= {"text": whole, "numbers": True}
        if not numbers and (self.asked.text or columns.is_text(cells) or columns.is_digits(cells)):
            self.chosen["text"] = whole
            texts = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
            for row in np.flatnonzero((texts == "") | texts.str.contains("\0", regex=False)):
                bad.add(row, "a NUL in the text" if texts[row] else "an empty text")
            self.arrays["x"] = texts.to_numpy(object)
            return
        found = [
            columns.as_numbers(cell) if isinstance(cell, str) else columns.as_sequence(cell)
            for cell in cells
        ]
        shape = next((array.shape[1:] for array in found if array is not None), ())
        for row, array in enumerate(found):
            if array is None or not array.size:
                bad.add(row, f"{str(cells[row])[:40]!r} is not a sequence of numbers in column {whole!r}")
            elif array.shape[1:] != shape:
                bad.add(row, f"tokens of shape {array.shape[1:]}, but {shape} in the rows before")
            elif not self.fill and array.dtype.kind == "f" and np.isnan(array).any():
                bad.add(row, f"{EMPTY_CELL} {whole!r}")
        self.arrays["x"] = np.fromiter(found, object)

    def _values(self) -> None:
        """Read columns with one value per cell as floats (rows, values); rows may end early."""
        names, frame = self._choose_values(), self.table.frame
        if all(any(isinstance(cell, list) for cell in frame[name]) for name in names):
            self._channels(names)
            return
        empty = np.stack(
            [frame[name].isna() | (frame[name].astype(object) == "") for name in names], axis=1
        )
        lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
        for row in np.flatnonzero(empty.all(axis=1)):
            self.table.bad.add(row, "no value")
        if short := int((lengths < len(names)).sum()):
            self.notes.append(
                f"{short:,} rows have no value in the last columns, and end at their last value"
            )
            self.chosen["early"] = True
        if self.labelled and not all(name[-1:].isdigit() for name in names):
            self.notes.append(f"{len(names)} values per row: {columns.listed(names)}")
        self.arrays["x"] = columns.values_of(self.table, names, fill=self.fill, lengths=lengths)
        self.arrays["lengths"] = lengths

    def _channels(self, names: list[str]) -> None:
        """Read columns of lists of numbers, one column per channel."""
        self.notes.append(f"{len(names)} channels, one per column of lists: {columns.listed(names)}")
        self.arrays["x"] = np.empty(len(self.table.frame), object)
        for row, cells in enumerate(zip(*(self.table.frame[name] for name in names), strict=True)):
            found = [columns.as_sequence(cell) for cell in cells]
            series = [one for one in found if one is not None and one.ndim == 1]
            if len(series) < len(names) or len({one.size for one in series}) > 1:
                problem = f"the cells of {columns.listed(names)} are not lists of numbers of one length"
                self.table.bad.add(row, problem)
                continue
            self.arrays["x"][row] = np.stack(series, axis=1)
            if not self.fill and np.isnan(self.arrays["x"][row]).any():
                self.table.bad.add(row, f"{EMPTY_CELL} {columns.listed(names)}")

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
            raise InputError(
                f"{table.path}: no columns of values", "give one column per value of a sequence"
            )
        self.chosen["columns"] = names
        return names

    def _long(self, ids: list[str]) -> None:
        import pandas as pd

        table, name = self.table, self.roles.id or "id"
        # else lines would be mixed, or in another order
        for role in () if self.labelled else ("id", "time"):
            columns.require_column(table, getattr(self.asked, role), known=self.known.get("columns", ()))
        for row in np.flatnonzero(table.frame.pop(name).isna()) if ids else ():
            table.bad.add(row, f"no id in column {name!r}")
        ids = ids or ["0"] * len(table.frame)
        for label in {*self.roles.labels} & {*table.frame}:
            column = table.frame[label]  # often only one row of a sequence has its label
            table.frame[label] = column.fillna(column.groupby(np.array(ids)).transform("first"))
        self._labels_and_groups()
        time = self.roles.time or next((name for name in table.frame if name.lower() in columns.TIMES), "")
        self.chosen |= {"long": True} | ({"time": time} if time else {})
        times = columns.sortable_times(table, time) if time else np.arange(len(ids))
        table.frame = table.frame.drop(columns=[time] if time else [])
        names = self._choose_values()
        tokens = columns.values_of(table, names, fill=self.fill)
        member, series = pd.factorize(np.array(ids))
        for row in np.flatnonzero(pd.DataFrame({"series": member, "time": times}).duplicated()):
            table.bad.add(row, f"{ids[row]!r} has two rows at {time} {times[row]}")
        first = np.unique(member, return_index=True)[1]
        self._check_one_label(name, first[member])
        # A sequence with a bad line is left out as a whole: a missing step would shift the later steps.
        good = np.setdiff1d(np.arange(len(series)), member[~table.bad.kept()])
        if not len(good):
            problem = f"{table.path}: every sequence has a line that cannot be read"
            raise InputError(f"{problem} ({table.bad.notes()[0]})", "fix these lines")
        for line, (_, reason) in table.bad.skipped(ids).items():
            self.skipped.setdefault(int(member[line]), (ids[line], reason))
        rows = np.split(np.lexsort((times, member)), np.cumsum(np.bincount(member))[:-1])
        self.arrays = {array: values[first[good]] for array, values in self.arrays.items()}
        self.arrays["ids"] = series[good]
        tokens = tokens[:, 0] if self.asked.symbols and len(names) == 1 else tokens
        self.arrays["x"] = np.fromiter((tokens[rows[one]] for one in good), object)
        by = f"by {time!r}" if time else "as in the file"
        made = f"{len(ids):,} rows make {len(series):,} sequences, one per {name!r}, ordered {by}"
        self.notes.append(f"long form: {made}, with the values {columns.listed(names)}")

    def _check_one_label(self, name: str, first: np.ndarray) -> None:
        """Refuse rows whose label, group or split differs from that of the ``first`` row of their sequence."""
        for array, values in self.arrays.items():
            unlike = (values != values[first]).reshape(len(values), -1).any(axis=1)
            if unlike.any():
                row, what, flag = int(np.argmax(unlike)), "label" if array == "y" else array, quote(name)
                problem = f"{self.table.bad.places[row]}: the {what} differs from earlier rows with this"
                or_flags = f", or pass --group {flag} or --drop {flag} if each row is a whole sequence"
                raise InputError(f"{self.table.path}, {problem} {name!r}", f"make them equal{or_flags}")


def columns_as_arrays(
    cells: Mapping[str, Sequence[Any]], bad: BadRows, asked: OwnDataOptions, known: Any, **roles: str | None
) -> Arrays:
    """Return columns of texts, labels, ids, groups and splits as arrays, read with the flags ``roles``."""
    import pandas as pd

    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})
    named: Any = {"regression": asked.regression, "classes": asked.classes, **roles}
    found = TableReader(
        Table(Path(bad.where), frame, bad), OwnDataOptions(**named), known
    ).arrays_of_table()
    found.chosen = {name: found.chosen[name] for name in ("each",) if name in found.chosen}
    return found


def _parts(label: Any) -> list[Any]:
    if isinstance(label, str):
        return label.split() if " " in label.strip() else list(label.strip())
    return list(label) if isinstance(label, list | np.ndarray) else []


def _token_count(cell: Any, *, letters: bool) -> int:
    if isinstance(cell, str):
        return len(cell.strip() if letters else cell.split())
    return len(cell) if isinstance(cell, list | np.ndarray) else 0
