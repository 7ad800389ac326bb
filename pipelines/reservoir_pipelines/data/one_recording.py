"""A table whose rows are the steps of one recording, such as the log of a machine: ``--window``, and times."""

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.columns import (
    as_texts,
    holds_lists,
    listed,
    notes_on_gaps,
    require_column,
    separated,
    sortable_times,
    values_of,
)
from reservoir_pipelines.data.roles import conventional
from reservoir_pipelines.data.rows import RecordingSteps
from reservoir_pipelines.data.table_forms import TableArrays

LONG_WINDOW = 500
"""Steps of a window that messages suggest for a long log: twice the 243 steps around a step that its features read."""

WINDOWS_OF_SHORT_LOG = 40
"""Windows of a log that is too short for as many of `LONG_WINDOW` steps: eight are test, for intervals of scores."""


def likely_window(steps: int) -> int:
    """Return the number of steps of a window to suggest for one recording, which has at least twenty ``steps``."""
    return max(2, min(LONG_WINDOW, steps // WINDOWS_OF_SHORT_LOG))


def is_one_recording(reading: TableArrays) -> bool:
    """Return whether the rows are steps of one recording; those of new data are if those of the fit were.

    Rows are steps of one recording with ``--window``, if they have times and values, but neither ids nor groups.
    """
    roles = reading.roles
    if reading.is_new:
        return bool(reading.fitted_parameters.get("one_recording"))
    has_sequences = bool(roles.id or roles.group or roles.sequence)
    if not reading.options.window or not roles.time or has_sequences:
        return False
    rows_are_sequences = all(holds_lists(reading.table.frame[name]) for name in roles.values)
    return not rows_are_sequences


def read_one_recording(reading: TableArrays) -> RecordingSteps | None:
    """Read ``x`` as one sequence (1, steps, channels) in the order of the times, with the labels and splits of steps.

    For a new table, return which of its rows is which step; else None. If bad rows are skipped, a row that cannot be
    read is not a step.
    """
    table, roles = reading.table, reading.roles
    if reading.is_new:
        require_column(
            table.path, table.names, reading.options.time, fitted=reading.fitted_parameters["columns"]
        )
        _refuse_several_recordings(reading)
    if reading.options.resample:
        raise InputError(
            f"{table.path}: --resample changes the steps, each of which is a row of the table",
            "leave it out",
        )
    # Read the columns of labels, splits, values and times, with a step on each row.
    reading.read_labels()
    if not reading.is_new:  # new steps have no split; `is_one_recording` excludes a column of groups
        reading.read_groups_and_split()
    names = reading.value_columns()
    values = _values(reading, names)
    times = _times(reading)
    readable = table.bad.readable()
    # The row of the table of each step, in the order of their times.
    row_of_step = np.flatnonzero(readable)[np.argsort(times[readable], kind="stable")]
    # All arrays in this order, with a first axis of one entry: the recording is the only row of the result.
    arrays_of_table = reading.arrays
    reading.arrays = {name: array[row_of_step][None] for name, array in arrays_of_table.items()}
    reading.arrays["x"] = values[row_of_step][None]
    reading.arrays["ids"] = np.array([table.path.name])
    reading.parameters |= {"one_recording": True, "time": roles.time}
    reading.notes.append(
        f"one recording: {len(row_of_step):,} rows are its steps, ordered by {roles.time!r}, with the values "
        f"{listed(names)}"
    )
    reading.notes += notes_on_gaps(times[row_of_step], np.zeros(len(row_of_step), np.int64))
    if not reading.is_new:
        if "y" in arrays_of_table:
            reading.parameters["each"] = "token"
            reading.notes.append(f"every step has a label: {listed(roles.labels)}")
        return None
    y = arrays_of_table.get("y")
    if y is not None:
        reading.arrays["y"] = _labels_of_new(y[row_of_step])
    return _steps_of_new(reading, row_of_step, y)


def _steps_of_new(reading: TableArrays, row_of_step: np.ndarray, y: np.ndarray | None) -> RecordingSteps:
    """Return which row of a new table is which step, because predictions are written in the order of its rows.

    ``row_of_step`` (steps,) is the row of each step, and ``y`` (rows, ...) are the labels of the rows, if any.
    """
    table = reading.table
    without_ids = ()
    problems = {row: reason for row, (_, reason) in table.bad.skipped(without_ids).items()}
    written_times = as_texts(table.frame[reading.roles.time]).to_numpy(str)
    return RecordingSteps(names=written_times, row_of_step=row_of_step, problems=problems, y=y)


def _refuse_several_recordings(reading: TableArrays) -> None:
    """Refuse a new table with several ids or groups: steps of several recordings would be joined by their times."""
    frame = reading.table.frame
    names = [name for name in frame if name not in separated(reading.options.drop)]
    for name in (*conventional("id", names), *conventional("group", names)):
        if as_texts(frame[name]).nunique() > 1:
            raise InputError(
                f"{reading.table.path}: several recordings, by the column {name!r}", "give a file for each"
            )


def _values(reading: TableArrays, names: list[str]) -> np.ndarray:
    """Return the values of the columns ``names``, (rows, channels), or with ``--symbols`` and one column (rows,)."""
    values = values_of(reading.table, names, reading.options, fill=reading.fill)
    are_symbols = reading.options.symbols and len(names) == 1
    return values[:, 0] if are_symbols else values


def _times(reading: TableArrays) -> np.ndarray:
    """Return the times of the rows, (rows,); a row without a time, or with that of an earlier row, is a bad row."""
    table, name = reading.table, reading.roles.time
    column = table.frame[name]
    times = sortable_times(table, name)
    # ``unique`` returns the first row with each time; all other rows with a time repeat one.
    rows_with_time = np.flatnonzero(column.notna())
    first_rows = rows_with_time[np.unique(times[rows_with_time], return_index=True)[1]]
    for row in np.setdiff1d(rows_with_time, first_rows):
        table.bad.add(
            row,
            f"a second row at {name} {column[row]}",
            "pass --id NAME if the table holds several recordings",
        )
    return times


def _labels_of_new(y: np.ndarray) -> np.ndarray:
    """Return the labels of steps as those of one new row, (1,) of object: a list, or None if a label is missing."""
    labels = np.empty(1, object)
    cells = y.tolist()
    labels[0] = None if None in cells else cells
    return labels
