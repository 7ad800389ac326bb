"""Pictures and sounds as your own data: which files a folder, a table or a path names, and what it says of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.columns import Columns
from reservoir.tasks.own.decode import SUFFIXES
from reservoir.tasks.own.labels import SPLIT_NAMES
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.own.parquet import mentions
from reservoir.tasks.own.tables import lines_of

KINDS = {"pictures": SUFFIXES, "sounds": (".wav",)}
TABLES = (".csv", ".tsv", ".jsonl")
PEEKED = 5
"""Rows of a table that must name pictures, or sounds, for all of them to be read so."""


def kind_of(names: Sequence[str]) -> str:
    """Return what all of some names are called as, ``pictures`` or ``sounds``; else ""."""
    return next((kind for kind, ends in KINDS.items() if all(name.lower().endswith(ends) for name in names)), "")


def media_files(path: Path) -> list[Path]:
    """Return the pictures of a folder and of those in it, or else its sounds, by name; or the one that a path is."""
    found = path.rglob("*") if path.is_dir() else [path]
    files = sorted(file for file in found if kind_of([file.name]) and not _is_hidden(file, path) and file.is_file())
    files = [file for file in files if kind_of([file.name]) == "pictures"] or files
    for link in (file for file in files if file.is_symlink()):  # to folders none is followed
        _check_inside(link, path)
    return files


def has_sounds(path: Path) -> bool:
    """Return whether a path is a sound, or a folder or a table of such."""
    if files := media_files(path):
        return kind_of([files[0].name]) == "sounds"
    return path.is_file() and names_media(path, ("sounds",))


def names_media(table: Path, kinds: Iterable[str] = KINDS) -> bool:
    """Return whether the first lines of a text, or the end of a Parquet file, say so: then it names files, probably."""
    ends = [end for kind in kinds for end in KINDS[kind]]
    if table.suffix.lower() == ".parquet":
        return mentions(table, ends)
    return table.suffix.lower() in TABLES and any(
        end in line.lower() for line in islice(lines_of(table), 2) for end in ends
    )


def named_files(table: Path, columns: Columns) -> list[Path]:
    """Return the files beside a table that its texts name, where the first of them are all pictures, or all sounds."""
    if not columns.letters or not kind_of(_texts(columns, PEEKED)):
        return []
    names = _texts(columns, columns.shapes["x"][0])
    paths = [table.parent / name for name in names]
    for row, path in enumerate(paths):
        if not path.is_file():
            raise InputError(f"{table}, row {row}: no file {names[row]!r} beside the table")
        _check_inside(path, table.parent)
    if not names_media(table):  # by which it is told, unread, that a change of a file is a change of the data
        kind = kind_of(names[:1])
        raise InputError(
            f"{table}: it names {kind}; write it as .csv, .tsv or .jsonl, the first of them in line 1 or 2"
        )
    return paths


def folder_arrays(
    root: Path, files: Sequence[Path], labels: Collection[str | int] | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the names of files, what their folders say of them, and what a person should know.

    The label is the folder below ``root``, or below those of splits, where these are there. New files may be in any
    folders, and have a label where one is called as one of ``labels``.
    """
    parts = [file.relative_to(root).parts or (file.name,) for file in files]
    arrays = {"ids": np.array(["/".join(part) for part in parts])}
    if labels is not None:
        named = [next((name for name in part[:-1] if name in labels), None) for part in parts]
        return arrays | ({"y": np.array(named, object)} if any(named) else {}), []
    splits = _splits(root, dict.fromkeys(part[0] for part in parts if len(part) > 1))
    divided = bool(splits)
    if short := next((part for part in parts if len(part) < 2 + divided), ()):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(f"{root}: {'/'.join(short)} is in no folder of a class; write {where}")
    arrays["y"] = np.array([part[divided] for part in parts])
    if divided:
        arrays["split"] = np.array([splits[part[0]] for part in parts])
    others = sum(1 for path in root.rglob("*") if path.is_file() and not _is_hidden(path, root)) - len(files)
    kind = kind_of([files[0].name])
    return arrays, [f"{others:,} files that are no {kind} are left out"] if others else []


def _splits(root: Path, tops: Iterable[str]) -> dict[str, str]:
    """Return the splits that the topmost folders are, by name, where all are one; refuse others beside train and test.

    Their names would be no classes.
    """
    found = {top: SPLIT_NAMES.get(top.lower(), "") for top in tops}
    others = [top for top, split in found.items() if not split]
    if others and len(set(found.values())) > 2:
        splits = ", ".join(top for top, split in found.items() if split)
        raise InputError(f"{root}: {others[0]!r} stands beside the splits {splits}; take it out, or put it into one")
    return {} if others else found


def _is_hidden(path: Path, root: Path) -> bool:
    """Return whether a file, or a folder on the way to it, begins with a dot: such are copies that programs made."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside of a folder: data of others may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: it leads out of {root}; copy the file there")


def _texts(columns: Columns, rows: int) -> list[str]:
    return texts_of(columns.read("x", 0, rows), columns.read("lengths", 0, rows))
