"""The forms of a table as arrays: a sequence per row (values, letters, lists), or a step per row (long form)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import (
    MOST,
    as_texts,
    holds_digits,
    holds_lists,
    holds_sequences,
    holds_words,
    listed,
    notes_on_gaps,
    numbers_of_list,
    numbers_of_text,
    require_column,
    sortable_times,
    values_of,
)
from reservoir_pipelines.data.roles import Roles
from reservoir_pipelines.data.rows import EMPTY_CELL, Skipped, padded
from reservoir_pipelines.data.table import Table
from reservoir_pipelines.data.table_chats import chat_texts, marked_texts
from reservoir_pipelines.data.table_labels import joined_labels, padded_labels

# Of a column, relative to that of all values: a hundred times the rounding error of float32.
MIN_DEVIATION = 1e-5


@dataclass
class TableArrays:
    """A table with the roles of its columns, and its arrays (rows, ...) so far.

    ``fitted`` has the parameters of the readout's task if these are new sequences, else it is None.
    ``chosen`` are the choices that are needed to read new data.
    """

    table: Table
    roles: Roles
    options: OwnDataOptions
    fitted: Mapping[str, Any] | None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()  # of the class numbers in ``y``, if the labels are such numbers

    @property
    def new(self) -> bool:
        """Whether these are new sequences, which need no labels."""
        return self.fitted is not None

    @property
    def remembered(self) -> Mapping[str, Any]:
        """The parameters of the readout's task; empty while a task is made."""
        return self.fitted or {}

    @property
    def fill(self) -> bool:
        """Whether missing values are filled later, so that an empty cell is NaN."""
        return self.options.missing != "refuse"

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as texts."""
        return [str(cell).strip() for cell in self.table.frame[name]]

    def read_labels(self) -> None:
        """Read the columns of labels, if any, as ``y``."""
        labels = [name for name in self.roles.labels if name in self.table.frame]
        if labels:
            self.arrays["y"] = joined_labels(self.table, labels, self.options, required=not self.new)

    def read_groups_and_split(self) -> None:
        """Read the columns of groups and splits, if any; an empty cell is a bad row while a task is made."""
        for array, name in {"split": self.roles.split, "groups": self.roles.group}.items():
            if not name:
                continue
            for row in np.flatnonzero(self.table.frame[name].isna()) if not self.new else ():
                self.table.bad.add(row, f"no {array} in column {name!r}")
            self.arrays[array] = np.array(self.texts(name))

    def value_columns(self) -> list[str]:
        """Return the columns of values: those of the readout's task, in its order, or all without another role.

        If rows of the task may end early, the last columns may be missing.
        """
        table = self.table
        names = list(self.remembered.get("columns", self.roles.values))
        present = [name for name in names if name in table.frame]
        required = names[: max(len(present), 1)] if self.remembered.get("early") else names
        for name in required:
            require_column(table.path, table.names, name, fitted=names)
        if not present:
            raise InputError(
                f"{table.path}: no columns of values", "give one column per value of a sequence"
            )
        self.chosen["columns"] = present
        return present


# ---- a sequence per row


def read_values(reading: TableArrays) -> None:
    """Read columns with one value per cell as ``x``, floats (rows, values); rows may end early (``lengths``)."""
    table = reading.table
    names = reading.value_columns()
    if all(holds_lists(table.frame[name]) for name in names):
        _read_channels(reading, names)
        return

    # A row ends at its last filled cell; an empty cell before that is a missing value. From the right, the first
    # cell that is not empty is the last one of the row.
    empty = np.stack([_is_empty(table.frame[name]) for name in names], axis=1)
    lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
    for row in np.flatnonzero(empty.all(axis=1)):
        table.bad.add(row, "no value")
    short_rows = int((lengths < len(names)).sum())
    if short_rows:
        reading.notes.append(
            f"{short_rows:,} rows have no value in the last columns, and end at their last value"
        )
        reading.chosen["early"] = True
    # Names such as t0, t1 ... need no note.
    if not reading.new and not all(name[-1:].isdigit() for name in names):
        reading.notes.append(f"{len(names)} values per row: {listed(names)}")
    x = values_of(table, names, reading.options, fill=reading.fill, lengths=lengths)
    if not reading.new and len(x):
        reading.notes += notes_on_scales(names, x)
    reading.arrays["x"] = x
    reading.arrays["lengths"] = lengths


def notes_on_scales(names: Sequence[str], x: np.ndarray) -> list[str]:
    """Return a line if rounding hides columns of ``x`` (rows, values) beside another one of far larger numbers.

    A row is standardised as a whole, in float32, which has about seven digits for the largest and the smallest column.
    """
    values = np.ma.masked_invalid(x)
    values = values / float(abs(values).max() or 1)  # squares of huge numbers would overflow
    deviations, mean = values.std(axis=0).filled(0), values.mean()
    is_hidden = (deviations > 0) & (deviations < MIN_DEVIATION * float(values.std()))
    largest_column = int(np.square(values - mean).mean(axis=0).filled(0).argmax())
    is_hidden[largest_column] = False
    if not is_hidden.any():
        return []
    hidden = [names[column] for column in np.flatnonzero(is_hidden).tolist()]
    largest_name = names[largest_column]
    problem = f"{listed(hidden)} cannot be seen beside {largest_name}, because all values of a row are read in one unit"
    return [f"{problem}; scale the columns, or pass --drop {quote(largest_name)}"]


def _is_empty(column: Any) -> np.ndarray:
    empty = column.isna()
    if column.dtype.kind not in "biuf":
        empty |= column.astype(object) == ""
    return empty.to_numpy()


def _read_channels(reading: TableArrays, names: list[str]) -> None:
    """Read columns of lists of numbers, one column per channel, as ``x``: objects (steps, channels)."""
    table = reading.table
    reading.notes.append(f"{len(names)} channels, one per column of lists: {listed(names)}")
    x = np.empty(len(table.frame), object)
    for row, cells in enumerate(zip(*(table.frame[name] for name in names), strict=True)):
        channels = [numbers_of_list(cell) for cell in cells]
        series = [channel for channel in channels if channel is not None and channel.ndim == 1]
        if len(series) < len(names) or len({channel.size for channel in series}) > 1:
            table.bad.add(row, f"the cells of {listed(names)} are not lists of numbers of one length")
            continue
        x[row] = np.stack(series, axis=1)
        if not reading.fill and np.isnan(x[row]).any():
            table.bad.add(row, f"{EMPTY_CELL} {listed(names)}")
    reading.arrays["x"] = x


def holds_letters(reading: TableArrays, name: str) -> bool:
    """Return whether the cells of a column of sequences are letters, not numbers."""
    if _holds_numbers(reading, name):
        return False
    cells = reading.table.frame[name]
    return bool(reading.options.text) or holds_digits(cells) or holds_words(cells)


def _holds_numbers(reading: TableArrays, name: str) -> bool:
    """Return whether the cells hold lists of numbers; for new data, the readout decides how texts are read."""
    cells = reading.table.frame[name]
    if holds_lists(cells) or reading.remembered.get("numbers"):
        return True
    return not reading.new and holds_sequences(cells)


def read_sequences(reading: TableArrays, name: str, *, letters: bool) -> None:
    """Read a column of ``letters``, or of lists or texts of numbers, as ``x``: an array of objects (rows,)."""
    table = reading.table
    if reading.roles.values:
        reading.notes.append(f"only {name!r} is read, not the columns {listed(reading.roles.values)}")
    if letters:
        reading.chosen["text"] = name
        if reading.options.chat:
            reading.chosen["chat"] = True
            reading.arrays["x"] = chat_texts(table, name)
        else:
            reading.arrays["x"] = _letters(reading, name)
        return
    if reading.roles.span:
        raise InputError(
            f"{table.path}: {name!r} holds numbers, of which no span can be marked",
            "leave --span out, or pass --drop for the column",
        )
    if _holds_numbers(reading, name) and name.lower() not in {"x", "sequence"}:
        reading.chosen |= {"text": name, "numbers": True}
    # Read each cell as an array of numbers, or None.
    cells = table.frame[name]
    sequences = [
        numbers_of_text(cell) if isinstance(cell, str) else numbers_of_list(cell) for cell in cells
    ]
    # Every token has the shape of those of the first readable row: a number, or one for each channel.
    shape = next((sequence.shape[1:] for sequence in sequences if sequence is not None), ())
    for row, sequence in enumerate(sequences):
        if sequence is None or not sequence.size:
            table.bad.add(row, f"{str(cells[row])[:40]!r} is not a sequence of numbers in column {name!r}")
        elif sequence.shape[1:] != shape:
            table.bad.add(row, f"tokens of shape {sequence.shape[1:]}, but {shape} in the rows before")
        elif not reading.fill and sequence.dtype.kind == "f" and np.isnan(sequence).any():
            table.bad.add(row, f"{EMPTY_CELL} {name!r}")
    reading.arrays["x"] = np.fromiter(sequences, object)


def _letters(reading: TableArrays, name: str) -> np.ndarray:
    """Return a column of texts, (rows,) of objects; an empty text, and one with a NUL, is a bad row."""
    texts = as_texts(reading.table.frame[name])
    for row in np.flatnonzero((texts == "") | texts.str.contains("\0", regex=False)):
        reading.table.bad.add(row, "a NUL in the text" if texts[row] else "an empty text")
    if not reading.roles.span:
        return texts.to_numpy(object)
    reading.chosen["span"] = ",".join(reading.roles.span)
    if not reading.options.span:
        reading.notes.append(
            f"{reading.chosen['span']!r} is a span of each text, which --pool span reads; pass --drop to leave it out"
        )
    return marked_texts(reading.table, name, reading.roles.span)


# ---- a label per token


def read_token_labels(reading: TableArrays, label: str, sequence: str, *, letters: bool) -> bool:
    """Read a column with a label for every token as ``y``; return False if it does not have that form.

    The cells must be lists, or texts (most of them different) of as many letters or words as there are
    tokens. With ``letters``, a token is a letter of ``sequence``, else a number.
    """
    table, bad = reading.table, reading.table.bad
    required_form = reading.remembered.get("each") == "token"
    if label not in table.frame or (reading.new and not required_form):
        return False
    if not reading.new and table.frame[label].dtype.kind in "biuf":
        return False

    # One label for a whole row can have the length of the row by chance, so that most rows must fit,
    # and most labels must differ, as names of classes do not.
    labels = [_parts(cell) for cell in table.frame[label]]
    tokens = [_token_count(cell, letters=letters) for cell in table.frame[sequence]]
    labelled_rows = [row for row, parts in enumerate(labels) if parts]
    unequal_rows = [row for row in labelled_rows if tokens[row] != len(labels[row])]
    some_have_several = any(len(parts) > 1 for parts in labels)
    different_cells = {str(table.frame[label][row]) for row in labelled_rows}
    most_differ = holds_lists(table.frame[label]) or len(different_cells) > len(labelled_rows) / 2
    most_fit = len(unequal_rows) < len(labelled_rows) / 2
    has_form = some_have_several and most_differ and most_fit
    if not has_form:
        return required_form
    for row in unequal_rows:
        bad.add(row, f"{len(labels[row])} labels for {tokens[row]} tokens")
    if reading.new:
        objects = np.empty(len(labels), object)
        objects[:] = [parts or None for parts in labels]
        reading.arrays["y"] = objects
        return True
    for row, parts in enumerate(labels):
        if not parts:
            bad.add(row, f"no labels in column {label!r}")
    reading.arrays["y"] = padded_labels(f"{table.bad.where}, column {label!r}", labels, reading.options)
    reading.chosen["each"] = "token"
    reading.notes.append(f"the column {label!r} labels every token of {sequence!r}")
    return True


def _parts(label: Any) -> list[Any]:
    """Return the words of a text, or its letters if it is one word, or the items of a list."""
    if isinstance(label, str):
        return label.split() if " " in label.strip() else list(label.strip())
    return list(label) if isinstance(label, list | np.ndarray) else []


def _token_count(cell: Any, *, letters: bool) -> int:
    if isinstance(cell, str):
        return len(cell.strip() if letters else cell.split())
    return len(cell) if isinstance(cell, list | np.ndarray) else 0


# ---- a step per row


def read_long_form(reading: TableArrays) -> Skipped:
    """Read ``x`` as sequences (steps, values) in an array of objects, and the other arrays, a row per sequence.

    Return why sequences are left out: a sequence with a bad row is left out as a whole, because a
    missing step would shift the later steps.
    """
    import pandas as pd

    table, roles = reading.table, reading.roles
    if reading.new:  # without these columns, rows of several sequences would be mixed
        for name in (reading.options.id or "id", reading.options.time or "time"):
            require_column(table.path, table.names, name, fitted=reading.remembered.get("columns", ()))
    for row in np.flatnonzero(table.frame[roles.id].isna()):
        table.bad.add(row, f"no id in column {roles.id!r}")
    ids = np.array(reading.texts(roles.id))

    labels_steps = _labels_steps(reading, ids)
    # Often only one row of a sequence has its label.
    for label in () if labels_steps else {*roles.labels} & {*table.frame}:
        column = table.frame[label]
        table.frame[label] = column.fillna(column.groupby(ids).transform("first"))
    reading.read_labels()
    step_labels = reading.arrays.pop("y", None) if labels_steps else None
    reading.read_groups_and_split()
    times = sortable_times(table, roles.time)
    names = reading.value_columns()
    steps = values_of(table, names, reading.options, fill=reading.fill)

    # ``member`` is the number of each row's sequence, and ``first`` the first row of each sequence.
    member, sequence_ids = pd.factorize(ids)
    for row in np.flatnonzero(pd.DataFrame({"member": member, "time": times}).duplicated()):
        table.bad.add(row, f"{str(ids[row])!r} has two rows at {roles.time} {times[row]}")
    first = np.unique(member, return_index=True)[1]
    _check_constant(reading, first[member])
    left_out = np.unique(member[~table.bad.readable()])
    good = np.setdiff1d(np.arange(len(sequence_ids)), left_out)
    if not len(good):
        raise InputError(
            f"{table.path}: every sequence has a line that cannot be read ({table.bad.notes()[0]})",
            "fix these lines",
        )
    skipped: Skipped = {}
    for row, (_, reason) in table.bad.skipped(ids).items():
        skipped.setdefault(int(member[row]), (str(ids[row]), reason))

    # Sorting by sequence and then by time puts the rows of each sequence next to each other, in order; they are
    # split where the next sequence begins.
    ends = np.cumsum(np.bincount(member))
    ordered_rows = np.split(np.lexsort((times, member)), ends[:-1])
    reading.arrays = {array: values[first[good]] for array, values in reading.arrays.items()}
    reading.arrays["ids"] = sequence_ids[good]
    if step_labels is not None:
        _read_step_labels(reading, [step_labels[ordered_rows[sequence]] for sequence in good])
    if reading.options.symbols and len(names) == 1:
        steps = steps[:, 0]
    reading.arrays["x"] = np.fromiter((steps[ordered_rows[sequence]] for sequence in good), object)
    reading.chosen |= {"long": True, "time": roles.time}
    reading.notes.append(
        f"long form: {len(ids):,} rows make {len(sequence_ids):,} sequences, one per {roles.id!r}, "
        f"ordered by {roles.time!r}, with the values {listed(names)}"
    )
    if len(left_out):
        reading.notes.append(
            f"{len(left_out):,} of {len(sequence_ids):,} sequences are left out with all their rows, because a missing "
            f"step would shift the later ones: {listed([str(sequence_ids[sequence]) for sequence in left_out])}"
        )
    if not reading.options.symbols:  # symbols are events, which are seldom equally spaced
        reading.notes += notes_on_gaps(times, member)
    return skipped


def _labels_steps(reading: TableArrays, ids: np.ndarray) -> bool:
    """Return whether the label belongs to each step, not to the whole sequence: it changes in most sequences.

    If it changes in at most half of the sequences, the differing labels are taken for mistakes, which `_check_constant`
    refuses.
    """
    if reading.new:
        return reading.remembered.get("each") == "token"  # as in the fit
    labels = [name for name in reading.roles.labels if name in reading.table.frame]
    if len(labels) != 1:
        return False  # there is no label, or several, which belong to the sequence
    cells = as_texts(reading.table.frame[labels[0]])
    different_labels = cells[cells != ""].groupby(ids[cells != ""]).nunique()
    return bool((different_labels > 1).mean() > MOST)


def _read_step_labels(reading: TableArrays, labels: list[np.ndarray]) -> None:
    """Read the labels of the steps of each sequence as ``y``, (rows, longest), or of new sequences as lists."""
    if reading.new:
        objects = np.empty(len(labels), object)
        objects[:] = [None if None in steps.tolist() else steps.tolist() for steps in labels]
        reading.arrays["y"] = objects
        return
    (label,) = reading.roles.labels
    reading.arrays["y"] = padded("", labels)[0]
    reading.chosen["each"] = "token"
    reading.notes.append(
        f"the column {label!r} labels every step; pass --group {quote(reading.roles.id)} instead of --id "
        "if each row is a whole sequence"
    )


def _check_constant(reading: TableArrays, first: np.ndarray) -> None:
    """Refuse rows whose label, group or split differs from that of the ``first`` row (rows,) of their sequence."""
    table, name = reading.table, reading.roles.id
    for array, values in reading.arrays.items():
        differs = (values != values[first]).reshape(len(values), -1).any(axis=1)
        if not differs.any():
            continue
        row = int(np.argmax(differs))
        role = {"y": "label", "groups": "group"}.get(array, array)  # ``split`` is called like its role
        flags = f"--group {quote(name)} or --drop {quote(name)}"
        remedy = f"make them equal, or pass {flags} if each row is a whole sequence"
        if array == "groups":
            remedy += (
                f", or give each sequence an id of its own if the same {name!r} stand in several groups"
            )
        if array == "y":
            remedy += ", or write an .npz with y (sequences, steps) beside x if every step has a label"
        raise InputError(
            f"{table.path}, {table.bad.places[row]}: the {role} differs from earlier rows with this {name!r}",
            remedy,
        )
