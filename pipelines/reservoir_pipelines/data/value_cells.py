"""Columns of values, one number per cell."""

import re
from collections.abc import Sequence
from shlex import quote
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.bad_rows import EMPTY_CELL
from reservoir_pipelines.data.cells import MOST, SWITCHES, as_texts, filled
from reservoir_pipelines.data.columns import example, separated
from reservoir_pipelines.data.file_kinds import names_files
from reservoir_pipelines.data.table import Table
from reservoir_pipelines.data.times import times_of


def values_of(
    table: Table,
    names: Sequence[str],
    options: OwnDataOptions,
    *,
    fill: bool,
    lengths: np.ndarray | None = None,
    data: str = "",
) -> np.ndarray:
    """Return columns of single numbers as floats (rows, columns), 0 after ``lengths`` (rows,).

    An infinite number, and an empty cell unless ``fill`` keeps it as NaN, make the row bad. ``data`` is
    the path of the data if the table is only a part of it.
    """
    x = np.empty((len(table.frame), len(names)))
    for place, name in enumerate(names):
        numbers, wrong, filled_cells = _numbers_of_column(table, name)
        for row in wrong:
            cell = str(table.frame[name][row]).strip()[:40]
            table.bad.add(row, f"{cell!r} is not a number in column {name!r}")
        if len(wrong) > MOST * filled_cells:
            _refuse_column(table, names, name, int(wrong[0]), options, data or str(table.path))
        x[:, place] = numbers
    if lengths is not None:
        x[np.arange(len(names)) >= lengths[:, None]] = 0
    wrong = np.isinf(x) | (np.isnan(x) & (not fill))
    for row in np.flatnonzero(wrong.any(axis=1)):
        place = int(np.argmax(wrong[row]))
        problem = EMPTY_CELL if np.isnan(x[row, place]) else f"{x[row, place]} in column"
        table.bad.add(row, f"{problem} {names[place]!r}")
    return x


def _numbers_of_column(table: Table, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a column as floats, the rows whose cell is not a number, and the number of filled cells."""
    import pandas as pd

    column = table.frame[name]
    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64), np.empty(0, np.int64), len(column)
    texts = table.with_points(as_texts(column).str.lower())
    cells = texts.map(lambda cell: SWITCHES.get(cell, cell))
    empty = (cells == "nan").to_numpy()
    numbers: Any = pd.to_numeric(cells, errors="coerce")
    wrong = np.flatnonzero(numbers.isna() & ~empty)
    return numbers.to_numpy(np.float64), wrong, int((~empty).sum())


def _refuse_column(
    table: Table, names: Sequence[str], name: str, row: int, options: OwnDataOptions, data: str
) -> NoReturn:
    """Refuse a column that does not hold values, with the flag that says what it probably holds."""
    column = table.frame[name]
    cell = str(column[row]).strip()
    only_texts = not any(table.frame[other].dtype.kind in "biuf" for other in names)
    if re.fullmatch(r"[-+]?\d+,\d+", cell) and table.decimal == ".":
        flag, value = "decimal", ","
    elif times_of(column) is not None:
        flag, value = "time", name
    elif names_files(table.path.parent, filled(column)) or only_texts:
        flag, value = "text", name
    else:
        flag, value = "drop", ",".join([*separated(options.drop), name])
    command = example(data, options, **{flag: value})
    others = "or the flag of its role (--id, --group, --time or --text)"
    raise InputError(
        f"{table.path}, {table.bad.places[row]}: {cell[:40]!r} is not a number in column {name!r}",
        f"write numbers there, or pass --{flag} {quote(value)}, {others}, for example: {command}",
    )
