"""Files that are one sequence each, by their suffix, and the columns of tables that name such files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reservoir_pipelines.data.cells import filled
from reservoir_pipelines.data.table import SUFFIXES, read_table

FILES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    "sounds": (".wav", ".flac", ".ogg", ".mp3"),
    "recordings": (".csv", ".tsv", ".parquet"),
}
"""Suffixes of files that are one sequence each; a folder is read as the first kind of which it has files."""

FIRST_ROWS = 5
"""Number of first rows that must all name files of one kind if a column holds paths."""


def files_kind(names: Iterable[str]) -> str:
    """Return the kind in `FILES` that has the suffixes of all names; else ""."""
    lower = [name.lower() for name in names]
    for kind, suffixes in FILES.items():
        if lower and all(name.endswith(suffixes) for name in lower):
            return kind
    return ""


def with_slashes(name: str) -> Path:
    """Return the path of a cell; tables from Windows have backslashes."""
    return Path(name.strip().replace("\\", "/"))


def names_files(folder: Path, cells: Any) -> str:
    """Return the kind of files that the first cells name; "" if no such file is in the folder."""
    cells = list(cells[:FIRST_ROWS])
    if not all(isinstance(cell, str) and len(cell) < 1000 and "\0" not in cell for cell in cells):
        return ""
    kind = files_kind(cell.strip() for cell in cells)
    exists = kind and any((folder / with_slashes(cell)).is_file() for cell in cells)
    return kind if exists else ""


def named_kind(path: Path) -> str:
    """Return the kind of files that a table names in its first rows; "" for other tables."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return ""
    frame = read_table(path, rows=FIRST_ROWS).frame
    kinds = (names_files(path.parent, filled(frame[name])) for name in frame)
    return next(filter(None, kinds), "")
