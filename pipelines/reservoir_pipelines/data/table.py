"""Tables (``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``) in memory: a data frame, and the place of each row."""

import csv
import json
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import IO, Any

import numpy as np

from reservoir.errors import InputError, as_input_error, first_line
from reservoir.file_checks import FREE_BYTES, MAX_EXPANSION, check_expansion
from reservoir_pipelines.data.rows import BadRows

# ---- checks before a table is parsed


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text, or has a NUL, with the command that perhaps converts it."""
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
    """Yield the lines of a UTF-8 text, with their line ends; refuse other files."""
    check_text(path)
    # ``utf-8-sig`` leaves out the byte order mark that Windows may write.
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from file


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    for name, count in Counter(names).most_common(1):  # the most frequent name, if there is any
        if count > 1:
            raise InputError(f"{path}: two columns are called {name!r}", "rename one")


def check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table whose cells, of ``rows`` and ``columns``, would need far more memory than the file has bytes."""
    size = path.stat().st_size
    memory = 8 * rows * columns  # a number, or the address of a text, has 8 bytes
    if memory > max(FREE_BYTES, MAX_EXPANSION * size):
        raise InputError(
            f"{path}: {rows:,} rows and {columns:,} columns in {size:,} bytes, so nearly all cells are empty",
            "leave out the empty columns",
        )


# ---- text files of columns


SEPARATORS = ",;\t|"
"""Characters that may separate the columns of a file ``.csv``."""

NO_NAME = "Unnamed: "
"""Begins the name that pandas gives to a column without one."""


@dataclass(frozen=True)
class TableLayout:
    """What the first pass over a file sees: its separator, its columns, and its records.

    Parameters
    ----------
    separator : str
        The character that separates the columns.
    names : list of str
        The names of the columns; `NO_NAME` and a number for a column without one.
    first_record : int
        Number of records up to the header and with it, after which the rows begin.
    lines : array (records,) of int
        The number, from 1, of the line on which each record begins.
    cells : array (records,) of int
        The number of cells of each record.
    is_filled : array (records,) of bool
        Whether each record is a row, not an empty line.
    """

    separator: str
    names: list[str]
    first_record: int
    lines: np.ndarray
    cells: np.ndarray
    is_filled: np.ndarray


def read_layout(path: Path, rows: int | None) -> TableLayout:
    """Return the layout of a file, or of its header and its first ``rows`` records; None for all.

    A cell may have line breaks, so that a record may have several lines.
    """
    csv.field_size_limit(2**31 - 1)  # by default, Python refuses cells of more than 2**17 characters
    with path.open(encoding="utf-8-sig", newline="") as file:
        comments, first_line = _opening_lines(file)
        separator = "\t" if path.suffix.lower() == ".tsv" else max(SEPARATORS, key=first_line.count)
        # A comment with as many cells as the line below is a header, such as #id,label.
        is_header_a_comment = bool(comments) and comments[-1].count(separator) == first_line.count(
            separator
        )
        if is_header_a_comment:
            comments.pop()
        file.seek(0)
        reader = csv.reader(file, delimiter=separator)
        header, first_record = _read_header(reader, len(comments))
        if is_header_a_comment:
            header[0] = header[0].lstrip("#")
        names = [name.strip() or f"{NO_NAME}{column}" for column, name in enumerate(header)]
        _refuse_values_as_names(path, reader.line_num, [name for name in map(str.strip, header) if name])
        # The records after the header. ``line_num`` is the last line that has been read.
        lines: list[int] = []
        cell_counts: list[int] = []
        is_filled: list[bool] = []
        next_line = reader.line_num + 1
        for cells in islice(reader, rows):
            # In a table of one column, a line of spaces is a row with an empty cell.
            is_blank = not cells or (len(cells) == 1 and len(names) > 1 and not cells[0].strip())
            lines.append(next_line)
            cell_counts.append(len(cells))
            is_filled.append(not is_blank)
            next_line = reader.line_num + 1
    if not any(is_filled):
        raise InputError(f"{path}: no rows", "give a header with column names, and one line per row")
    return TableLayout(
        separator, names, first_record, np.array(lines), np.array(cell_counts), np.array(is_filled)
    )


def _opening_lines(file: IO[str]) -> tuple[list[str], str]:
    """Return the lines that begin with ``#`` at the start of a file, and the first line after them with text."""
    comments: list[str] = []
    for line in file:
        if line.startswith("#"):
            comments.append(line)
        elif line.strip():
            return comments, line
    return [], comments[0] if comments else ""


def _read_header(records: Iterator[list[str]], comments: int) -> tuple[list[str], int]:
    """Consume the records of a file up to its header; return its cells, and its number among the records, from 1.

    The header is the first record that is not blank, after this number of ``comments``, which begin with ``#``. A file
    without one has no columns.
    """
    for number, cells in enumerate(records, 1):
        names_separator = cells[:1] == ["sep="]  # Excel writes a first line sep=;
        is_blank = len(cells) <= 1 and not "".join(cells).strip()
        if cells and cells[0].startswith("#") and comments:
            comments -= 1
        elif not names_separator and not is_blank:
            return cells, number
    return [], 0


