"""Tables as columns of cells: ``.csv``, ``.tsv`` and ``.jsonl``."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reservoir.errors import InputError

MOST_LINE = 2**26
"""Characters of a line; what has more is another kind of file."""

DECIMAL = re.compile(r"[-+]?\d*(,\d+)?([eE][-+]?\d+)?")

Table = dict[str, Sequence[Any]]
"""Cells by the names of their columns; those of text files are str, and None is an empty cell."""


def read_csv(path: Path) -> Table:
    """Return the columns of text with commas between, or semicolons (then numbers may have decimal commas), or tabs."""
    # The default limit of a field, 131,072 characters, is a sequence of some 20,000 numbers.
    csv.field_size_limit(2**31 - 1)
    between = (
        "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=next(lines_of(path), "").count)
    )  # in the header
    try:
        rows = [row for row in csv.reader(lines_of(path), delimiter=between, strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{path}: no readable table ({error}); give comma-separated text with a header") from None
    if len(rows) < 2:
        raise InputError(f"{path}: {len(rows)} lines; give a header with column names, and one line per sequence")
    header = [name.strip() for name in rows[0]]
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells under {len(header)} column names")
    header = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
    check_names(path, header)
    table: Table = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    return {name: _with_points(cells) for name, cells in table.items()} if between == ";" else table


def read_jsonl(path: Path) -> Table:
    """Return the columns of a file with a JSON object on each line."""
    records = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: no complete JSON ({error}); write one object per line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: {type(record).__name__}, not an object with names and values")
        records.append(record)
    if not records:
        raise InputError(f"{path}: no lines; give one JSON object per sequence")
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text, none of which is long enough to be a danger."""
    number = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            while line := file.readline(MOST_LINE + 1):
                number += 1
                if len(line) > MOST_LINE or "\0" in line:
                    what = "a NUL" if "\0" in line else f"more than {MOST_LINE} characters"
                    raise InputError(f"{path}, line {number}: {what}; is it another kind of file, or not UTF-8?")
                yield line
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: no readable table, as it is not UTF-8 ({error}); write it as UTF-8") from None


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"{path}: two columns are called {name!r}; give each a name of its own")


def _with_points(cells: Sequence[str]) -> Sequence[str]:
    """Return cells with points in numbers, if all of them are numbers or empty."""
    numbers = all(not cell.strip() or DECIMAL.fullmatch(cell.strip()) for cell in cells)
    return [cell.replace(",", ".") for cell in cells] if numbers else cells
