"""Which pictures a folder or a table holds: their files, labels and splits."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.columns import check_inside, files_beside
from reservoir.tasks.own.decode import SUFFIXES
from reservoir.tasks.own.files import open_columns
from reservoir.tasks.own.labels import folder_splits, is_hidden
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.own.parquet import first_rows, mentions
from reservoir.tasks.own.tables import lines_of, separator

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
PEEKED = 5
"""Rows of a table that must name pictures, for all of them to be read so."""

OF_FOLDER: set[str] = set()
OF_TABLE = {"label", "id", "group", "drop", "text", "regression", "classes"}
"""Options of own data that say something of pictures."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Files of pictures with what is known of each, and how that was found."""

    paths: list[Path]
    ids: list[str]
    y: np.ndarray | None
    split: np.ndarray | None = None
    groups: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)


def has_pictures(path: Path) -> bool:
    """Return whether a folder holds pictures, or a table names some."""
    if path.is_dir():
        return next(_walk(path), None) is not None
    return path.suffix in TABLES and path.is_file() and _names_pictures(path)


def list_pictures(
    path: Path, asked: OwnDataOptions, parameters: Mapping[str, Any] | None = None, labels: Collection[Any] = ()
) -> Listing:
    """Return the pictures of a folder or a table, or of new ones (with ``parameters``) also of a single file.

    The label of a picture is the folder that it is in, below ``train``, ``valid`` and ``test`` where these are there;
    new pictures may be in any folders, and have a label where the folder is one of ``labels``.
    """
    table = path.suffix in TABLES and path.is_file()
    unheard = asked.said.keys() - (OF_TABLE if table else OF_FOLDER)
    if unheard and parameters is None:
        raise InputError(
            f"{path}: --{min(unheard)} says nothing of pictures{'' if table else ' in folders'}; leave it out"
        )
    if table:
        return _table(path, asked, parameters)
    if parameters is not None and path.suffix.lower() in SUFFIXES and path.is_file():
        return Listing(paths=[path], ids=[path.name], y=None)
    return _folder(path, labels, labelled=parameters is None)


def _folder(root: Path, labels: Collection[Any], *, labelled: bool) -> Listing:
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of pictures")
    paths = sorted(_walk(root))
    if not paths:
        raise InputError(f"{root}: no picture below it; known are {', '.join(SUFFIXES)}")
    for path in paths:
        check_inside(path, root)
    parts = [path.relative_to(root).parts for path in paths]
    ids = ["/".join(part) for part in parts]
    if not labelled:
        named = [next((name for name in part[:-1] if name in labels), None) for part in parts]
        return Listing(paths=paths, ids=ids, y=np.array(named, object) if any(named) else None)
    splits = folder_splits(root, dict.fromkeys(part[0] for part in parts if len(part) > 1), labelled=True)
    divided = bool(splits)
    short = next((id for part, id in zip(parts, ids, strict=True) if len(part) < 2 + divided), None)
    if short:
        raise InputError(
            f"{root}: {short} is in no folder of a class; write {'train/' * divided}CLASS/{Path(short).name}"
        )
    others = sum(1 for path in root.rglob("*") if path.is_file() and not is_hidden(path, root)) - len(paths)
    return Listing(
        paths=paths,
        ids=ids,
        y=np.array([part[divided] for part in parts]),
        split=np.array([splits[part[0]] for part in parts]) if divided else None,
        notes=(f"{others:,} files that are no pictures are left out",) if others else (),
    )


def _table(path: Path, asked: OwnDataOptions, parameters: Mapping[str, Any] | None) -> Listing:
    columns = open_columns(str(path), asked, parameters)
    rows = columns.shapes["x"][0]
    arrays = {name: columns.read(name, 0, rows) for name in columns.shapes}
    if not columns.letters:
        raise InputError(f"{path}: no column of pictures; name it with --text")
    names = texts_of(arrays["x"], arrays["lengths"])
    return Listing(
        paths=files_beside(path, names),
        ids=[str(name) for name in arrays["ids"]] if "ids" in arrays else names,
        y=arrays.get("y"),
        split=arrays.get("split"),
        groups=arrays.get("groups"),
        notes=tuple(columns.notes),
        found=columns.found,
    )


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files of a folder that are called as pictures are, hidden ones left out."""
    for path in root.rglob("*"):
        if path.suffix.lower() in SUFFIXES and not is_hidden(path, root) and path.is_file():
            yield path


def _names_pictures(path: Path) -> bool:
    """Return whether in the first rows of a table one column holds names of pictures."""
    try:
        if path.suffix == ".parquet":
            return mentions(path, SUFFIXES) and any(map(_all_pictures, first_rows(path)))
        lines = list(islice(lines_of(path), PEEKED + 1))
        if path.suffix == ".jsonl":
            records = [list(json.loads(line).values()) for line in lines]
        else:
            records = list(csv.reader(lines, delimiter=separator(path)))[1:]
    except (InputError, ValueError, AttributeError, csv.Error):  # the reader of the table will say what is wrong
        return False
    return any(map(_all_pictures, zip(*records, strict=False)))


def _all_pictures(cells: Sequence[Any]) -> bool:
    return all(isinstance(cell, str) and Path(cell.strip()).suffix.lower() in SUFFIXES for cell in cells)