def _refuse_values_as_names(path: Path, line: int, names: Sequence[str]) -> None:
    """Refuse a first line of values, which would be lost: nearly all are numbers, and not in order as wavelengths are.

    ``names`` are the cells of the first line, number ``line``, that are not empty.
    """
    numbers = []
    for name in names:
        with suppress(ValueError):
            numbers.append(float(name))
    # Names that are numbers stand in order and do not repeat. pandas may have sorted them as texts: 1, 10, 2.
    ascending = sorted({*numbers})
    are_in_order = numbers in (ascending, ascending[::-1])
    integers = [int(number) for number in numbers if number.is_integer()]
    are_in_order_of_texts = len({*integers}) == len(numbers) and integers == sorted(integers, key=str)
    # Beside the numbers, there may be an id and a label.
    nearly_all_are_numbers = len(numbers) >= max(2, len(names) - 2)
    if nearly_all_are_numbers and not are_in_order and not are_in_order_of_texts:
        raise InputError(
            f"{path}, line {line}: numbers such as {numbers[0]:g} are not names of columns",
            "add a first line with the names of the columns",
        )


def read_csv(
    path: Path, layout: TableLayout, text_columns: set[str], decimal: str, rows: int | None
) -> Any:
    """Return a ``pandas.DataFrame`` with a row per record of a file, or of its first ``rows`` records.

    Cells of ``text_columns``, names of columns, stay as they are written. ``decimal`` is the decimal mark.
    """
    import pandas as pd

    names = layout.names
    check_names(path, [name for name in names if not name.startswith(NO_NAME)])
    check_cells(path, len(layout.lines), len(names))
    read: Any = pd.read_csv  # the type stubs of pandas do not accept columns by number
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            # The warnings are about long lines, whose cells `TableLayout` has counted.
            warnings.simplefilter("ignore")
            frame = read(
                file,
                sep=layout.separator,
                decimal=decimal,
                header=None,
                names=range(len(names)),
                usecols=range(len(names)),
                dtype={column: str for column, name in enumerate(names) if name in text_columns},
                skiprows=layout.first_record,
                nrows=rows,
                keep_default_na=False,  # "NA" may be a class, or two amino acids
                na_values=[""],
                index_col=False,
                skip_blank_lines=False,  # so that row n of the frame is record n
                low_memory=False,  # infer the type of a column from all of its cells
                float_precision="round_trip",
            )
        # The csv module, which read the layout, has divided the file into other records than pandas.
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
    """Return the module ``pyarrow``; raise `InputError`, about the data ``where``, if it is not installed."""
    with as_input_error(f"{where}: Parquet needs pyarrow", "run pip install 'reservoir-features[parquet]'"):
        import pyarrow.parquet
    return pyarrow


def read_arrow(path: Path, rows: int | None = None) -> Any:
    """Return a Parquet file, or its first ``rows``, as a ``pyarrow.Table``.

    Refuse a file that needs far more memory, unpacked, than it has bytes.
    """
    pyarrow = import_pyarrow(path)
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        # Do not use file.metadata: reading its columns crashes the process for 1 of 600 randomly damaged files.
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
        check_names(path, schema.names)
        size = 0  # bytes of all batches so far
        batches = []
        # The first ``rows`` are one batch of that size, because batches cross the row groups of a file.
        most_batches = None if rows is None else 1
        for batch in islice(file.iter_batches(rows or BATCH_ROWS), most_batches):
            # Decoding a dictionary repeats its values, so the size is counted after it.
            columns = [
                column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
                for column in batch
            ]
            # Batch by batch, so that a small file of many repeated values is refused before it fills the memory.
            size += sum(column.nbytes for column in columns)
            check_expansion(path, "all columns", size, path.stat().st_size)
            batches.append(pyarrow.RecordBatch.from_arrays(columns, names=schema.names))
        table = pyarrow.Table.from_batches(batches) if batches else schema.empty_table()
        # The metadata, which the batches lost, say which columns are the index of a data frame.
        return table.replace_schema_metadata(schema.metadata)


def frame_of(path: Path, table: Any) -> Any:
    """Return the ``pyarrow.Table`` of a file as a data frame: numbers as numbers, lists as lists, all else as text.

    Dates and decimals become text, as they are in other tables.
    """
    import pandas as pd

    types = import_pyarrow(path).types
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        columns = {}
        for name in table.column_names:
            column = table.column(name)
            if types.is_binary(column.type) or types.is_large_binary(column.type):
                raise InputError(f"{path}: some cells hold bytes", "write text or numbers")
            is_numeric = (
                types.is_integer(column.type)
                or types.is_floating(column.type)
                or types.is_boolean(column.type)
            )
            if is_numeric:
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
    """Return whether a path exists, or a file that it stands for as a pattern."""
    return path.exists() or (is_pattern(path) and any(path.parent.glob(path.name)))


