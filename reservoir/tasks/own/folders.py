"""Files that are one sequence each, and their labels: images, sounds, and recordings (tables with a row per step)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.columns import (
    FILES,
    NO_NAME,
    TIMES,
    choose_labels,
    counts_rows,
    files_kind,
    labels_of,
    listed,
    values_of,
)
from reservoir.tasks.own.labels import SPLIT_NAMES
from reservoir.tasks.own.pictures import Pictures
from reservoir.tasks.own.sounds import Sounds
from reservoir.tasks.own.tables import BadRows, Table, read_table


def media_files(path: Path, labels: Path | None = None) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        return [path] if path.is_file() and files_kind([path.name]) in {"images", "sounds"} else []
    files = [file for file in _visible(path) if files_kind([file.name])]
    files = [file for file in files if not (labels and labels.exists() and file.samefile(labels))]
    kinds = {files_kind([file.name]) for file in files}
    kind = next((kind for kind in FILES if kind in kinds), "")
    files = [file for file in files if files_kind([file.name]) == kind]
    for link in (file for file in files if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return files


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, except those with a path component that begins with a dot."""
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts))


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}; copy it into this folder")


def folder_arrays(
    root: Path, files: Sequence[Path], known: Collection[str | int] | None, asked: OwnDataOptions
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return names, labels and splits of the files of a folder, and notes; ``known`` has the classes of new files."""
    parts = [file.relative_to(root).parts or (file.name,) for file in files]
    names = ["/".join(part) for part in parts]
    arrays = {"ids": np.array(names)}
    if known is not None:
        named = [next((name for name in part[:-1] if name in known), None) for part in parts]
        return arrays | ({"y": np.array(named, object)} if any(named) else {}), []
    if asked.labels:
        found, notes = labels_from_table(asked, names)
        return arrays | found, notes
    tops = dict.fromkeys(part[0] for part in parts if len(part) > 1)
    splits = {top: SPLIT_NAMES.get(top.lower(), "") for top in tops}
    others = [top for top, split in splits.items() if not split]
    if others and len(set(splits.values())) > 2:
        named = ", ".join(top for top, split in splits.items() if split)
        raise InputError(f"{root}: {others[0]!r} is not one of the splits {named}; remove it, or move it into one")
    divided = bool(splits) and not others
    if short := next((part for part in parts if len(part) < 2 + divided), ()):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(f"{root}: {'/'.join(short)} is in no class folder; move it to {where}, or pass --labels")
    arrays["y"] = np.array([part[divided] for part in parts])
    if divided:
        arrays["split"] = np.array([splits[part[0]] for part in parts])
    left = len(_visible(root)) - len(files)
    return arrays, [f"files left out because they are not {files_kind([files[0].name])}: {left:,}"] if left else []


def labels_from_table(asked: OwnDataOptions, names: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the labels, groups and splits of files or records from the table that ``--labels`` names, and notes."""
    assert asked.labels
    table = read_table(Path(asked.labels), None)  # as text, because run 007 is not run 7
    table.bad.kept()
    key, row_of = _joined(table, asked.id, names)
    rows, cells = np.array([row_of[name] for name in names]), table.frame[key].astype(str).str.strip().tolist()
    _, first, same = np.unique(cells, return_index=True, return_inverse=True)
    label, *others = choose_labels(table, asked, key)
    columns = {"y": [label, *others], "groups": [asked.group or "groups"], "split": ["split"]}
    arrays: dict[str, np.ndarray] = {}
    for array, wanted in columns.items():
        flags = asked if array == "y" else OwnDataOptions(classes=True)  # groups are names
        given = [labels_of(table, name, flags, required=True) for name in wanted if name in table.frame]
        if array == "groups" and asked.group and not given:
            raise InputError(f"{table.path}: no column {asked.group!r} (--group) among {list(table.frame)}")
        if given:
            values = given[0] if len(given) == 1 else np.stack(given, axis=1)
            unlike = (values != values[first[same]]).reshape(len(values), -1).any(axis=1) & np.isin(first[same], rows)
            for row in np.flatnonzero(unlike):
                what, other = "label" if array == "y" else array, table.bad.places[int(first[same[row]])]
                table.bad.add(row, f"{cells[row]!r} has another {what} in {other}", "keep one of these lines")
            arrays[array] = values[rows]
    table.bad.kept()
    return arrays, [f"labels from {table.path.name}, column {label!r}, joined by {key!r}"]


def _joined(table: Table, named: str | None, names: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return the column that names most files (whole, or without folder or suffix), and the row of each name."""
    frame, found = table.frame, {}
    if named and named not in frame:
        raise InputError(f"{table.path}: no column {named!r} (--id) among {list(frame)}")
    for column in frame:
        cells = frame[column].astype(str).str.strip().tolist()
        rows = {cell: row for row, cell in reversed(list(enumerate(cells)))}
        found[column] = {}
        for name in names:
            path = Path(name)
            forms = (name, str(path.with_suffix("")) if path.suffix else name, path.name, path.stem)
            row = next((rows[form] for form in forms if form in rows), None)
            found[column] |= {} if row is None else {name: row}
    key = named or max(found, key=lambda column: len(found[column]))
    row_of = found[key]
    missing = [name for name in names if name not in row_of]
    if missing:
        most = f" ({len(missing):,} of {len(names):,} have none)" if len(missing) > 1 else ""
        raise InputError(f"{table.path}: no row for {missing[0]!r} in column {key!r}{most}; add it, or change --id")
    if len({*row_of.values()}) < len(row_of):
        raise InputError(f"{table.path}: several files have the same name in column {key!r}; write paths")
    return key, row_of


def media_arrays(
    files: list[Path],
    arrays: dict[str, np.ndarray],
    notes: list[str],
    bad: BadRows,
    asked: OwnDataOptions,
    known: Mapping[str, Any] | None,
) -> Arrays:
    """Return files of one kind as sequences, together with their other ``arrays`` and the notes on these."""
    kind = files_kind([files[0].name])
    if kind == "images":
        found = Pictures(files, arrays, bad)
    elif kind == "sounds":
        found = Sounds(files, arrays, bad, asked.rate, waveform=asked.waveform)
    else:
        found = _recordings(files, arrays, bad, asked, list((known or {}).get("columns", ())))
    found.notes = [*notes, *bad.notes(), *found.notes]
    return found


def _recordings(
    files: Sequence[Path], arrays: Mapping[str, np.ndarray], bad: BadRows, asked: OwnDataOptions, names: list[str]
) -> Arrays:
    """Return the columns ``names`` of recordings as sequences; by default all values of the first recording."""

    def read(file: Path) -> np.ndarray:
        nonlocal names
        table = read_table(file)
        frame, columns = table.frame, names
        if not columns:
            dropped = {*filter(None, map(str.strip, str(asked.drop or "").split(","))), asked.time}
            dropped |= {name for name in frame if name.lower() in TIMES}  # rows are in the order of time
            dropped |= {name for name in frame if NO_NAME.fullmatch(name) and counts_rows(frame[name])}
            columns = [name for name in frame if name not in dropped]
        if missing := [name for name in columns if name not in frame]:
            raise InputError(f"{file}: no column {missing[0]!r} among {list(frame)}, unlike the first file; add it")
        if not columns or not len(frame):
            raise InputError(f"{file}: no values; give a column per channel and a row per step")
        values = values_of(table, columns, fill=asked.missing != "refuse")
        table.bad.kept()
        names = columns
        return values

    sequences = bad.read_files(files, read)
    kept = bad.kept()
    x, lengths = padded(str(files[0].parent), sequences)
    found = Arrays({"x": x, "lengths": lengths} | {name: array[kept] for name, array in arrays.items()})
    found.files = list(files)
    found.chosen = {"columns": names, "recordings": True}
    found.notes = [f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {listed(names)}"]
    return found
