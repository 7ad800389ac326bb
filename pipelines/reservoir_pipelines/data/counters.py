"""Tables of steps that would be read as one sequence per row are refused: counters, times that begin again, and logs.

Steps that are read as rows of their own put one sequence into several splits, and no readout of a step
sees the sequence. So a table is refused that counts its rows or the steps of its sequences, whose times
begin again with each sequence, or whose labels rarely change in the order of the times, with the command that
reads it in either form.
"""

from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import as_texts, example, holds_lists, separated, times_of
from reservoir_pipelines.data.roles import Roles
from reservoir_pipelines.data.table import Table

MIN_COUNTED_ROWS = 20
"""Fewest rows that a column is taken to count; in a smaller table, such numbers may be meant as values."""

IN_ORDER = 0.95
"""Share of the rows that are later than the row before, in a table in the order of its times: clocks may step back."""

MIN_COUNTED_STEPS = 4
"""Fewest steps of a sequence that a column is taken to count: three numbers may follow each other by chance."""

SHUFFLED_CHANGE = 0.5
"""Share of the change between rows in a random order below which neighbouring rows are taken for steps in time.

Of 20 rows of two equal classes in a random order, one table in a hundred changes so rarely; of 40, one in a thousand.
"""


def refuse_counters(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse values that count the rows of the table, or the steps of sequences; ``--values`` reads them as values.

    A counter of rows tells a readout the class if the rows are sorted by class. Steps that are read as
    rows of their own put the same sequence into several splits.
    """
    # A counter stands beside values: a table with a single column of values has no other to read. Beside a
    # sequence, no values are read.
    if options.values or roles.sequence or len(roles.values) < 2 or len(table.frame) < MIN_COUNTED_ROWS:
        return
    escape = "or --values if it is a value"
    for name in roles.values:
        if table.frame[name].dtype.kind not in "iu":
            continue
        numbers = table.frame[name].to_numpy(np.int64)
        if (np.diff(numbers) == 1).all():
            drop = ",".join([*separated(options.drop), name])
            raise InputError(
                f"{table.path}: the column {name!r} counts the rows",
                f"pass --drop {quote(name)} to leave it out, {escape}, for example: "
                f"{example(table.path, options, drop=drop)}",
            )
        sequence_id = "" if roles.time else _id_of_steps(table, roles, name, numbers)
        if sequence_id:
            raise InputError(
                f"{table.path}: the column {name!r} counts the steps of each {sequence_id!r}",
                f"pass --id {quote(sequence_id)} --time {quote(name)} to read these rows as one sequence, {escape}, "
                f"for example: {example(table.path, options, id=sequence_id, time=name)}",
            )


def _id_of_steps(table: Table, roles: Roles, name: str, numbers: np.ndarray) -> str:
    """Return the column that is equal in all steps of a sequence, if the column ``name`` counts steps; else ""."""
    # A counter of steps starts again, from the same number, with each sequence.
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0]) != 1)
    starts_alike = np.ptp(numbers[starts]) == 0
    return _column_that_changes_at(table, roles, starts, name) if starts_alike else ""


def refuse_steps_in_time(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse values with times that begin again with each group, or where another column changes.

    ``--group`` says that its groups are not sequences, so that each row is one.
    """
    if not roles.time or roles.sequence or len(table.frame) < MIN_COUNTED_ROWS:
        return
    times = times_of(table.frame[roles.time].ffill().bfill())
    if times is None:  # they are left out, so their form does not matter
        return
    if roles.group and not options.group and _increase_in_groups(table, roles.group, times):
        raise InputError(
            f"{table.path}: the times in {roles.time!r} increase within each {roles.group!r}",
            f"pass --id {quote(roles.group)} to read the rows of each {roles.group!r} as one sequence, or "
            f"--group {quote(roles.group)} if each row is a whole sequence, for example: "
            f"{example(table.path, options, id=roles.group)}",
        )
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
    ``window`` are the steps of a window to suggest.
    """
    if not roles.labels or not are_in_order(table, roles):
        return
    for label in roles.labels:
        cells = as_texts(table.with_points(table.frame[label].astype(object)))
        if change_between_neighbours(cells[cells != ""].to_numpy(str)) < SHUFFLED_CHANGE:
            time = quote(roles.time)
            raise InputError(
                f"{table.path}: the rows are in the order of {roles.time!r}, and {label!r} changes little from row to "
                "row, as in one recording",
                f"pass --window {window} to read the rows as steps of one recording, or --drop {time} if each row is a "
                f"whole sequence, for example: {example(table.path, options, window=window)}",
            )


def are_in_order(table: Table, roles: Roles) -> bool:
    """Return whether many rows, without ids, groups and sequences, are nearly all in the order of their times."""
    has_sequences = bool(roles.id or roles.group or roles.sequence)
    if not roles.time or has_sequences or len(table.frame) < MIN_COUNTED_ROWS:
        return False
    if any(holds_lists(table.frame[name]) for name in roles.values):  # each row is a sequence
        return False
    times = times_of(table.frame[roles.time].ffill().bfill())
    if times is None:
        return False
    later, earlier = (times[1:] > times[:-1]).mean(), (times[1:] < times[:-1]).mean()
    return bool(max(later, earlier) >= IN_ORDER)


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
        # Two labels at random are of one class with the chance of a pair of that class among all pairs.
        of_class = np.unique(labels, return_counts=True)[1]
        between_neighbours = float((labels[1:] != labels[:-1]).mean())
        at_random = 1 - float((of_class * (of_class - 1)).sum()) / (count * (count - 1))
    return float(between_neighbours / at_random) if at_random > 0 else 1.0


def _increase_in_groups(table: Table, group: str, times: np.ndarray) -> bool:
    """Return whether times increase strictly within each group, and the median group has `MIN_COUNTED_STEPS` rows."""
    import pandas as pd

    by_group = pd.Series(times).groupby(as_texts(table.frame[group]).to_numpy())
    typical_steps = by_group.size().median()
    # ``is_monotonic_increasing`` allows equal times, which unique ones exclude.
    are_unique = (by_group.nunique() == by_group.size()).all()
    increase = are_unique and by_group.is_monotonic_increasing.all()
    return bool(typical_steps >= MIN_COUNTED_STEPS and increase)


def _column_that_changes_at(table: Table, roles: Roles, starts: np.ndarray, name: str) -> str:
    """Return the column, other than ``name``, whose cells change exactly at the ``starts`` of sequences; else ""."""
    lengths = np.diff(starts, append=len(table.frame))
    starts_again = len(starts) > 1 and lengths.min() >= MIN_COUNTED_STEPS
    for other in [roles.id, roles.group, *roles.values] if starts_again else ():
        if other and other != name:
            cells = as_texts(table.frame[other]).to_numpy()
            changes = np.flatnonzero(cells[1:] != cells[:-1]) + 1
            if np.array_equal(changes, starts[1:]):
                return other
    return ""
