"""A table whose rows are the steps of one recording, such as the log of a machine: ``--window``, and times."""

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.columns import (
    as_texts,
    filled,
    holds_lists,
    listed,
    notes_on_gaps,
    require_column,
    separated,
    times_of,
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
    """Return the steps of a window to suggest for one recording, of at least twenty steps."""
    return max(2, min(LONG_WINDOW, steps // WINDOWS_OF_SHORT_LOG))


def is_one_recording(reading: TableArrays) -> bool:
    """Return whether the rows are steps of one recording: ``--window``, times, values, and neither ids nor groups."""
    roles = reading.roles
    if reading.new:
        return bool(reading.remembered.get("one_recording"))
    has_sequences = bool(roles.id or roles.group or roles.sequence)
    if not reading.options.window or not roles.time or has_sequences:
        return False
    return not all(holds_lists(reading.table.frame[name]) for name in roles.values)


def read_one_recording(reading: TableArrays) -> RecordingSteps | None:
    """Read ``x`` as one sequence (1, steps, channels) in the order of the times, with the labels and splits of steps.

    Return what says which row of a new table is which step. A row that cannot be read is not a step, if bad rows are
    skipped.
    """
    table, roles = reading.table, reading.roles
    if reading.new:
        require_column(table.path, table.names, reading.options.time, fitted=reading.remembered["columns"])
        _refuse_several_recordings(reading)
    if reading.options.resample:
        raise InputError(
            f"{table.path}: --resample changes the steps, each of which is a row of the table",
            "leave it out",
        )
    # The columns of labels, groups, values and times, a step on each row.
    reading.read_labels()
    if not reading.new:
        reading.read_groups_and_split()
    names = reading.value_columns()
    values = _values(reading, names)
    times = _times(reading)
    readable = table.bad.readable()
    # The steps in the order of their times, as rows of the table.
    row_of_step = np.flatnonzero(readable)[np.argsort(times[readable], kind="stable")]
    # All arrays in this order, as the only row of the result.
    of_rows = reading.arrays
    reading.arrays = {name: array[row_of_step][None] for name, array in of_rows.items()}
    reading.arrays["x"] = values[row_of_step][None]
    reading.arrays["ids"] = np.array([table.path.name])
    reading.chosen |= {"one_recording": True, "time": roles.time}
    reading.notes.append(
        f"one recording: {len(row_of_step):,} rows are its steps, ordered by {roles.time!r}, with the values "
        f"{listed(names)}"
    )
    reading.notes += notes_on_gaps(times[row_of_step], np.zeros(len(row_of_step), np.int64))
    if not reading.new:
        if "y" in of_rows:
            reading.chosen["each"] = "token"
            reading.notes.append(f"every step has a label: {listed(roles.labels)}")
        return None
    # Predictions of a new table are written by its own rows, so the order of the steps is returned.
    y = of_rows.get("y")
    if y is not None:
        reading.arrays["y"] = _labels_of_new(y[row_of_step])
    problems = {row: reason for row, (_, reason) in table.bad.skipped(()).items()}
    written_times = as_texts(table.frame[roles.time]).to_numpy(str)
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
    """Return the values of the rows, (rows, channels), or with ``--symbols`` and one column (rows,)."""
    values = values_of(reading.table, names, reading.options, fill=reading.fill)
    return values[:, 0] if reading.options.symbols and len(names) == 1 else values


def _times(reading: TableArrays) -> np.ndarray:
    """Return the times of the rows, (rows,); a row without a time, or with that of an earlier row, is a bad row."""
    table, name = reading.table, reading.roles.time
    column = table.frame[name]
    for row in np.flatnonzero(column.isna()):
        table.bad.add(row, f"no time in column {name!r}")
    # An empty cell gets the time of a neighbour, so that the others can be read; its row is bad.
    times = times_of(column.ffill().bfill())
    if times is None:
        raise InputError(
            f"{table.path}, column {name!r}: times like {str(next(iter(filled(column)), ''))[:40]!r} cannot be sorted",
            "write ISO 8601 dates such as 2024-12-31T08:00, or numbers",
        )
    present = np.flatnonzero(column.notna())
    first_rows = present[np.unique(times[present], return_index=True)[1]]
    for row in np.setdiff1d(present, first_rows):
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
