"""Tables whose columns of numbers are probably not values are refused: counters, ids, and the times of steps.

A counter tells the class if rows are sorted by class, and the number of a patient is that of a group. Steps that are
read as rows of their own put one sequence into several splits, and no readout of a step sees the sequence. So such a
table is refused with the command that reads it in either form, as are tables whose times begin again with each
sequence, or whose labels rarely change in the order of the times.
"""

import re
from collections.abc import Iterator
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import as_texts, example, holds_lists, separated, times_of
from reservoir_pipelines.data.roles import Roles, holds_targets
from reservoir_pipelines.data.table import Table

MIN_COUNTED_ROWS = 20
"""Fewest rows that a column is taken to count; in a smaller table, such numbers may be meant as values."""

IN_ORDER = 0.95
"""Share of the rows that are later than the row before, in a table in the order of its times: clocks may step back."""

MIN_COUNTED_STEPS = 4
"""Fewest steps of a sequence that a column is taken to count: three numbers may follow each other by chance."""

NAME_OF_IDS = re.compile(r"(^|[^A-Za-z])(id|ID|Id)$|[a-z](ID|Id)$|^(?i:person|participant)$")
"""Names of columns that end in the word id, such as ``patient_id`` and ``sampleID``, not ``humid``; and of people."""

SHUFFLED_CHANGE = 0.5
"""Share of the change between rows in a random order below which neighbouring rows are taken for steps in time.

Of 20 rows of two equal classes in a random order, one table in a hundred changes so rarely; of 40, one in a thousand.
"""


def refuse_counters(table: Table, roles: Roles, options: OwnDataOptions, window: int) -> None:
    """Refuse values that count or name rows, or that are times of steps; ``--values`` reads them as values.

    A counter of rows tells a readout the class if the rows are sorted by class. Steps that are read as
    rows of their own put the same sequence into several splits, and so do rows of one patient.
    ``window`` is the number of steps of a window to suggest.
    """
    # Beside a sequence, no values are read. A single column of values is no counter, because one stands beside values.
    if options.values or roles.sequence or len(roles.values) < 2:
        return
    has_rows_to_count = len(table.frame) >= MIN_COUNTED_ROWS
    may_hold_times = has_rows_to_count and not roles.time
    # The first test that refuses gives the message, so the plainest ones come first.
    if has_rows_to_count:
        _refuse_counted(table, roles, options)
    if may_hold_times:
        _refuse_times_in_sequences(table, roles, options)
    _refuse_ids(table, roles, options)
    if may_hold_times:
        _refuse_times_of_table(table, roles, options, window)


