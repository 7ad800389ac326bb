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
    as_written,
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

MIN_DEVIATION = 1e-5
"""Smallest visible standard deviation of a column, relative to that of all values.

It is about a hundred times the rounding error of float32.
"""


@dataclass
class TableArrays:
    """A table with the roles of its columns, and the arrays that have been read from it so far.

    Parameters
    ----------
    table : Table
        The table, whose bad rows are noted in ``table.bad``.
    roles : Roles
        The columns by role.
    options : OwnDataOptions
        The user's options.
    fitted : mapping, optional
        The parameters of the readout's task if the rows are new sequences; None while a task is made.
    arrays : dict of str to array (rows, ...)
        The arrays by their names as fields of `Rows`, such as ``x`` and ``y``.
    notes : list of str
        Lines for the user on how the table is read.
    parameters : dict
        The choices that a task stores, so that new data are read in the same way.
    class_names : tuple of str
        The names of the classes whose numbers are in ``y``; empty if ``y`` holds the labels themselves.
    """

    table: Table
    roles: Roles
    options: OwnDataOptions
    fitted: Mapping[str, Any] | None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether these are new sequences, which need no labels."""
        return self.fitted is not None

    @property
    def fitted_parameters(self) -> Mapping[str, Any]:
        """The parameters of the readout's task; empty while a task is made."""
        return self.fitted or {}

    @property
    def fill(self) -> bool:
        """Whether missing values are filled later, so that an empty cell is NaN."""
        return self.options.missing != "refuse"

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as texts without spaces at their ends; an empty cell is "nan" or "None"."""
        return [str(cell).strip() for cell in self.table.frame[name]]

    def read_labels(self) -> None:
        """Read the columns of labels, if any, as ``y``."""
        labels = [name for name in self.roles.labels if name in self.table.frame]
        if labels:
            self.arrays["y"] = joined_labels(self.table, labels, self.options, required=not self.is_new)

    def read_groups_and_split(self) -> None:
        """Read the columns of groups and splits, if any; an empty cell is a bad row while a task is made."""
        for array, name in {"split": self.roles.split, "groups": self.roles.group}.items():
            if not name:
                continue
            if not self.is_new:
                for row in np.flatnonzero(self.table.frame[name].isna()):
                    self.table.bad.add(row, f"no {array} in column {name!r}")
            self.arrays[array] = np.array(self.texts(name))

    def value_columns(self) -> list[str]:
        """Return the columns of values, and record them as the parameter ``columns``; refuse a table that lacks one.

        They are those of the readout's task, in its order, or while a task is made all columns without another role.
        If rows of the task may end early, the last columns may be missing.
        """
        table = self.table
        names = list(self.fitted_parameters.get("columns", self.roles.values))
        present = [name for name in names if name in table.frame]
        required = names
        if self.fitted_parameters.get("early"):
            # As many columns as are present must be the first ones, so that only columns at the end are missing.
            required = names[: max(len(present), 1)]
        for name in required:
            require_column(table.path, table.names, name, fitted=names)
        if not present:
            raise InputError(
                f"{table.path}: no columns of values", "give one column per value of a sequence"
            )
        self.parameters["columns"] = present
        return present


# ---- a sequence per row


def read_value_columns(reading: TableArrays) -> None:
    """Read columns with one value per cell as ``x``, floats (rows, values); rows may end early (``lengths``)."""
    table = reading.table
    names = reading.value_columns()
    if all(holds_lists(table.frame[name]) for name in names):
        _read_channels(reading, names)
        return

    # A row of steps, in columns such as t0, t1 ..., ends at its last filled cell; an empty cell before that is a
    # missing value. ``argmin`` returns the first False of each row: read from the right, that is the last cell that is
    # not empty. Columns with other names are properties of a row, and each of their empty cells is a missing value. So
    # are those of new rows for a readout of whole rows.
    is_empty = np.stack([_is_empty(table.frame[name]) for name in names], axis=1)
    lengths = len(names) - np.argmin(is_empty[:, ::-1], axis=1)
    # Numbered columns have one name but for the number: pm10, pm25 and no2 are no steps.
    have_one_stem = len({name.rstrip("0123456789.-") for name in names}) == 1
    are_numbered = have_one_stem and all(name[-1:].isdigit() for name in names)
    may_end_early = reading.fitted_parameters.get("early") if reading.is_new else are_numbered
    if not may_end_early:
        lengths[:] = len(names)
    for row in np.flatnonzero(is_empty.all(axis=1)):
        table.bad.add(row, "no value")
    short_rows = int((lengths < len(names)).sum())
    if short_rows:
        reading.notes.append(
            f"{short_rows:,} rows have no value in the last columns, and end at their last value"
        )
        reading.parameters["early"] = True
    if not reading.is_new and not are_numbered:  # names such as t0, t1 ... need no note
        reading.notes.append(f"{len(names)} values per row: {listed(names)}")
    x = values_of(table, names, reading.options, fill=reading.fill, lengths=lengths)
    if not reading.is_new and len(x):
        reading.notes += notes_on_scales(names, x)
    reading.arrays["x"] = x
    reading.arrays["lengths"] = lengths


def notes_on_scales(names: Sequence[str], x: np.ndarray) -> list[str]:
    """Return a line if rounding hides columns of ``x`` (rows, values) beside another one of far larger numbers.

    A row is standardised as a whole, in float32, which has about seven digits for the largest and the smallest column.
    ``names`` (values,) are those of the columns.
    """
    # Divide by the largest number, because squares of huge numbers would overflow; if all are 0, by 1.
    values = np.ma.masked_invalid(x)
    values = values / float(abs(values).max() or 1)
    # A column is hidden if it varies, but far less than all values together. The deviation of a constant column is a
    # rounding error, not always 0.
    varies = (values.max(axis=0) > values.min(axis=0)).filled(False)
    deviations = values.std(axis=0).filled(0)
    is_hidden = varies & (deviations < MIN_DEVIATION * float(values.std()))
    # The column that is farthest from the mean of all values hides the others, and is not hidden itself.
    largest_column = int(np.square(values - values.mean()).mean(axis=0).filled(0).argmax())
    is_hidden[largest_column] = False
    if not is_hidden.any():
        return []
    hidden = [names[column] for column in np.flatnonzero(is_hidden).tolist()]
    largest_name = names[largest_column]
    problem = f"{listed(hidden)} cannot be seen beside {largest_name}, because all values of a row are read in one unit"
    return [f"{problem}; scale the columns, or pass --drop {quote(largest_name)}"]


def _is_empty(column: Any) -> np.ndarray:
    """Return which cells of a column are empty, (rows,) of bool."""
    is_empty = column.isna()
    are_numbers = column.dtype.kind in "biuf"  # NumPy's kinds: booleans, integers and floats
    if not are_numbers:
        is_empty |= column.astype(object) == ""
    return is_empty.to_numpy()


def _read_channels(reading: TableArrays, names: list[str]) -> None:
    """Read columns of lists of numbers, one column per channel, as ``x``: (rows,) of arrays (steps, channels).

    A row of which a cell is not a list of numbers, or of another length than the others, is bad.
    """
    table = reading.table
    reading.notes.append(f"{len(names)} channels, one per column of lists: {listed(names)}")
    x = np.empty(len(table.frame), object)
    for row, cells in enumerate(zip(*(table.frame[name] for name in names), strict=True)):
        arrays = [numbers_of_list(cell) for cell in cells]
        channels = [array for array in arrays if array is not None and array.ndim == 1]
        all_are_series = len(channels) == len(names)
        have_one_length = len({channel.size for channel in channels}) <= 1
        if not all_are_series or not have_one_length:
            table.bad.add(row, f"the cells of {listed(names)} are not lists of numbers of one length")
            continue
        x[row] = np.stack(channels, axis=1)
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
    """Return whether the cells of a column hold lists of numbers.

    For new data, the readout's task says whether texts are read as numbers.
    """
    cells = reading.table.frame[name]
    if holds_lists(cells) or reading.fitted_parameters.get("numbers"):
        return True
    return not reading.is_new and holds_sequences(cells)


def read_sequences(reading: TableArrays, name: str, *, letters: bool) -> None:
    """Read a column of sequences as ``x``, (rows,) of objects: texts if they are ``letters``, else arrays of numbers.

    The numbers (tokens,) or (tokens, channels) of a row are a list, or a text of numbers. ``name`` is the column.
    """
    table = reading.table
    if reading.roles.values:
        reading.notes.append(f"only {name!r} is read, not the columns {listed(reading.roles.values)}")
    if letters:
        reading.parameters["text"] = name
        if reading.options.chat:
            reading.parameters["chat"] = True
            reading.arrays["x"] = chat_texts(table, name)
        else:
            reading.arrays["x"] = _letters(reading, name)
        return
    if reading.roles.span:
        raise InputError(
            f"{table.path}: {name!r} holds numbers, of which no span can be marked",
            "leave --span out, or pass --drop for the column",
        )
    # New data have the sequences in x or sequence by convention, so these names are not recorded.
    is_found_by_name = name.lower() in {"x", "sequence"}
    if _holds_numbers(reading, name) and not is_found_by_name:
        reading.parameters |= {"text": name, "numbers": True}
    # Read each cell as an array of numbers; None if it holds none.
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
    """Return a column of texts as they are written, (rows,) of objects; an empty text, or one with a NUL, is a bad row.

    If the table has spans, they are marked in the texts, and their columns are recorded as the parameter ``span``.
    """
    texts = as_written(reading.table.frame[name])
    is_empty = texts.str.strip() == ""
    for row in np.flatnonzero(is_empty | texts.str.contains("\0", regex=False)):
        reading.table.bad.add(row, "an empty text" if is_empty[row] else "a NUL in the text")
    if not reading.roles.span:
        return texts.to_numpy(object)
    span = ",".join(reading.roles.span)
    reading.parameters["span"] = span
    if not reading.options.span:
        reading.notes.append(
            f"{span!r} is a span of each text, which --pool span reads; pass --drop to leave it out"
        )
    return marked_texts(reading.table, name, reading.roles.span)


# ---- a label per token


def read_token_labels(reading: TableArrays, label: str, sequence: str, *, letters: bool) -> bool:
    """Read a column with a label for every token as ``y``; return False if it is to be read in another form.

    The cells of the column ``label`` must be lists, or texts (most of them different) of as many letters or words as
    there are tokens. With ``letters``, a token is a letter of the column ``sequence``, else a number.
    """
    table, bad = reading.table, reading.table.bad
    task_labels_tokens = reading.fitted_parameters.get("each") == "token"  # False while a task is made
    if label not in table.frame or (reading.is_new and not task_labels_tokens):
        return False
    # While a task is made, a column of numbers has a label for each row. New rows of a readout of tokens have no labels
    # there, for example because all cells are empty.
    is_one_number_per_cell = table.frame[label].dtype.kind in "biuf"
    if not reading.is_new and is_one_number_per_cell:
        return False

    labels = [_labels_of_cell(cell) for cell in table.frame[label]]
    token_counts = [_token_count(cell, letters=letters) for cell in table.frame[sequence]]
    if not _fit_tokens(table.frame[label], labels, token_counts):
        # While a task is made, the caller reads the column in another form. New rows are those of a readout of tokens,
        # whose labels have no other form, so they are read as rows without labels: ``y`` is not set.
        return reading.is_new
    for row, labels_of_row in enumerate(labels):
        if labels_of_row and len(labels_of_row) != token_counts[row]:
            bad.add(row, f"{len(labels_of_row)} labels for {token_counts[row]} tokens")
    if reading.is_new:  # the labels stay lists, and rows without labels have None
        objects = np.empty(len(labels), object)
        objects[:] = [labels_of_row or None for labels_of_row in labels]
        reading.arrays["y"] = objects
        return True
    for row, labels_of_row in enumerate(labels):
        if not labels_of_row:
            bad.add(row, f"no labels in column {label!r}")
    reading.arrays["y"] = padded_labels(f"{bad.where}, column {label!r}", labels, reading.options)
    reading.parameters["each"] = "token"
    reading.notes.append(f"the column {label!r} labels every token of {sequence!r}")
    return True


def _fit_tokens(column: Any, labels: Sequence[list[Any]], token_counts: Sequence[int]) -> bool:
    """Return whether a column probably has a label for every token.

    ``labels`` (rows,) are the lists of labels that its cells may stand for, empty for other cells, and ``token_counts``
    (rows,) the numbers of tokens.
    """
    labelled_rows = [row for row, labels_of_row in enumerate(labels) if labels_of_row]
    unequal_rows = [row for row in labelled_rows if token_counts[row] != len(labels[row])]
    # A label of a whole row can have as many letters as the row has tokens by chance, so most rows must fit. Such
    # labels are names of classes, which repeat, so most texts must differ.
    some_have_several = any(len(labels_of_row) > 1 for labels_of_row in labels)
    most_fit = len(unequal_rows) < len(labelled_rows) / 2
    different_cells = {str(column[row]) for row in labelled_rows}
    most_differ = len(different_cells) > len(labelled_rows) / 2
    return some_have_several and most_fit and (most_differ or holds_lists(column))


def _labels_of_cell(cell: Any) -> list[Any]:
    """Return the words of a text, or its letters if it is one word, or the items of a list; else an empty list."""
    if isinstance(cell, str):
        return cell.split() if " " in cell.strip() else list(cell.strip())
    return list(cell) if isinstance(cell, list | np.ndarray) else []


def _token_count(cell: Any, *, letters: bool) -> int:
    """Return the number of tokens in a cell of sequences: of ``letters`` or words of a text, or items of a list."""
    if isinstance(cell, str):
        return len(cell.strip() if letters else cell.split())
    return len(cell) if isinstance(cell, list | np.ndarray) else 0


# ---- a step per row


def read_long_form(reading: TableArrays) -> Skipped:
    """Read ``x``, (sequences,) of arrays (steps, values), and the other arrays, with an entry per sequence.

    Return why sequences are left out, by their numbers: a sequence with a bad row is left out as a whole, because a
    missing step would shift the later steps.
    """
    import pandas as pd

    table, roles = reading.table, reading.roles
    ids = _ids_of_rows(reading)

    # Read the columns, an entry per row of the table.
    step_labels = _read_labels_and_groups(reading, ids)
    times = sortable_times(table, roles.time)
    names = reading.value_columns()
    steps = values_of(table, names, reading.options, fill=reading.fill)

    # Number the sequences in the order of their first rows, and check each.
    sequence_of_row, sequence_ids = pd.factorize(ids)
    repeats = pd.DataFrame({"sequence": sequence_of_row, "time": times}).duplicated()
    for row in np.flatnonzero(repeats):
        table.bad.add(row, f"{str(ids[row])!r} has two rows at {roles.time} {times[row]}")
    first_rows = np.unique(sequence_of_row, return_index=True)[1]
    _check_constant(reading, sequence_of_row)

    skipped = _sequences_with_bad_rows(table, ids, sequence_of_row)
    complete = np.setdiff1d(np.arange(len(sequence_ids)), [*skipped])
    if not len(complete):
        raise InputError(
            f"{table.path}: every sequence has a line that cannot be read ({table.bad.notes()[0]})",
            "fix these lines",
        )

    # Arrange the steps by sequence, and take the other arrays, which are constant in a sequence, from its first row.
    rows_of_sequence = _rows_of_sequences(sequence_of_row, times)
    reading.arrays = {array: values[first_rows[complete]] for array, values in reading.arrays.items()}
    reading.arrays["ids"] = sequence_ids[complete]
    if step_labels is not None:
        _read_step_labels(reading, [step_labels[rows_of_sequence[sequence]] for sequence in complete])
    if reading.options.symbols and len(names) == 1:
        steps = steps[:, 0]  # symbols (steps,) have no axis of channels
    reading.arrays["x"] = np.fromiter((steps[rows_of_sequence[sequence]] for sequence in complete), object)
    reading.parameters |= {"long": True, "time": roles.time}
    _note_long_form(reading, names, len(ids), sequence_ids.tolist(), sorted(skipped))
    if not reading.options.symbols:  # symbols are events, which are seldom equally spaced
        reading.notes += notes_on_gaps(times, sequence_of_row)
    return skipped


def _ids_of_rows(reading: TableArrays) -> np.ndarray:
    """Return the id of each row's sequence, (rows,) of str; a row without one, whose id is "", is bad.

    A new table must have the columns of ids and times: without them, rows of several sequences would be mixed.
    """
    table, name = reading.table, reading.roles.id
    if reading.is_new:
        # The columns must be those of the fit, which the readout's options name. If its column of ids is missing,
        # ``roles.id`` is another column, which has the conventional name, or "".
        fitted = reading.fitted_parameters.get("columns", ())
        for required in (reading.options.id or "id", reading.options.time or "time"):
            require_column(table.path, table.names, required, fitted=fitted)
    ids = np.array(reading.texts(name))
    without_id = np.flatnonzero(table.frame[name].isna() | (ids == ""))
    # They count as one sequence, of which `predict` prints the first reason only, so that this must count them all.
    count = f" ({len(without_id):,} such rows)" if reading.is_new and len(without_id) > 1 else ""
    for row in without_id:
        table.bad.add(row, f"no id in column {name!r}{count}")
    ids[without_id] = ""
    return ids


def _read_labels_and_groups(reading: TableArrays, ids: np.ndarray) -> np.ndarray | None:
    """Read the label, group and split of each row; return the labels (rows, ...) if they are those of steps.

    ``ids`` (rows,) are the ids of the rows' sequences. `_check_constant` refuses arrays in ``reading`` that change
    within a sequence. Labels of steps may change, so they are returned instead of being one of these arrays; without
    labels of steps, None is returned.
    """
    labels_steps = _labels_steps(reading, ids)
    if not labels_steps:
        _complete_labels(reading, ids)
    reading.read_labels()
    step_labels = reading.arrays.pop("y", None) if labels_steps else None
    reading.read_groups_and_split()
    return step_labels


def _rows_of_sequences(sequence_of_row: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
    """Return the rows (steps,) of each sequence in the order of their times, by the sequence's number."""
    # Sorting by sequence and then by time puts the rows of each sequence next to each other, in order; they are split
    # where the next sequence begins.
    sorted_rows = np.lexsort((times, sequence_of_row))
    ends = np.cumsum(np.bincount(sequence_of_row))
    return np.split(sorted_rows, ends[:-1])


