"""Tables from ``.csv``, ``.tsv``, ``.jsonl`` and ``.parquet`` files: data frames with the place of each row."""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error, first_line
from reservoir.size_limits import FREE_BYTES, MAX_EXPANSION, check_expansion
from reservoir_pipelines.data.arrays import Skipped

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
# how tables write an empty cell, in small letters or capitals
EMPTY = ("", "na", "n/a", "nan", "null", "none")
MAX_NAMED = 5
EMPTY_CELL = "an empty cell in column"  # begins the reason why a row with a missing value cannot be read
OR_FILL = ", or pass --missing interpolate or mask for missing values"  # ends the remedy of an empty cell
# largest share of filled cells that are not numbers in a column of values; else it is a text
MAX_TEXT = 0.5
THOUSANDS = r"[-+]?[1-9]\d{0,2}([.,]\d{3})+"  # a number whose dots or commas may separate thousands
SAMPLE = 1000  # number of first rows that show the decimal mark
BATCH = 256  # number of rows of a Parquet file that are unpacked at a time


class BadRows:
    """The rows of one source that cannot be read: all are counted, and the first five named with the reason.

    ``places`` has the place of each row, such as ``"line 12"``. If ``skip`` is true, bad rows are
    left out; else `kept` refuses them, in a message that names --skip-bad-rows if ``skip`` is False.
    """

    def __init__(self, where: str, places: Sequence[str], *, skip: bool | None = None):
        self.where, self.places, self.skip = where, places, skip
        self.reasons: dict[int, str] = {}
        self.remedies: dict[int, str] = {}  # other remedies than "fix the file", by row

    def add(self, row: int | np.integer, reason: str) -> None:
        """Note why a row cannot be read; the first reason counts."""
        self.reasons.setdefault(int(row), reason)

    def read_files(self, files: Sequence[Path], read: Callable[[Path], Any]) -> list[Any]:
        """Return ``read`` of the file of each row that is not bad; rows that it refuses become bad."""
        found = []
        for row, path in ((row, path) for row, path in enumerate(files) if row not in self.reasons):
            try:
                found.append(read(path))
            except InputError as error:
                problem = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
                self.reasons[row], _, self.remedies[row] = problem.partition("; ")
        return found

    def kept(self) -> np.ndarray:
        """Return which rows can be read, (rows,) of bool; refuse bad rows if they are not skipped or all are bad."""
        bad, rows = len(self.reasons), len(self.places)
        if bad and (not self.skip or bad == rows):
            or_fill = OR_FILL if any(EMPTY_CELL in reason for reason in self.reasons.values()) else ""
            helps = self.skip is False and (bad < rows or rows == 1)
            or_skip = ", or pass --skip-bad-rows" if helps else ""
            remedies = {
                self.remedies.get(row, "fix the file").removesuffix(OR_FILL) for row in self.reasons
            }
            fix = (remedies.pop() if len(remedies) == 1 else "fix the file") + or_fill + or_skip
            if bad == 1:
                ((row, reason),) = self.reasons.items()
                raise InputError(f"{self.where}, {self.places[row]}: {reason}", fix)
            count = "no row can" if bad == rows else f"{bad:,} rows cannot"
            raise InputError(f"{self.where}: {count} be read: {self._named()}", fix)
        return ~np.isin(np.arange(rows), list(self.reasons))

    def skipped(self, ids: Sequence[Any] | np.ndarray) -> Skipped:
        """Return why each bad row cannot be read, with its id if there are ``ids``."""
        return {
            row: (str(ids[row]) if len(ids) else None, reason) for row, reason in self._placed().items()
        }

    def notes(self) -> list[str]:
        """Return a line that says how many rows were skipped, if any were."""
        skipped = f"skipped {len(self.reasons):,} of {len(self.places):,} rows"
        return [f"{skipped}: {self._named()}"] if self.reasons else []

    def _placed(self) -> dict[int, str]:
        return {row: f"{self.places[row]}: {reason}" for row, reason in sorted(self.reasons.items())}

    def _named(self) -> str:
        named = list(self._placed().values())
        more = [f"and {len(named) - MAX_NAMED:,} more"] if len(named) > MAX_NAMED else []
        return "; ".join(named[:MAX_NAMED] + more)


