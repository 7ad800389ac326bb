"""Columns of paths: tables whose cells name pictures, sounds or recordings beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from reservoir.errors import InputError
from reservoir.tasks.own import decode, sounds
from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.cells import filled
from reservoir.tasks.own.tables import SUFFIXES, Table, read_table

KINDS = {"pictures": decode.SUFFIXES, "sounds": sounds.SUFFIXES, "recordings": (".csv", ".tsv", ".parquet")}
"""Suffixes of files that are one sequence each; a folder is read as the first kind that it has files of."""

PEEKED = 5
"""Rows of a table that must name files of one kind for the column to be one of paths."""


def kind_of(names: Iterable[str]) -> str:
    """Return the kind that all of some file names have by their suffix; else ""."""
    lower = [name.lower() for name in names]
    return next((kind for kind, ends in KINDS.items() if lower and all(name.endswith(ends) for name in lower)), "")


def named_kind(path: Path) -> str:
    """Return the kind of files that a table names in its first rows; "" for other tables."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return ""
    table = read_table(path, rows=PEEKED)
    return next((kind for name in table.frame if (kind := names_files(table, name))), "")


def names_files(table: Table, name: str) -> str:
    """Return the kind of the files that a column names: by the suffixes of its first cells, if one of them exists."""
    cells = list(filled(table.frame[name])[:PEEKED])
    if not cells or not all(isinstance(cell, str) and len(cell) < 1000 and "\0" not in cell for cell in cells):
        return ""
    kind = kind_of(cell.strip() for cell in cells)
    return kind if kind and any((table.path.parent / cell.strip()).is_file() for cell in cells) else ""


def named_files(folder: Path, names: Sequence[str], bad: BadRows) -> list[Path]:
    """Return the files in a table's folder that its rows name; nothing outside of the folder is read."""
    paths = [folder / name for name in names]
    for row, path in enumerate(paths):
        if not path.is_file():
            bad.add(row, f"no file {names[row]!r} beside the table", "correct the name")
        else:
            check_inside(path, folder)
    return paths


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside of a folder: data of others may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: it leads out of {root}; copy the file there")