def _sequences_with_bad_rows(table: Table, ids: np.ndarray, sequence_of_row: np.ndarray) -> Skipped:
    """Return the sequences of which a row cannot be read, with the first reason; refuse them unless rows are skipped.

    ``ids`` (rows,) are the ids of the sequences, and ``sequence_of_row`` (rows,) their numbers.
    """
    table.bad.readable()  # refuses bad rows unless they are skipped
    sequences: Skipped = {}
    for row, (_, reason) in table.bad.skipped(ids).items():
        sequences.setdefault(int(sequence_of_row[row]), (str(ids[row]), reason))
    return sequences


def _complete_labels(reading: TableArrays, ids: np.ndarray) -> None:
    """Give rows without a label the first label of their sequence: often only one row of a sequence has it."""
    frame = reading.table.frame
    for label in {*reading.roles.labels} & {*frame}:  # new data may lack columns of labels
        column = frame[label]
        frame[label] = column.fillna(column.groupby(ids).transform("first"))


def _note_long_form(
    reading: TableArrays, names: Sequence[str], rows: int, sequence_ids: list[str], left_out: list[int]
) -> None:
    """Note how many sequences the rows make, with the values of the columns ``names``.

    ``sequence_ids`` (sequences,) are the ids of all sequences, and ``left_out`` the numbers of those that are left out.
    """
    # Rows without an id are no sequence.
    sequences = sum(sequence_id != "" for sequence_id in sequence_ids)
    ids_left_out = [sequence_ids[sequence] for sequence in left_out if sequence_ids[sequence]]
    reading.notes.append(
        f"long form: {rows:,} rows make {sequences:,} sequences, one per {reading.roles.id!r}, "
        f"ordered by {reading.roles.time!r}, with the values {listed(names)}"
    )
    if ids_left_out:
        reading.notes.append(
            f"{len(ids_left_out):,} of {sequences:,} sequences are left out with all their rows, because a missing "
            f"step would shift the later ones: {listed(ids_left_out)}"
        )


