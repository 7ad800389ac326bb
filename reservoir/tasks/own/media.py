"""Pictures, sounds and recordings: which files a folder or a table names, and what is known of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.cells import labels_of
from reservoir.tasks.own.labels import SPLIT_NAMES
from reservoir.tasks.own.paths import KINDS, check_inside, kind_of, named_kind
from reservoir.tasks.own.roles import choose_labels
from reservoir.tasks.own.tables import Table, read_table


def media_files(path: Path, labels: Path | None = None) -> list[Path]:
    """Return the files of a folder and of those in it that are one sequence each, by name; or the one that a path is.

    A single recording looks like a table and is read as one. The table of the ``labels`` is left out.
    """
    if not path.is_dir():
        return [path] if path.is_file() and kind_of([path.name]) in {"pictures", "sounds"} else []
    files = sorted(file for file in path.rglob("*") if kind_of([file.name]) and not _is_hidden(file, path))
    files = [file for file in files if file.is_file() and not (labels and labels.exists() and file.samefile(labels))]
    kind = next((kind for kind in KINDS if any(kind_of([file.name]) == kind for file in files)), "")
    files = [file for file in files if kind_of([file.name]) == kind]
    for link in (file for file in files if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return files


def has_sounds(path: Path) -> bool:
    """Return whether a path is a sound, or a folder or a table of sounds."""
    files = media_files(path)
    return (kind_of([files[0].name]) if files else named_kind(path)) == "sounds"


def folder_arrays(
    root: Path, files: Sequence[Path], known: Collection[str | int] | None, asked: OwnDataOptions
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return names, labels and splits of the files of a folder, and notes.

    Labels come from the table that ``asked.labels`` names, or else a file's label is the folder it is in, below
    ``root`` or below folders of splits. New files (``known`` has the task's labels) may be in any folders.
    """
    parts = [file.relative_to(root).parts or (file.name,) for file in files]
    names = ["/".join(part) for part in parts]
    arrays = {"ids": np.array(names)}
    if known is not None:
        named = [next((name for name in part[:-1] if name in known), None) for part in parts]
        return arrays | ({"y": np.array(named, object)} if any(named) else {}), []
    if asked.labels:
        found, notes = labels_from_table(asked, names)
        return arrays | found, notes
    splits = _splits(root, dict.fromkeys(part[0] for part in parts if len(part) > 1))
    divided = bool(splits)
    if short := next((part for part in parts if len(part) < 2 + divided), ()):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(
            f"{root}: {'/'.join(short)} is in no folder of a class; write {where}, or pass a table with --labels"
        )
    arrays["y"] = np.array([part[divided] for part in parts])
    if divided:
        arrays["split"] = np.array([splits[part[0]] for part in parts])
    others = sum(1 for path in root.rglob("*") if path.is_file() and not _is_hidden(path, root)) - len(files)
    kind = kind_of([files[0].name])
    return arrays, [f"{others:,} files that are no {kind} are left out"] if others else []


def labels_from_table(asked: OwnDataOptions, names: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the labels, groups and splits of files or records from the table that ``--labels`` names, and notes.

    Rows are joined by the column ``asked.id``, or the one that names most of the files or records: by path, by file
    name, or by either without its suffix.

    Parameters
    ----------
    asked : OwnDataOptions
        ``labels`` is the table; ``label``, ``id`` and ``group`` may name its columns.
    names : sequence of str
        Names of the files below their folder, or of the records.
    """
    assert asked.labels
    table = read_table(Path(asked.labels), None)  # all as text: run 007 is not run 7
    bad = BadRows(str(table.path), table.places, skip=None)
    for row, reason in table.faults.items():
        bad.add(row, reason)
    bad.kept()
    key, row_of = _joined(table, asked.id, names)
    rows = np.array([row_of[name] for name in names])
    label, *others = choose_labels(table, asked, {key})
    columns = {"y": [label, *others], "groups": [asked.group or "groups"], "split": ["split"]}
    arrays: dict[str, np.ndarray] = {}
    for array, wanted in columns.items():
        given = [labels_of(table, name, bad)[rows] for name in wanted if name in table.frame]
        if array == "groups" and asked.group and not given:
            raise InputError(f"{table.path}: no column {asked.group!r} (--group) among {list(table.frame)}")
        if given:
            arrays[array] = given[0] if len(given) == 1 else np.stack(given, axis=1)
    bad.kept()
    return arrays, [f"labels from {table.path.name}, column {label!r}, joined by {key!r}"]


def _joined(table: Table, named: str | None, names: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return the column of a table that names files or records, and the row of each name."""
    frame = table.frame
    if named and named not in frame:
        raise InputError(f"{table.path}: no column {named!r} (--id) among {list(frame)}")
    found = {column: _rows_by_name(frame[column].astype(str).str.strip().tolist(), names) for column in frame}
    key = named or max(found, key=lambda column: len(found[column]))
    row_of = found[key]
    missing = [name for name in names if name not in row_of]
    if missing:
        most = f"; {len(missing):,} of {len(names):,} have none" if len(missing) > 1 else ""
        raise InputError(
            f"{table.path}: no row for {missing[0]!r} in column {key!r}{most}; add it, or name another --id"
        )
    if len({*row_of.values()}) < len(row_of) and frame[key].is_unique:
        raise InputError(f"{table.path}: several files have one name in column {key!r}; write their paths")
    if not frame[key].iloc[sorted({*row_of.values()})].is_unique:
        raise InputError(f"{table.path}: several rows have one name in column {key!r}; keep one of each")
    return key, row_of


def _rows_by_name(cells: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return the row of each name that a column has, whole, without folder or without suffix."""
    rows = {cell: row for row, cell in reversed(list(enumerate(cells)))}
    found = {}
    for name in names:
        path = Path(name)
        forms = (name, str(path.with_suffix("")) if path.suffix else name, path.name, path.stem)
        row = next((rows[form] for form in forms if form in rows), None)
        if row is not None:
            found[name] = row
    return found


def _splits(root: Path, tops: Iterable[str]) -> dict[str, str]:
    """Return the split that each topmost folder is, if all are splits; refuse others beside train and test."""
    found = {top: SPLIT_NAMES.get(top.lower(), "") for top in tops}
    others = [top for top, split in found.items() if not split]
    if others and len(set(found.values())) > 2:
        splits = ", ".join(top for top, split in found.items() if split)
        raise InputError(f"{root}: {others[0]!r} stands beside the splits {splits}; take it out, or put it into one")
    return {} if others else found


def _is_hidden(path: Path, root: Path) -> bool:
    """Return whether a file, or a folder on the way to it, begins with a dot: such are copies that programs made."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)