@dataclass
class Table:
    """A table in memory; columns that are read as text hold ``str``, or NaN for an empty cell."""

    path: Path
    frame: Any  # a pandas.DataFrame, which pandas types too loosely to check
    bad: BadRows
    decimal: str = "."
    # a cell of each column whose marks may be thousands
    unclear: Mapping[str, str] = field(default_factory=dict)

    def check_thousands(self, name: str) -> None:
        """Refuse a column of numbers whose marks may separate thousands."""
        if cell := self.unclear.get(name):
            raise InputError(
                f"{self.path}, column {name!r}: the mark in {cell!r} may separate thousands",
                "remove such marks, or pass --decimal . or --decimal ,",
            )

    def with_points(self, cells: Any) -> Any:
        """Return cells with points for decimal commas, and commas for points, because 1.234 is then no number."""
        if self.decimal != ",":
            return cells
        swap = str.maketrans(",.", ".,")
        return cells.map(lambda cell: cell.translate(swap) if isinstance(cell, str) else cell)

    def notes(self) -> list[str]:
        """Return a line if decimal commas are read."""
        note = "commas are read as decimal points; pass --decimal . if they are not"
        return [note] if self.decimal == "," else []

    def take(self, rows: Sequence[int]) -> "Table":
        """Return some rows in the given order, each with its place and, if it is bad, the reason."""
        bad = BadRows(self.bad.where, [self.bad.places[row] for row in rows], skip=self.bad.skip)
        bad.reasons = {
            place: self.bad.reasons[row] for place, row in enumerate(rows) if row in self.bad.reasons
        }
        return replace(self, frame=self.frame.iloc[rows].reset_index(drop=True), bad=bad)


