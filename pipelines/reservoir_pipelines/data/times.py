"""Columns of times: numbers, or ISO 8601 dates, by which rows are sorted."""

from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.cells import filled
from reservoir_pipelines.data.table import Table


def times_of(column: Any) -> np.ndarray | None:
    """Return numbers, or ISO 8601 dates in UTC, as a sortable array, (rows,); None for other cells."""
    import pandas as pd

    if column.dtype.kind in "iuf":
        return column.to_numpy() if column.notna().all() else None
    if not all(isinstance(cell, str) and "-" in cell for cell in column):
        return None
    times = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    return times.dt.tz_localize(None).to_numpy() if times.notna().all() else None


def sortable_times(table: Table, name: str) -> np.ndarray:
    """Return a column of times as `times_of` does; an empty cell is a bad row, and other cells are refused."""
    column = table.frame[name]
    for row in np.flatnonzero(column.isna()):
        table.bad.add(row, f"no time in column {name!r}")
    times = times_of(column.ffill().bfill())
    if times is None:
        first = str(next(iter(filled(column)), ""))[:40]
        raise InputError(
            f"{table.path}, column {name!r}: times like {first!r} cannot be sorted",
            f"write ISO 8601 dates such as 2024-12-31, or numbers, or pass --drop {quote(name)} "
            "if the rows are in order",
        )
    return times