def files_of_pattern(path: Path) -> list[Path]:
    """Return the files that a pattern stands for, sorted by name; refuse other files than Parquet, and none."""
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
            part = part.select(parts[0].column_names)  # the columns in the order of the first part
        parts.append(part)
    # A column without any value in a part has the type null there; ``promote_options`` gives it that of other parts.
    table = pyarrow.concat_tables(parts, promote_options="default")
    places = [
        f"{file.name}, row {row}"
        for file, part in zip(files, parts, strict=True)
        for row in range(len(part))
    ]
    return Table(
        path, frame_of(path, table), BadRows(str(path), places), integers=integer_columns(path, table)
    )


def _check_same_columns(file: Path, schema: Any, first_file: Path, first_schema: Any) -> None:
    """Refuse a part of a table, ``file``, that has other columns, or columns of other types, than the first part."""
    remedy = "write all parts with the same columns"
    names, first_names = set(schema.names), set(first_schema.names)
    only_in_one = sorted(names ^ first_names)
    if only_in_one:
        name = only_in_one[0]
        has, lacks = (first_file, file) if name in first_names else (file, first_file)
        raise InputError(f"{lacks}: no column {name!r}, which {has.name} has", remedy)
    for name in first_schema.names:
        kind = str(schema.field(name).type)
        first_kind = str(first_schema.field(name).type)
        # A column without any value has the type null.
        has_values_in_both = "null" not in (kind, first_kind)
        if kind != first_kind and has_values_in_both:
            problem = f"the column {name!r} holds {kind}, but {first_kind} in {first_file.name}"
            raise InputError(f"{file}: {problem}", remedy)


# ---- tables of any format


SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

TextColumns = Callable[[list[str]], Collection[str]]
"""Returns the columns, among all names of a table, whose cells stay as they are written: 007 is not 7."""


@dataclass
class Table:
    """A table in memory.

    Parameters
    ----------
    path : Path
        The file, or the pattern of several.
    frame : pandas.DataFrame
        The cells. Columns that are read as text hold ``str``, or NaN for an empty cell.
    bad : BadRows
        The place of each row for messages, and the rows that cannot be read.
    decimal : str
        The decimal mark of the file, a point or a comma.
    integers : frozenset of str
        The columns of integers in the file, which pandas holds as floats if cells are missing; empty for ``.csv`` and
        ``.tsv``, which have no types.
    """

    path: Path
    frame: Any  # the stubs of pandas are too loose to check
    bad: BadRows
    decimal: str = "."
    integers: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.frame)

    def with_points(self, cells: Any) -> Any:
        """Return a column with points for decimal commas, so that its cells can be read as numbers.

        Points, which separate thousands there, become commas, so that 1.234 is not read as a number.
        """
        if self.decimal != ",":
            return cells
        exchange = str.maketrans(",.", ".,")
        return cells.map(lambda cell: cell.translate(exchange) if isinstance(cell, str) else cell)

    def take(self, rows: Sequence[int]) -> "Table":
        """Return some rows in the given order, each with its place and, if it is bad, the reason."""
        return replace(self, frame=self.frame.iloc[rows].reset_index(drop=True), bad=self.bad.take(rows))


def read_table(
    path: Path, text_columns: TextColumns = lambda names: (), decimal: str = ".", rows: int | None = None
) -> Table:
    """Return a table of any format, or its first ``rows``.

    Parquet files and JSON have types. pandas infers those of the columns of other files, except of the columns that
    ``text_columns`` returns, by default none.
    """
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
    frame = read_csv(path, layout, {*text_columns(layout.names)}, decimal, rows)
    frame = frame[layout.is_filled].reset_index(drop=True)
    bad = BadRows(str(path), [f"line {line}" for line in layout.lines[layout.is_filled]])
    cell_counts = layout.cells[layout.is_filled]
    for row in np.flatnonzero(cell_counts > len(layout.names)):
        bad.add(row, f"{cell_counts[row]} cells under {len(layout.names)} column names")
    return Table(path, frame, bad, decimal)


def _are_integers(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether the cells of a column of JSON objects are integers, apart from missing ones."""
    cells = (record.get(name) for record in records)
    # ``isinstance`` would accept true and false.
    return all(cell is None or type(cell) is int for cell in cells)


def _read_jsonl(path: Path, rows: int | None) -> Table:
    """Return the table of a file with a JSON object on each line, or of its first ``rows`` lines."""
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
                if "\\u" in line:
                    # Raises an error for half of a surrogate pair, which UTF-8 cannot encode.
                    json.dumps(record, ensure_ascii=False).encode()
                if not isinstance(record, dict):
                    raise ValueError(f"{type(record).__name__}, not names and values")
            except (ValueError, RecursionError) as error:  # nested brackets exceed the depth of recursion
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
    # A name that a record lacks is NaN in its row.
    frame = pd.DataFrame.from_records(records, index=range(len(records)))
    integers = frozenset(name for name in frame if _are_integers(records, name))
    return Table(path, frame, bad, integers=integers)
