"""Text files of columns (``.csv``, ``.tsv``): pandas reads the cells, and the places of the rows are counted here."""

import csv
import warnings
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from reservoir.errors import InputError, first_line
from reservoir_pipelines.data.table_checks import check_cells, check_names

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
    """Return the layout of a file, or of its first ``rows``; a cell may have line breaks, so lines are no rows."""
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