def _labels_steps(reading: TableArrays, ids: np.ndarray) -> bool:
    """Return whether the label belongs to each step, not to the whole sequence: it changes in most sequences.

    ``ids`` (rows,) are the ids of the rows' sequences. If the label changes in at most half of the sequences, the
    differing labels are taken for mistakes, which `_check_constant` refuses.
    """
    if reading.is_new:
        return reading.fitted_parameters.get("each") == "token"  # as in the fit
    labels = [name for name in reading.roles.labels if name in reading.table.frame]
    if len(labels) != 1:
        return False  # there is no label, or several, which belong to the sequence
    cells = as_texts(reading.table.frame[labels[0]])
    is_filled = cells != ""
    labels_per_sequence = cells[is_filled].groupby(ids[is_filled]).nunique()
    return bool((labels_per_sequence > 1).mean() > MOST)


def _read_step_labels(reading: TableArrays, labels: list[np.ndarray]) -> None:
    """Read the labels of the steps (steps,) of each sequence as ``y``: an array (sequences, longest).

    Those of new sequences are lists in an array of objects (sequences,), or None if a label is missing.
    """
    if reading.is_new:
        objects = np.empty(len(labels), object)
        objects[:] = [None if None in steps.tolist() else steps.tolist() for steps in labels]
        reading.arrays["y"] = objects
        return
    (label,) = reading.roles.labels  # `_labels_steps` is only true for one column of labels
    reading.arrays["y"], _ = padded(str(reading.table.path), labels)
    reading.parameters["each"] = "token"
    reading.notes.append(
        f"the column {label!r} labels every step; pass --group {quote(reading.roles.id)} instead of --id "
        "if each row is a whole sequence"
    )


def _check_constant(reading: TableArrays, sequence_of_row: np.ndarray) -> None:
    """Refuse rows whose label, group or split differs from that of the first row of their sequence.

    Bad rows are left out, since what they lack is not known. ``sequence_of_row`` (rows,) is the number of the sequence.
    """
    table, name = reading.table, reading.roles.id
    readable_rows = np.setdiff1d(np.arange(len(sequence_of_row)), [*table.bad.reasons])
    # The first readable row of the sequence of each of these rows.
    _, first, sequence = np.unique(sequence_of_row[readable_rows], return_index=True, return_inverse=True)
    first_rows = readable_rows[first[sequence]]
    for array, values in reading.arrays.items():
        # A row differs if any of its outputs does: ``y`` may have several.
        differs = (values[readable_rows] != values[first_rows]).reshape(len(readable_rows), -1).any(axis=1)
        if not differs.any():
            continue
        row = int(readable_rows[np.argmax(differs)])
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
