"""The units of test rows, which intervals count in place of rows: rows of one unit depend on each other."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.source import IMAGE_ROWS, RAW_ROWS
from reservoir_pipelines.preparation.prepared import PreparedSplit

MIN_DISTINCT = 0.5  # share of distinct test rows from which repeats are too few to matter


class RowUnits(NamedTuple):
    """The unit of each row, and what to print about it."""

    of_rows: np.ndarray | None  # (rows,); None if each row is a unit
    note: str  # empty if units are rows or groups


def row_units(
    task: Task,
    index: np.ndarray,
    groups: np.ndarray | None,
    stretches: np.ndarray | None,
    open_inputs: Callable[[], PreparedSplit] | None,
) -> RowUnits:
    """Return the units of some test rows: their groups, of forecasts stretches of windows, else their distinct inputs.

    Parameters
    ----------
    task : Task
        The task of the rows.
    index : np.ndarray
        The number of each row among the prepared ones, ascending, (rows,).
    groups : np.ndarray or None
        The group of each row, (rows,), if rows have groups.
    stretches : np.ndarray or None
        The number of the stretch in which the labels of each window begin, (rows,), if rows are forecasts. None if it
        is not stored, as by earlier versions.
    open_inputs : callable or None
        Opens the prepared rows, which hold the sequence of each row; called only if sequences are compared. None if
        there are none, so that each row counts as another input.
    """
    if groups is not None:
        return RowUnits(groups, "")
    # Windows overlap in their labels. The horizon is 0 for other tasks than forecasts.
    windows_overlap = task.horizon > 1
    if windows_overlap:
        if stretches is None:
            stretches = stretches_of_all_windows(index, task.horizon, int(task.parameters.get("series", 1)))
        # Number the stretches from 0, because some may have no window.
        units = np.unique(stretches, return_inverse=True)[1]
        count = f"{int(units.max()) + 1:,} stretches of {task.horizon} steps"
        return RowUnits(units, f"test windows overlap; intervals and p-values count {count}")
    if open_inputs is None:
        return RowUnits(None, "")
    input_of_row = repeated_inputs(open_inputs(), index, IMAGE_ROWS if task.pictures else RAW_ROWS)
    if input_of_row is None:
        return RowUnits(None, "")
    rows, distinct = f"{len(index):,} test rows", f"{int(input_of_row.max()) + 1:,} distinct inputs"
    return RowUnits(input_of_row, f"the {rows} hold {distinct}; intervals and p-values count each once")


def stretches_of_all_windows(index: np.ndarray, horizon: int, series: int) -> np.ndarray:
    """Return the stretch of ``horizon`` steps of a series in which the labels of each window begin, (rows,).

    ``index`` (rows,) numbers the windows, oldest first; those of several ``series`` take turns, which is true if each
    series has a window at every step.
    """
    # A window is that of series ``index % series`` at step ``index // series``.
    number_in_series = index // (horizon * series)
    return number_in_series * series + index % series


def repeated_inputs(stored: PreparedSplit, index: np.ndarray, rows_at_a_time: int) -> np.ndarray | None:
    """Return the number of the distinct input of each of the rows ``index``, (rows,).

    None if at least half as many inputs as rows are distinct.
    """
    # Inputs are numbered in the order in which they first appear; equal ones have the same digest.
    number_of_digest: dict[bytes, int] = {}
    input_of_row: list[int] = []
    for start in range(0, len(index), rows_at_a_time):
        rows = stored.take(index[start : start + rows_at_a_time])
        for x, length in zip(rows.x, rows.lengths, strict=True):
            # With the length, because padding may have the value of a token.
            content = x.tobytes() + int(length).to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            input_of_row.append(number_of_digest.setdefault(digest, len(number_of_digest)))
    are_distinct = len(number_of_digest) >= MIN_DISTINCT * len(input_of_row)
    return None if are_distinct else np.array(input_of_row)
