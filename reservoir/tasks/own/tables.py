"""Tables from files: ``.csv``, ``.tsv``, ``.jsonl`` and ``.parquet`` as data frames that know their line numbers."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, first_line
from reservoir.tasks.own.arrays import check_expansion

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

EMPTY = ("", "na", "n/a", "nan", "null", "none")
"""How tables write an empty cell, in small letters or capitals."""

BLOCK = 2**20
BATCH = 256
"""Rows of a Parquet file that are unpacked at a time."""


@dataclass
class Table:
    """A table in memory.

    Parameters
    ----------
    path : Path
        The file.
    frame : DataFrame
        Its columns. Those that are read as text hold ``str``, or NaN for an empty cell.
    places : list of str
        Where each row stands in the file, such as ``"line 12"``.
    faults : dict
        Why a row cannot be read, by its position in ``places``; the frame has all cells of such a row empty.
    """

    path: Path
    frame: Any  # a pandas.DataFrame, which pandas types too loosely to check
    places: list[str]
    faults: dict[int, str]


def read_table(path: Path, text: Sequence[str] | None = (), rows: int | None = None) -> Table:
    """Return a table with the columns named in ``text`` as they are written, and the types of the others inferred.

    Parameters
    ----------
    path : Path
        A local file with one of `SUFFIXES`.
    text : sequence of str or None, default ()
        Columns whose cells stay text, in small letters or capitals: 007 is no number there. None means all.
    rows : int, optional
        Read only so many rows.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path, rows)
    check_text(path)
    return _read_jsonl(path, rows) if suffix == ".jsonl" else _read_csv(path, text, rows)


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text, or has a NUL, in memory that does not grow with its lines."""
    line = 1
    with path.open("rb") as file:
        rest = b""
        while block := file.read(BLOCK):
            if b"\0" in block:
                line += block[: block.index(b"\0")].count(b"\n")
                raise InputError(f"{path}, line {line}: a NUL byte; write the file as UTF-8 text")
            try:
                rest = _undecoded(rest + block)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                raise InputError(f"{path}, line {line}: not UTF-8 ({error.reason}); write the file as UTF-8") from None
            line += block.count(b"\n")
    if rest:
        raise InputError(f"{path}, line {line}: not UTF-8 (the file ends inside a character); write it as UTF-8")


def _undecoded(block: bytes) -> bytes:
    """Return the bytes of an unfinished character at the end of a block; what stands before must be UTF-8."""
    import codecs

    _, used = codecs.utf_8_decode(block, "strict", False)
    return block[used:]


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text."""
    check_text(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from file


# ---- .csv and .tsv


def _header(path: Path) -> tuple[int, str, list[str], str]:
    """Return the blank lines before the header, the separator, the names of the columns, and the next line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        blank, header = next(((n, line) for n, line in enumerate(file) if line.strip()), (0, ""))
        following = "".join(islice(file, 3))
    between = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=between), [])]
    return blank, between, names, following


def _read_csv(path: Path, text: Sequence[str] | None, rows: int | None) -> Table:
    """Return the columns of text with commas, semicolons (then with decimal commas, if any) or tabs between."""
    import pandas as pd

    blank, between, names, following = _header(path)
    check_names(path, [name for name in names if name])
    names = [name or f"Unnamed: {place}" for place, name in enumerate(names)]
    wanted = {name.lower() for name in (names if text is None else text)}
    as_text = {place: str for place, name in enumerate(names) if name.lower() in wanted}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read: Any = pd.read_csv  # whose stubs do not know columns by place
            frame = read(
                file,
                sep=between,
                skiprows=blank,
                decimal="," if between == ";" and re.search(r"\d,\d", following) else ".",
                dtype=as_text,
                keep_default_na=False,  # "NA" may be a class, or two amino acids
                na_values=[""],
                index_col=False,
                skip_blank_lines=False,  # which keeps the line numbers
                on_bad_lines="warn",
                float_precision="round_trip",
                low_memory=False,
                nrows=rows,
            )
    except (ValueError, OverflowError, csv.Error) as error:
        problem = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise InputError(f"{path}: not a readable table ({problem}); check quotes and separators") from None
    message = " ".join(str(one.message) for one in caught)
    if "Length of header" in message:
        raise InputError(f"{path}: its rows have more cells than its header has names; name every column")
    if not len(frame) and "Skipping" not in message:
        raise InputError(f"{path}: no rows; give a header with column names, and one line per row")
    frame.columns = names
    if between == ";":
        for name in (names[place] for place in as_text):
            cells = frame[name].dropna()
            if cells.str.fullmatch(DECIMAL_COMMA).all():
                frame[name] = frame[name].str.replace(",", ".")
    long = {int(n): f"{saw} cells under {len(names)} column names" for n, saw in re.findall(LONG_LINE, message)}
    return _placed(path, frame, long, blank)


DECIMAL_COMMA = r"\s*[-+]?\d*(,\d+)?([eE][-+]?\d+)?\s*"

LONG_LINE = r"Skipping line (\d+): expected \d+ fields, saw (\d+)"
"""The warning of pandas about a line with too many cells; its number counts records, the header being 1."""


def _placed(path: Path, frame: Any, long: dict[int, str], blank: int) -> Table:
    """Return a table of pandas' rows and of those that it left out, ``long``, with their line numbers."""
    left_out = {number - 1 - blank if number > blank else number for number in long}
    reasons = dict(zip(left_out, long.values(), strict=True))
    total = len(frame) + len(left_out)
    read = np.array([record for record in range(1, total + 1) if record not in left_out], np.int64)
    frame = frame.set_axis(read, axis=0).reindex(range(1, total + 1)) if left_out else frame.set_axis(read, axis=0)
    texts = frame.select_dtypes(exclude=["number", "bool"])
    breaks = sum(
        (texts[name].fillna("").astype(str).str.count("\n").to_numpy() for name in texts), np.zeros(total, np.int64)
    )
    lines = blank + 1 + np.arange(1, total + 1) + np.cumsum(breaks) - breaks
    hollow = frame.isna().all(axis=1).to_numpy()
    if hollow.any():
        with path.open(encoding="utf-8-sig") as file:
            bare = {number for number, line in enumerate(file, 1) if not line.strip()}
        kept = ~(hollow & np.isin(lines, list(bare)))
        frame, lines = frame[kept], lines[kept]
    faults = {row: reasons[record] for row, record in enumerate(frame.index) if record in reasons}
    return Table(path, frame.reset_index(drop=True), [f"line {line}" for line in lines], faults)


# ---- .jsonl and .parquet


def _read_jsonl(path: Path, rows: int | None) -> Table:
    """Return the columns of a file with a JSON object on each line."""
    import pandas as pd

    records, places, faults = [], [], {}
    with path.open(encoding="utf-8-sig") as file:
        for number, line in islice(enumerate(file, 1), rows):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                problem = (
                    "" if isinstance(record, dict) else f"{type(record).__name__}, not an object of names and values"
                )
            except (ValueError, RecursionError) as error:
                record, problem = {}, f"not a complete JSON object ({first_line(error)})"
            if problem:
                faults[len(records)] = problem
            records.append({} if problem else record)
            places.append(f"line {number}")
    if not records:
        raise InputError(f"{path}: no rows; write one JSON object per line")
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    frame = pd.DataFrame({name: _series(cells) for name, cells in columns.items()}, index=range(len(records)))
    return Table(path, frame, places, faults)


def _series(cells: list[Any]) -> Any:
    """Return cells as a column; whole numbers larger than 64 bits, and mixtures, stay as they are."""
    import pandas as pd

    try:
        return pd.Series(cells)
    except (OverflowError, ValueError, TypeError):
        return pd.Series(cells, dtype=object)


def _read_parquet(path: Path, rows: int | None) -> Table:
    """Return the columns of a Parquet file; cells may be lists, or lists of lists."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'reservoir-features[parquet]'") from None
    import pandas as pd

    try:
        # Nothing is asked of file.metadata: its columns end the process on some damaged files (1 of 600 mutated ones).
        file = parquet.ParquetFile(path)
        check_names(path, file.schema_arrow.names)
        size, batches = 0, []
        for batch in file.iter_batches(BATCH if rows is None else rows):
            # A word of a dictionary is unpacked as often as it stands in the rows.
            plain = [one.dictionary_decode() if pyarrow.types.is_dictionary(one.type) else one for one in batch]
            size += sum(column.nbytes for column in plain)
            check_expansion(path, "all columns", size, path.stat().st_size)
            batches.append(pyarrow.RecordBatch.from_arrays(plain, names=file.schema_arrow.names))
            if rows is not None:
                break
        table = pyarrow.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()
        frame = pd.DataFrame({name: _column(path, table.column(name)) for name in table.column_names})
    except InputError:
        raise
    except Exception as error:  # a damaged file makes the library raise nearly anything
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)}); write it again") from None
    return Table(path, frame, [f"row {row}" for row in range(len(frame))], {})


def _column(path: Path, column: Any) -> Any:
    """Return a column of Arrow as one of pandas: lists as lists, dates and decimals as text, as in other tables."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        raise InputError(f"{path}: cells of bytes; write text or numbers")
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind):
        return column.to_pandas()
    cells = column.to_pylist()
    return _series([c if c is None or isinstance(c, str | list) else str(c) for c in cells])


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"{path}: two columns are called {name!r}; give each a name of its own")