def _refuse_counted(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse whole numbers that count the rows, in any order, or the steps of sequences."""
    or_values = "or --values if it is a value"
    for name in roles.values:
        if table.frame[name].dtype.kind not in "iu":  # NumPy's kinds of integers
            continue
        numbers = table.frame[name].to_numpy(np.int64)
        # Numbers that count the rows have each value of a range once, also if the table was shuffled, or sorted by
        # another column.
        lowest, highest = int(numbers.min()), int(numbers.max())
        is_as_long_as_table = highest - lowest == len(numbers) - 1
        has_each_once = len(np.unique(numbers)) == len(numbers)
        if lowest >= 0 and is_as_long_as_table and has_each_once:
            raise InputError(
                f"{table.path}: the column {name!r} counts the rows",
                f"pass --drop {quote(name)} to leave it out, {or_values}, for example: "
                f"{_example_without(table, options, name)}",
            )
        sequence_id = "" if roles.time else _id_of_steps(table, roles, name, numbers)
        if sequence_id:
            raise InputError(
                f"{table.path}: the column {name!r} counts the steps of each {sequence_id!r}",
                f"pass --id {quote(sequence_id)} --time {quote(name)} to read these rows as one sequence, {or_values}, "
                f"for example: {example(table.path, options, id=sequence_id, time=name)}",
            )


def _id_of_steps(table: Table, roles: Roles, name: str, numbers: np.ndarray) -> str:
    """Return the column of ids of sequences, if ``name`` counts the steps of each; else "".

    ``numbers`` (rows,) are those of the column ``name``. The column of ids changes where counting starts again.
    """
    # A counter of steps starts again, from the same number, with each sequence: there, the number is not one more than
    # that of the row before. The first row is compared with itself, so it is a start, too.
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0]) != 1)
    starts_alike = np.ptp(numbers[starts]) == 0
    return _column_that_changes_at(table, roles, starts, name) if starts_alike else ""


def _refuse_times_in_sequences(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse values that increase exactly as long as another column is the same, as the times of a sequence do."""
    for name, numbers in _columns_of_numbers(table, roles):
        # A sequence starts in the first row, and where the number does not increase, or is NaN.
        starts = np.concatenate([[0], 1 + np.flatnonzero(~(np.diff(numbers) > 0))])
        sequence_id = _column_that_changes_at(table, roles, starts, name)
        if sequence_id and sequence_id != options.group:
            raise InputError(
                f"{table.path}: the values in {name!r} increase within each {sequence_id!r}, as times do",
                f"pass --id {quote(sequence_id)} --time {quote(name)} to read the rows of each {sequence_id!r} as one "
                "sequence, or --values if each row is a sequence, for example: "
                f"{example(table.path, options, id=sequence_id, time=name)}",
            )


def _refuse_ids(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse whole numbers in a column such as ``patient_id`` beside other values."""
    for name in roles.values:
        column = table.frame[name]
        holds_integers = column.dtype.kind in "iu"  # NumPy's kinds of integers
        if not holds_integers or not NAME_OF_IDS.search(name):
            continue
        # A number that several rows have is that of a patient or a machine; others name the rows.
        repeats = bool(column.duplicated().any())
        flag = "group" if repeats else "id"
        another_has_role = bool(roles.group if repeats else roles.id)
        if another_has_role:
            remedy, command = "", _example_without(table, options, name)
        else:
            condition = "rows with the same number belong together" if repeats else "they name the rows"
            remedy = f"--{flag} {quote(name)} if {condition}, "
            command = example(table.path, options, **{flag: name})
        raise InputError(
            f"{table.path}: the whole numbers in {name!r} are probably names, not values",
            f"pass {remedy}--drop {quote(name)} to leave them out, or --values if they are values, for example: "
            f"{command}",
        )


def _refuse_times_of_table(table: Table, roles: Roles, options: OwnDataOptions, window: int) -> None:
    """Refuse values in one order through the whole table, as times are, if labels rarely change from row to row."""
    sorted_columns = []
    for name, numbers in _columns_of_numbers(table, roles):
        differences = np.diff(numbers)
        if (differences > 0).all() or (differences < 0).all():
            sorted_columns.append(name)
    # Of several such columns, none is plainly the time: the rows may follow a parameter on which all depend.
    label = _steady_label(table, roles) if len(sorted_columns) == 1 else ""
    if not label:
        return
    (name,) = sorted_columns
    # In a table of several sequences, the column may be their common time, so the example only leaves it out.
    has_sequences = bool(roles.id or roles.group)
    if has_sequences:
        command = _example_without(table, options, name)
    else:
        command = example(table.path, options, time=name, window=window)
    raise InputError(
        f"{table.path}: the rows are in the order of {name!r}, and {label!r} changes little from row to row, as in one "
        "recording",
        f"pass --time {quote(name)} and --window or --id if the rows are steps of one recording or of several, "
        f"--drop {quote(name)} if each row is a whole sequence, or --values if they are values, for example: {command}",
    )


def _columns_of_numbers(table: Table, roles: Roles) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the numbers, (rows,) of float64, of each column of values that pandas reads as numbers."""
    for name in roles.values:
        if table.frame[name].dtype.kind in "iuf":
            yield name, table.frame[name].to_numpy(np.float64)


def _example_without(table: Table, options: OwnDataOptions, name: str) -> str:
    """Return the command that leaves out the column ``name``, too."""
    return example(table.path, options, drop=",".join([*separated(options.drop), name]))


def refuse_steps_in_time(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse values with times that begin again with each group, or where another column changes.

    ``--group`` says that its groups are not sequences, so that each row is one.
    """
    if not roles.time or roles.sequence or len(table.frame) < MIN_COUNTED_ROWS:
        return
    # Empty cells get the time of a neighbour.
    times = times_of(table.frame[roles.time].ffill().bfill())
    if times is None:  # not sortable: the column is left out, so the form of its cells does not matter
        return
    if roles.group and not options.group and _increase_in_groups(table, roles.group, times):
        raise InputError(
            f"{table.path}: the times in {roles.time!r} increase within each {roles.group!r}",
            f"pass --id {quote(roles.group)} to read the rows of each {roles.group!r} as one sequence, or "
            f"--group {quote(roles.group)} if each row is a whole sequence, for example: "
            f"{example(table.path, options, id=roles.group)}",
        )
    # A sequence starts in the first row, and where the time does not increase.
    starts = np.concatenate([[0], 1 + np.flatnonzero(times[1:] <= times[:-1])])
    sequence_id = _column_that_changes_at(table, roles, starts, roles.time)
    if sequence_id and sequence_id != options.group:
        raise InputError(
            f"{table.path}: the times in {roles.time!r} begin again with each {sequence_id!r}",
            f"pass --id {quote(sequence_id)} to read the rows of each {sequence_id!r} as one sequence, or "
            f"--group {quote(sequence_id)} if each row is a whole sequence, for example: "
            f"{example(table.path, options, id=sequence_id)}",
        )


def refuse_one_recording(table: Table, roles: Roles, options: OwnDataOptions, window: int) -> None:
    """Refuse rows in the order of their times whose labels rarely change: probably the steps of one recording.

    Rows at random would be tested beside neighbours in time that are alike, which flatters every readout.
    ``window`` is the number of steps of a window to suggest.
    """
    if not roles.labels or not are_in_order(table, roles):
        return
    label = _steady_label(table, roles)
    if label:
        time = quote(roles.time)
        to_forecast = (
            f", --forecast 6 --label {quote(label)} to forecast it" if holds_targets(table, label) else ""
        )
        raise InputError(
            f"{table.path}: the rows are in the order of {roles.time!r}, and {label!r} changes little from row to "
            "row, as in one recording",
            f"pass --window {window} to read the rows as steps of one recording{to_forecast}, or --drop {time} if each "
            f"row is a whole sequence, for example: {example(table.path, options, window=window)}",
        )


def _steady_label(table: Table, roles: Roles) -> str:
    """Return the first column of labels that changes far less from row to row than in a random order; else ""."""
    for label in roles.labels:
        cells = as_texts(table.with_points(table.frame[label].astype(object)))
        if change_between_neighbours(cells[cells != ""].to_numpy(str)) < SHUFFLED_CHANGE:
            return label
    return ""


def are_in_order(table: Table, roles: Roles) -> bool:
    """Return whether a table may be one recording: nearly all of its many rows are in the order of their times.

    Rows with ids, groups or sequences are not, nor are rows of lists.
    """
    has_sequences = bool(roles.id or roles.group or roles.sequence)
    if not roles.time or has_sequences or len(table.frame) < MIN_COUNTED_ROWS:
        return False
    if any(holds_lists(table.frame[name]) for name in roles.values):  # each row is a sequence
        return False
    times = times_of(table.frame[roles.time].ffill().bfill())
    if times is None:
        return False
    later_share = (times[1:] > times[:-1]).mean()
    earlier_share = (times[1:] < times[:-1]).mean()
    return bool(max(later_share, earlier_share) >= IN_ORDER)  # from the oldest or from the newest


def change_between_neighbours(labels: np.ndarray) -> float:
    """Return the change from label to label (n,) as a share of that between two labels at random, about 1 if shuffled.

    The change of numbers is the square of their difference, so that the share is half of von Neumann's ratio, the
    mean square of successive differences over the variance; that of names is 1 if they differ. The share is
    1 if all labels are the same, or if there are fewer than two.
    """
    import pandas as pd

    cells: Any = pd.to_numeric(pd.Series(labels), errors="coerce")
    numbers = cells.to_numpy(np.float64)
    count = len(labels)
    if count < 2:
        return 1.0
    if np.isfinite(numbers).all():
        # The mean square of the difference of two values at random is twice their variance.
        between_neighbours = np.square(np.diff(numbers)).mean()
        at_random = 2 * numbers.var(ddof=1)
    else:
        # A pair of two rows at random differs unless both are of one class: n (n - 1) pairs are of a class of n rows.
        class_sizes = np.unique(labels, return_counts=True)[1]
        between_neighbours = float((labels[1:] != labels[:-1]).mean())
        at_random = 1 - float((class_sizes * (class_sizes - 1)).sum()) / (count * (count - 1))
    return float(between_neighbours / at_random) if at_random > 0 else 1.0


def _increase_in_groups(table: Table, group: str, times: np.ndarray) -> bool:
    """Return whether ``times`` (rows,) increase strictly within each group of the column ``group``.

    The median group must have `MIN_COUNTED_STEPS` rows: fewer may be in order by chance.
    """
    import pandas as pd

    by_group = pd.Series(times).groupby(as_texts(table.frame[group]).to_numpy())
    typical_steps = by_group.size().median()
    # ``is_monotonic_increasing`` allows equal times, which unique ones exclude.
    are_unique = (by_group.nunique() == by_group.size()).all()
    increase = are_unique and by_group.is_monotonic_increasing.all()
    return bool(typical_steps >= MIN_COUNTED_STEPS and increase)


def _column_that_changes_at(table: Table, roles: Roles, starts: np.ndarray, name: str) -> str:
    """Return the column, other than ``name``, whose cells change exactly at the ``starts`` of sequences; else "".

    ``starts`` are the first rows of the sequences, the first of which is 0. Return "" also if there is only one
    sequence, or if one is shorter than `MIN_COUNTED_STEPS`.
    """
    lengths = np.diff(starts, append=len(table.frame))
    if len(starts) < 2 or lengths.min() < MIN_COUNTED_STEPS:
        return ""
    for other in (roles.id, roles.group, *roles.values):
        if not other or other == name:
            continue
        cells = as_texts(table.frame[other]).to_numpy()
        changes = np.flatnonzero(cells[1:] != cells[:-1]) + 1
        if np.array_equal(changes, starts[1:]):
            return other
    return ""
