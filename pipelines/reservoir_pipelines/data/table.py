"""Tables (``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``) in memory: a data frame, and the place of each row."""

import csv
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, first_line
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.csv_file import read_csv, read_layout
from reservoir_pipelines.data.parquet import read_parquet
from reservoir_pipelines.data.table_checks import check_cells, check_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

TextColumns = Callable[[list[str]], Collection[str]]
"""Returns the columns, among all names of a table, whose cells stay as they are written: 007 is not 7."""


@dataclass
class Table:
    """A table in memory. Columns that are read as text hold ``str``, or NaN for an empty cell."""

    path: Path
    frame: Any  # a pandas.DataFrame, which pandas types too loosely to check
    bad: BadRows
    decimal: str = "."

    @property
    def names(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.frame)

    def with_points(self, cells: Any) -> Any:
        """Return a column with points for decimal commas, and commas for points, because 1.234 is then no number."""
        if self.decimal != ",":
            return cells
        exchange = str.maketrans(",.", ".,")
        return cells.map(lambda cell: cell.translate(exchange) if isinstance(cell, str) else cell)

    def take(self, rows: Sequence[int]) -> "Table":
        """Return some rows in the given order, each with its place and, if it is bad, the reason."""
        return replace(self, frame=self.frame.iloc[rows].reset_index(drop=True), bad=self.bad.take(rows))


def no_text(names: list[str]) -> Collection[str]:
    """Return no column, so that pandas infers the type of every column."""
    return ()


def read_table(
    path: Path, text: TextColumns = no_text, decimal: str = ".", rows: int | None = None
) -> Table:
    """Return a table, or its first ``rows``; pandas infers the types of all columns but those of ``text``."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        frame = read_parquet(path, rows)
        return Table(path, frame, BadRows(str(path), [f"row {row}" for row in range(len(frame))]))
    check_text(path)
    if suffix == ".jsonl":
        return _read_jsonl(path, rows)
    try:
        layout = read_layout(path, rows)
    except csv.Error as error:
        raise InputError(
            f"{path}: not a readable table ({first_line(error)})", "check quotes and separators"
        ) from None
    frame = read_csv(path, layout, {*text(layout.names)}, decimal, rows)
    frame = frame[layout.filled].reset_index(drop=True)
    bad = BadRows(str(path), [f"line {line}" for line in layout.lines[layout.filled]])
    cells = layout.cells[layout.filled]
    for row in np.flatnonzero(cells > len(layout.names)):
        bad.add(row, f"{cells[row]} cells under {len(layout.names)} column names")
    return Table(path, frame, bad, decimal)


def _read_jsonl(path: Path, rows: int | None) -> Table:
    """Return the table of a file with a JSON object on each line."""
    import pandas as pd

    records: list[dict[str, Any]] = []
    places: list[str] = []
    faults: dict[int, str] = {}
    with path.open(encoding="utf-8-sig") as file:
        for number, line in islice(enumerate(file, 1), rows):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if "\\u" in line:  # half of a surrogate pair, which UTF-8 cannot encode, raises an error
                    json.dumps(record, ensure_ascii=False).encode()
                if not isinstance(record, dict):
                    raise ValueError(f"{type(record).__name__}, not names and values")
            except (ValueError, RecursionError) as error:
                faults[len(records)] = f"not a complete JSON object ({first_line(error)})"
                record = {}
            records.append(record)
            places.append(f"line {number}")
    if len(faults) == len(records):
        raise InputError(
            f"{path}, {places[0]}: {faults[0]}" if faults else f"{path}: no rows",
            "write one JSON object per line",
        )
    check_cells(path, len(records), len(set().union(*records)))
    bad = BadRows(str(path), places)
    for row, fault in faults.items():
        bad.add(row, fault)
    return Table(path, pd.DataFrame.from_records(records, index=range(len(records))), bad)