def read_table(
    path: Path, text: Sequence[str] | None = (), decimal: str = "auto", rows: int | None = None
) -> Table:
    """Return a table, or its first ``rows``, with inferred types; columns in ``text`` (None: all) stay text."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        frame = _read_parquet(path, rows)
        places, faults = [f"row {row}" for row in range(len(frame))], {}
    else:
        check_text(path)
        frame, lines, faults = (
            _read_jsonl(path, rows) if suffix == ".jsonl" else _read_csv(path, text, decimal, rows)
        )
        places = [f"line {line}" for line in lines]
    bad = BadRows(str(path), places)
    for row, reason in faults.items():
        bad.add(row, reason)
    return Table(path, frame, bad, frame.attrs.pop("decimal", "."), frame.attrs.pop("unclear", {}))


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


def _read_csv(
    path: Path, text: Sequence[str] | None, decimal: str, rows: int | None
) -> tuple[Any, np.ndarray, dict[int, str]]:
    """Return the columns of a text file, the line number of each row, and the reasons why rows cannot be read."""
    import pandas as pd

    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next((line for line in file if line.strip()), "")
        between = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
        file.seek(0)
        reader = csv.reader(file, delimiter=between)
        filled = (
            (number, cells)
            for number, cells in enumerate(reader, 1)
            # Excel names its separator in a first line
            if cells[:1] != ["sep="] and (len(cells) > 1 or "".join(cells).strip())
        )
        before, header = next(filled, (0, []))
        names = [name.strip() or f"Unnamed: {place}" for place, name in enumerate(header)]
        begin, records, sample = reader.line_num + 1, [], []
        for cells in islice(reader, rows):
            sample += [cells] if len(sample) < SAMPLE else []
            empty = not cells or (len(cells) == 1 < len(names) and not cells[0].strip())
            records.append((begin, len(cells), not empty))
            begin = reader.line_num + 1
    check_names(path, [name for name in names if not name.startswith("Unnamed: ")])
    _check_cells(path, len(records), len(names))
    if not any(full for _, _, full in records):
        raise InputError(f"{path}: no rows", "give a header with column names, and one line per row")
    wanted = {name.lower() for name in (names if text is None else text)}
    as_text = {place: str for place, name in enumerate(names) if name.lower() in wanted}
    mark = _decimal_mark(sample) if decimal == "auto" and between != "," else decimal.replace("auto", ".")
    read: Any = pd.read_csv  # the type stubs of pandas do not accept columns by number
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas warns about long lines, which are counted here
            frame = read(
                file,
                sep=between,
                decimal=mark,
                header=None,
                names=range(len(names)),
                usecols=range(len(names)),
                dtype=as_text,
                skiprows=before,
                nrows=rows,
                keep_default_na=False,  # "NA" may be a class, or two amino acids
                na_values=[""],
                index_col=False,
                skip_blank_lines=False,  # so that row n of the frame is ``records[n]``
                low_memory=False,
                float_precision="round_trip",
            )
        if len(frame) != len(records):
            raise ValueError("unmatched quotes")
    except (ValueError, OverflowError, csv.Error) as error:
        problem = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"{path}: not a readable table ({problem})", "check quotes and separators"
        ) from None
    frame.columns = names
    frame.attrs["decimal"] = mark
    if decimal == "auto" and between != ",":
        frame.attrs["unclear"] = _possible_thousands(names, sample, mark, between)
    lines, cells, full = (np.array(column) for column in zip(*records, strict=True))
    long = np.flatnonzero(cells[full] > len(names)).tolist()
    faults = {row: f"{cells[full][row]} cells under {len(names)} column names" for row in long}
    return frame[full].reset_index(drop=True), lines[full], faults


def _decimal_mark(rows: Sequence[Sequence[str]]) -> str:
    """Return the decimal mark of most numbers in some rows."""
    cells = [cell.strip() for row in rows for cell in row]
    commas, points = (
        sum(bool(re.fullmatch(rf"[-+]?\d*{mark}\d+", cell)) for cell in cells) for mark in (",", r"\.")
    )
    return "," if commas > points else "."


def _possible_thousands(
    names: Sequence[str], rows: Sequence[Sequence[str]], mark: str, between: str
) -> dict[str, str]:
    """Return a cell of each column in which all marks may separate thousands, as in 1.037 beside 960."""
    found = {}
    for place, name in enumerate(names):
        cells = [row[place].strip() for row in rows if place < len(row)]
        marked = [cell for cell in cells if mark in cell]
        below = between + mark == "\t," or any(re.fullmatch(r"[-+]?\d{1,3}", cell) for cell in cells)
        if marked and below and all(re.fullmatch(THOUSANDS, cell) for cell in marked):
            found[name] = marked[0]
    return found


def _read_jsonl(path: Path, rows: int | None) -> tuple[Any, list[int], dict[int, str]]:
    """Return the columns of a file of JSON objects, one per line, the line numbers, and why some cannot be read."""
    import pandas as pd

    records, places, faults = [], [], {}
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
                faults[len(records)], record = f"not a complete JSON object ({first_line(error)})", {}
            records.append(record)
            places.append(number)
    if len(faults) == len(records):
        raise InputError(
            f"{path}, line {places[0]}: {faults[0]}" if faults else f"{path}: no rows",
            "write one JSON object per line",
        )
    _check_cells(path, len(records), len(set().union(*records)))
    return pd.DataFrame.from_records(records, index=range(len(records))), places, faults


def import_pyarrow(where: object) -> Any:
    """Return the module ``pyarrow``; raise `InputError` if it is not installed."""
    with as_input_error(f"{where}: Parquet needs pyarrow", "run pip install 'reservoir-features[parquet]'"):
        import pyarrow.parquet
    return pyarrow


def read_arrow(path: Path, rows: int | None = None) -> Any:
    """Return a Parquet file as a ``pyarrow.Table``; refuse one that unpacks to far more."""
    pyarrow = import_pyarrow(path)
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        # Do not use file.metadata: reading its columns crashes the process for 1 of 600 randomly damaged files.
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
        check_names(path, schema.names)
        size, batches = 0, []
        for batch in islice(file.iter_batches(rows or BATCH), rows and 1):
            # Decoding a dictionary repeats its values, so the size is counted after it.
            plain = [
                one.dictionary_decode() if pyarrow.types.is_dictionary(one.type) else one for one in batch
            ]
            size += sum(column.nbytes for column in plain)
            check_expansion(path, "all columns", size, path.stat().st_size)
            batches.append(pyarrow.RecordBatch.from_arrays(plain, names=schema.names))
        table = pyarrow.Table.from_batches(batches) if batches else schema.empty_table()
        # the metadata says which columns are the index of a data frame
        return table.replace_schema_metadata(schema.metadata)


def _read_parquet(path: Path, rows: int | None) -> Any:
    """Return the columns of a Parquet file: lists as lists, dates and decimals as text, as in other tables."""
    import pandas as pd

    table, types = read_arrow(path, rows), import_pyarrow(path).types
    with as_input_error(f"{path}: not a readable Parquet file", "write it again"):
        columns = {}
        for name in table.column_names:
            column, kind = table.column(name), table.column(name).type
            if types.is_binary(kind) or types.is_large_binary(kind):
                raise InputError(f"{path}: some cells hold bytes", "write text or numbers")
            if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
                columns[name] = column.to_pandas()
            else:
                cells = [
                    c if c is None or isinstance(c, str | list) else str(c) for c in column.to_pylist()
                ]
                columns[name] = pd.Series(cells, dtype=object)
        return pd.DataFrame(columns)


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise InputError(f"{path}: two columns are called {name!r}", "rename one")


def _check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table of far more cells, nearly all empty, than the file has bytes."""
    size = path.stat().st_size
    if 8 * rows * columns > max(FREE_BYTES, MAX_EXPANSION * size):
        raise InputError(
            f"{path}: {rows:,} rows and {columns:,} columns in {size:,} bytes, so nearly all cells are empty",
            "leave out the empty columns",
        )
