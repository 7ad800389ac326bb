"""Parquet files, read in batches so that a small file cannot unpack to gigabytes."""

from itertools import islice
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, as_input_error
from reservoir.size_limits import check_expansion
from reservoir_pipelines.data.table_checks import check_names

BATCH_ROWS = 256
"""Number of rows that are unpacked at a time, before the size of all columns is checked."""


def import_pyarrow(where: object) -> Any:
    """Return the module ``pyarrow``; raise `InputError` if it is not installed."""
    with as_input_error(f"{where}: Parquet needs pyarrow", "run pip install 'reservoir-features[parquet]'"):
        import pyarrow.parquet
    return pyarrow


def read_arrow(path: Path, rows: int | None = None) -> Any:
    """Return a Parquet file, or its first ``rows``, as a ``pyarrow.Table``; refuse one that unpacks to far more."""
    pyarrow = import_pyarrow(path)
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        # Do not use file.metadata: reading its columns crashes the process for 1 of 600 randomly damaged files.
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
        check_names(path, schema.names)
        size = 0
        batches = []
        for batch in islice(file.iter_batches(rows or BATCH_ROWS), rows and 1):
            # Decoding a dictionary repeats its values, so the size is counted after it.
            columns = [
                column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                for column in batch
            ]
            size += sum(column.nbytes for column in columns)
            check_expansion(path, "all columns", size, path.stat().st_size)
            batches.append(pyarrow.RecordBatch.from_arrays(columns, names=schema.names))
        table = pyarrow.Table.from_batches(batches) if batches else schema.empty_table()
        # the metadata says which columns are the index of a data frame
        return table.replace_schema_metadata(schema.metadata)


def read_parquet(path: Path, rows: int | None) -> Any:
    """Return a ``pandas.DataFrame``: lists as lists, dates and decimals as text, as in other tables."""
    import pandas as pd

    table = read_arrow(path, rows)
    types = import_pyarrow(path).types
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        columns = {}
        for name in table.column_names:
            column = table.column(name)
            if types.is_binary(column.type) or types.is_large_binary(column.type):
                raise InputError(f"{path}: some cells hold bytes", "write text or numbers")
            if any(
                is_kind(column.type) for is_kind in (types.is_integer, types.is_floating, types.is_boolean)
            ):
                columns[name] = column.to_pandas()
                continue
            cells = [
                cell if cell is None or isinstance(cell, str | list) else str(cell)
                for cell in column.to_pylist()
            ]
            columns[name] = pd.Series(cells, dtype=object)
        return pd.DataFrame(columns)
