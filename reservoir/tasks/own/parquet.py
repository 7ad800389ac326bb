"""The columns of a Parquet file, by batches of rows; the library works in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, first_line
from reservoir.tasks.isolated import Isolated, limit
from reservoir.tasks.own.columns import check_expansion
from reservoir.tasks.own.tables import Table, check_names

TAIL = 2**16
BATCH = 256
"""Rows that are unpacked at a time."""

_batches: dict[Path, Iterator[list[Any]]] = {}


def read_parquet(path: Path) -> Table:
    """Return the columns of a Parquet file; cells may be lists, or lists of lists."""
    file = Isolated(__name__, path)
    names = file.ask()
    check_names(path, names)
    columns: list[list[Any]] = [[] for _ in names]
    while batch := file.ask(more=True):
        for column, cells in zip(columns, batch, strict=True):
            column.extend(cells)
    return dict(zip(names, columns, strict=True))


def mentions(path: Path, words: Sequence[str]) -> bool:
    """Return whether one of some words stands in the end of a file, where the extremes of its columns are."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        end = file.read().lower()
    return any(word.encode() in end for word in words)


def answer(path: Path, request: dict[str, Any]) -> Any:
    """Return the names of the columns, or the next rows of all: called in the process that may die of it."""
    if request:
        return next(_batches[path], None)
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"{path}: Parquet needs a package: pip install pyarrow; or give .csv or .npz") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: no readable Parquet file ({first_line(error)})") from None
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    values = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
    check_expansion(path, "all columns", 8 * values, path.stat().st_size)
    _batches[path] = _rows_of(path, file)
    return file.schema_arrow.names


def _rows_of(path: Path, file: Any) -> Iterator[list[Any]]:
    import pyarrow  # pyright: ignore[reportMissingImports]

    size = 0
    for batch in file.iter_batches(BATCH):
        # A word of a dictionary is unpacked as often as it stands in the rows.
        whole = [column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column for column in batch]
        size += sum(column.nbytes for column in whole)
        check_expansion(path, "all columns", size, path.stat().st_size)
        limit(sum(column.nbytes for column in whole))
        yield [[_plain(path, cell) for cell in column.to_pylist()] for column in whole]


def _plain(path: Path, cell: Any) -> Any:
    """Return what JSON can say of a cell; dates and decimals are text, as they are in other tables."""
    if isinstance(cell, bytes):
        raise InputError(f"{path}: cells of bytes; write text or numbers")
    return cell if cell is None or isinstance(cell, str | int | float | list) else str(cell)
