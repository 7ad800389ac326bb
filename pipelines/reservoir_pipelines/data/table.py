"""Tables (``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``) in memory: a data frame, and the place of each row."""

import csv
import json
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import IO, Any

import numpy as np

from reservoir.errors import InputError, as_input_error, first_line
from reservoir.size_limits import FREE_BYTES, MAX_EXPANSION, check_expansion
from reservoir_pipelines.data.rows import BadRows

# ---- checks before a table is parsed


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text, or has a NUL."""
    flags = f"-t UTF-8 {quote(str(path))} > NEW{path.suffix}"
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if b"\0" in line:
                raise InputError(
                    f"{path}, line {number}: a NUL byte", f"perhaps run iconv -f UTF-16 {flags}"
                )
            try:
                line.decode()
            except UnicodeDecodeError:
                raise InputError(
                    f"{path}, line {number}: not UTF-8", f"perhaps run iconv -f LATIN1 {flags}"
                ) from None


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text."""
    check_text(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from file


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise InputError(f"{path}: two columns are called {name!r}", "rename one")


def check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table of far more cells, nearly all empty, than the file has bytes."""
    size = path.stat().st_size
    if 8 * rows * columns > max(FREE_BYTES, MAX_EXPANSION * size):
        raise InputError(
            f"{path}: {rows:,} rows and {columns:,} columns in {size:,} bytes, so nearly all cells are empty",
            "leave out the empty columns",
        )


# ---- text files of columns


SEPARATORS = ",;\t"
NO_NAME = "Unnamed: "
"""Begins the name that pandas gives to a column without one."""


@dataclass(frozen=True)
class Layout:
    """What the first pass over a file sees: its separator, its names, and its records with their lines.

    ``lines``, ``cells`` and ``filled`` (records,) are the number of the line on which each record begins,
    the number of its cells, and whether any cell is filled.
    """

    separator: str
    names: list[str]
    first_record: int  # number of records, with the header, before the first row
    lines: np.ndarray
    cells: np.ndarray
    filled: np.ndarray


def read_layout(path: Path, rows: int | None) -> Layout:
    """Return the layout of a file, or of its first ``rows``; a cell may have line breaks, so lines are not rows."""
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        separator = "\t" if path.suffix.lower() == ".tsv" else _separator_of(file)
        reader = csv.reader(file, delimiter=separator)
        header: list[str] = []
        first_record = 0
        for number, cells in enumerate(reader, 1):
            names_separator = cells[:1] == ["sep="]  # Excel writes a first line sep=;
            if not names_separator and (len(cells) > 1 or "".join(cells).strip()):
                header, first_record = cells, number
                break
        names = [name.strip() or f"{NO_NAME}{place}" for place, name in enumerate(header)]
        _refuse_values_as_names(path, reader.line_num, [name for name in map(str.strip, header) if name])
        records = []
        line = reader.line_num + 1
        for cells in islice(reader, rows):
            blank = not cells or (len(cells) == 1 < len(names) and not cells[0].strip())
            records.append((line, len(cells), not blank))
            line = reader.line_num + 1
    if not any(filled for _, _, filled in records):
        raise InputError(f"{path}: no rows", "give a header with column names, and one line per row")
    lines, counts, filled = (np.array(values) for values in zip(*records, strict=True))
    return Layout(separator, names, first_record, lines, counts, filled)


def _refuse_values_as_names(path: Path, line: int, names: Sequence[str]) -> None:
    """Refuse a first line of values, which would be lost: nearly all are numbers, and not in order as wavelengths are.

    Beside the numbers, there may be an id and a label.
    """
    numbers = []
    for name in names:
        with suppress(ValueError):
            numbers.append(float(name))
    ascending = sorted({*numbers})
    in_order = numbers in (ascending, ascending[::-1])
    # pandas may sort the names of columns as texts: 1, 10, 2.
    whole = [int(number) for number in numbers if number.is_integer()]
    in_order_of_texts = len({*whole}) == len(numbers) and whole == sorted(whole, key=str)
    are_values = len(numbers) >= max(2, len(names) - 2) and not in_order and not in_order_of_texts
    if are_values:
        raise InputError(
            f"{path}, line {line}: numbers such as {numbers[0]:g} are not names of columns",
            "add a first line with the names of the columns",
        )


def _separator_of(file: IO[str]) -> str:
    """Return the separator that is most frequent in the first line that is not blank."""
    header = next((line for line in file if line.strip()), "")
    file.seek(0)
    return max(SEPARATORS, key=header.count)


def read_csv(path: Path, layout: Layout, text: set[str], decimal: str, rows: int | None) -> Any:
    """Return a ``pandas.DataFrame`` with a row per record; the columns ``text`` stay as they are written."""
    import pandas as pd

    names = layout.names
    check_names(path, [name for name in names if not name.startswith(NO_NAME)])
    check_cells(path, len(layout.lines), len(names))
    read: Any = pd.read_csv  # the type stubs of pandas do not accept columns by number
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas warns about long lines, which `Layout` counts
            frame = read(
                file,
                sep=layout.separator,
                decimal=decimal,
                header=None,
                names=range(len(names)),
                usecols=range(len(names)),
                dtype={place: str for place, name in enumerate(names) if name in text},
                skiprows=layout.first_record,
                nrows=rows,
                keep_default_na=False,  # "NA" may be a class, or two amino acids
                na_values=[""],
                index_col=False,
                skip_blank_lines=False,  # so that row n of the frame is record n
                low_memory=False,
                float_precision="round_trip",
            )
        if len(frame) != len(layout.lines):
            raise ValueError("unmatched quotes")
    except (ValueError, OverflowError, csv.Error) as error:
        problem = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"{path}: not a readable table ({problem})", "check quotes and separators"
        ) from None
    frame.columns = names
    return frame


# ---- Parquet


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
        # The first ``rows`` are one batch of that size, because batches cross the row groups of a file.
        most_batches = None if rows is None else 1
        for batch in islice(file.iter_batches(rows or BATCH_ROWS), most_batches):
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


def frame_of(path: Path, table: Any) -> Any:
    """Return a ``pyarrow.Table`` as a data frame: lists as lists, dates and decimals as text, as in other tables."""
    import pandas as pd

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


def integer_columns(path: Path, table: Any) -> frozenset[str]:
    """Return the names of the columns of a ``pyarrow.Table`` that hold integers."""
    types = import_pyarrow(path).types
    return frozenset(field.name for field in table.schema if types.is_integer(field.type))


# ---- Parquet in parts


PATTERN = "*?["
"""Characters of a pattern that stands for several files, such as ``data/*.parquet``."""


def is_pattern(path: Path) -> bool:
    """Return whether a path is not a file, but a pattern of file names in a folder."""
    return any(mark in path.name for mark in PATTERN) and not path.exists()


def data_exists(path: Path) -> bool:
    """Return whether a path is there, or a file that a pattern stands for."""
    return path.exists() or any(path.parent.glob(path.name) if is_pattern(path) else ())


def files_of_pattern(path: Path) -> list[Path]:
    """Return the files that a pattern stands for, sorted by name; refuse a pattern of other than Parquet files."""
    files = sorted(file for file in path.parent.glob(path.name) if file.is_file())
    others = [file for file in files if file.suffix.lower() != ".parquet"]
    if others or not files:
        problem = f"{others[0].name} is not a Parquet file" if others else "no such files"
        raise InputError(f"{path}: {problem}", "give a pattern of Parquet files, such as 'data/*.parquet'")
    return files


def read_parts(path: Path, files: Sequence[Path]) -> "Table":
    """Return the rows of Parquet files with equal columns as one table, file by file; ``path`` is their pattern."""
    pyarrow = import_pyarrow(path)
    parts = list[Any]()
    for file in files:
        part = read_arrow(file)
        if parts:
            _check_same_columns(file, part.schema, files[0], parts[0].schema)
            part = part.select(parts[0].column_names)
        parts.append(part)
    # A column of which a part knows no value has the type null there, and that of the other parts after this.
    whole = pyarrow.concat_tables(parts, promote_options="default")
    places = [
        f"{file.name}, row {row}"
        for file, part in zip(files, parts, strict=True)
        for row in range(len(part))
    ]
    return Table(
        path, frame_of(path, whole), BadRows(str(path), places), integers=integer_columns(path, whole)
    )


def _check_same_columns(file: Path, schema: Any, first_file: Path, first_schema: Any) -> None:
    """Refuse a part of a table that has other columns, or columns of other types, than the first part."""
    remedy = "write all parts with the same columns"
    names, first_names = set(schema.names), set(first_schema.names)
    for name in sorted(names ^ first_names):
        has, lacks = (first_file, file) if name in first_names else (file, first_file)
        raise InputError(f"{lacks}: no column {name!r}, which {has.name} has", remedy)
    for name in first_schema.names:
        kind, first_kind = (str(part.field(name).type) for part in (schema, first_schema))
        if kind != first_kind and "null" not in (kind, first_kind):
            problem = f"the column {name!r} holds {kind}, but {first_kind} in {first_file.name}"
            raise InputError(f"{file}: {problem}", remedy)


# ---- tables of any format


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
    integers: frozenset[str] = frozenset()
    """Columns of integers in the file, which pandas holds as floats if cells are missing; unknown for text formats."""

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


def read_table(
    path: Path, text: TextColumns = lambda names: (), decimal: str = ".", rows: int | None = None
) -> Table:
    """Return a table, or its first ``rows``; pandas infers the types of all columns but ``text``, by default none."""
    # Parquet files have types, JSON has those of its values, and the columns of other files are read as pandas infers.
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        arrow = read_arrow(path, rows)
        places = [f"row {row}" for row in range(len(arrow))]
        return Table(
            path, frame_of(path, arrow), BadRows(str(path), places), integers=integer_columns(path, arrow)
        )
    check_text(path)
    if suffix == ".jsonl":
        return _read_jsonl(path, rows)
    try:
        layout = read_layout(path, rows)
    except csv.Error as error:
        raise InputError(
            f"{path}: not a readable table ({first_line(error)})", "check quotes and separators"
        ) from None
    # Leave out empty lines, and mark the rows that have more cells than there are columns.
    frame = read_csv(path, layout, {*text(layout.names)}, decimal, rows)
    frame = frame[layout.filled].reset_index(drop=True)
    bad = BadRows(str(path), [f"line {line}" for line in layout.lines[layout.filled]])
    cells = layout.cells[layout.filled]
    for row in np.flatnonzero(cells > len(layout.names)):
        bad.add(row, f"{cells[row]} cells under {len(layout.names)} column names")
    return Table(path, frame, bad, decimal)


def _are_integers(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether the cells of a column of JSON objects are integers, apart from missing ones."""
    cells = (record.get(name) for record in records)
    return all(cell is None or type(cell) is int for cell in cells)


def _read_jsonl(path: Path, rows: int | None) -> Table:
    """Return the table of a file with a JSON object on each line."""
    import pandas as pd

    records: list[dict[str, Any]] = []  # empty for a line that cannot be read
    places: list[str] = []  # where each record is, for messages
    faults: dict[int, str] = {}  # why a record cannot be read, by its number
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
    frame = pd.DataFrame.from_records(records, index=range(len(records)))
    return Table(path, frame, bad, integers=frozenset(filter(partial(_are_integers, records), frame)))
