"""Files that are one sequence each, and their labels: images, sounds, and recordings (tables with a row per step)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own import columns
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.images import Images
from reservoir.tasks.own.labels import SPLIT_NAMES
from reservoir.tasks.own.sounds import Sounds
from reservoir.tasks.own.tables import BadRows, Table, read_table

SAME_STEP = 1.1  # time steps up to this ratio are the same, because clocks jitter


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        return [path] if path.is_file() and columns.files_kind([path.name]) in {"images", "sounds"} else []
    files = [file for file in _visible(path) if not any(map(file.samefile, filter(Path.exists, labels)))]
    by_kind = ([file for file in files if columns.files_kind([file.name]) == kind] for kind in columns.FILES)
    files = next(filter(None, by_kind), [])
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
    root: Path, names: list[str], known: Collection[str | int] | None, asked: OwnDataOptions, bad: BadRows
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return names, labels and splits of the files of a folder, and notes; ``known`` has the classes of new files."""
    parts = [name.split("/") for name in names]
    arrays = {"ids": np.array(names)}
    if asked.labels:
        found, notes = labels_from_table(asked, names, bad, new=known is not None)
        return arrays | found, notes
    if known is not None:
        named = [next((name for name in part[:-1] if name in known), None) for part in parts]
        return arrays | ({"y": np.array(named, object)} if any(named) else {}), []
    splits = {part[0]: SPLIT_NAMES.get(part[0].lower(), "") for part in parts if len(part) > 1}
    others = [top for top, split in splits.items() if not split]
    if others and len(set(splits.values())) > 2:
        named = ", ".join(top for top, split in splits.items() if split)
        raise InputError(f"{root}: {others[0]!r} is not one of the splits {named}; remove it, or move it into one")
    divided = bool(splits) and not others
    if short := next((part for part in parts if len(part) < 2 + divided), None):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(f"{root}: {'/'.join(short)} is in no class folder; move it to {where}, or pass --labels")
    arrays["y"] = np.array([part[divided] for part in parts])
    if divided:
        arrays["split"] = np.array([splits[part[0]] for part in parts])
    left = len(_visible(root)) - len(names)
    return arrays, [f"files left out because they are not {columns.files_kind(names[:1])}: {left:,}"] if left else []


def labels_from_table(
    asked: OwnDataOptions, names: list[str], bad: BadRows, *, new: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return labels, groups and splits of files or records from the table that ``--labels`` names, and notes.

    If bad rows are skipped, files whose rows in the table cannot be used become ``bad``. A saved readout reads ``new``
    files, whose labels may be empty; messages then name no flags of `extract`.
    """
    assert asked.labels
    table = read_table(Path(asked.labels), None, asked.decimal)  # all as text, because run 007 is not run 7
    table.bad.skip = bad.skip
    table.bad.kept()
    key, file_of = _joined(table, asked.id, names, new=new)
    left = [str(cell).strip() for cell, file in zip(table.frame[key], file_of, strict=True) if not file]
    table, file_of = table.take([row for row, file in enumerate(file_of) if file]), list(filter(None, file_of))
    _, first, same = np.unique(file_of, return_index=True, return_inverse=True)
    first, rows = first[same], first[np.unique(names, return_inverse=True)[1]]
    label, *others = columns.choose_labels(table, asked, key, new=new)
    columns.require_column(table, None if new else asked.group, "group")
    roles = {"y": [label, *others], "groups": [asked.group or "groups"], "split": [] if new else ["split"]}
    arrays: dict[str, np.ndarray] = {}
    for array, wanted in roles.items():
        flags = asked if array == "y" else OwnDataOptions(classes=True)  # groups are names
        if given := [name for name in wanted if name in table.frame]:
            values = columns.joined_labels(table, given, flags, required=array != "y" or not new)
            for row in np.flatnonzero((values != values[first]).reshape(len(values), -1).any(axis=1)):
                what, other = "label" if array == "y" else array, table.bad.places[first[row]]
                table.bad.add(row, f"{file_of[row]!r} has another {what} in {other}", "keep one of these lines")
            arrays[array] = values[rows]
    for row in np.flatnonzero(~table.bad.kept()).tolist():
        for file in np.flatnonzero(rows == first[row]):
            bad.add(file, f"{table.path.name}, {table.bad.places[row]}: {table.bad.reasons[row][0]}")
    unused = f"; rows without a file or record are left out ({len(left):,}): {columns.listed(left)}" if left else ""
    notes = [f"labels from {table.path.name}, column {label!r}, joined by {key!r}{unused}"]
    return arrays, notes + columns.number_notes(table.commas)


def _joined(table: Table, named: str | None, names: Sequence[str], *, new: bool) -> tuple[str, list[str]]:
    """Return the column that names most files (whole, or without folder or suffix), and the file of each row or ""."""
    columns.require_column(table, named, "" if new else "id")
    levels: list[dict[str, dict[str, None]]] = [{}, {}, {}, {}, {}]  # files of each form of a name, the longest first
    for name in names:
        path = columns.with_slashes(name)
        short = str(path.with_suffix("")) if path.suffix else str(path)
        parts = name.split("|")  # of the id of a protein, such as sp|P12345|NAME_HUMAN
        for level, forms in zip(levels, ([str(path)], [short], [path.name], [path.stem], parts), strict=True):
            for form in forms:
                level.setdefault(form, {})[name] = None
    found, clear = {}, {}
    for column in [named] if named else table.frame:
        cells = [str(columns.with_slashes(str(cell))) for cell in table.frame[column]]
        found[column] = [[*next((level[cell] for level in levels if cell in level), ())] for cell in cells]
        clear[column] = {files[0] for files in found[column] if len(files) == 1}
    key = max(found, key=lambda column: (len(clear[column]), sum(map(len, found[column]))))
    for row, files in enumerate(found[key]):
        if not clear[key].issuperset(files):
            start = f"{table.path}, {table.bad.places[row]}: {table.frame[key][row]!r} in column {key!r} may mean"
            raise InputError(f"{start} {files[0]!r} or {files[1]!r}; write a row with the whole name for each of them")
    if missing := [name for name in names if name not in clear[key]]:
        most = f" ({len(missing):,} of {len(names):,} have none)" if len(missing) > 1 else ""
        remedy = "add it; its label may be empty" if new else "add it, or change --id"
        raise InputError(f"{table.path}: no row for {missing[0]!r} in column {key!r}{most}; {remedy}")
    return key, [files[0] if len(files) == 1 else "" for files in found[key]]


def media_arrays(
    files: list[Path], arrays: dict[str, np.ndarray], bad: BadRows, asked: OwnDataOptions, names: list[str]
) -> Arrays:
    """Return files of one kind as sequences, with their other ``arrays``; ``names`` are the channels of recordings."""
    kind = columns.files_kind([files[0].name])
    if kind == "images":
        found = Images(files, arrays, bad)
    elif kind == "sounds":
        found = Sounds(files, arrays, bad, asked.rate, waveform=asked.waveform)
    else:
        found = _recordings(files, arrays, bad, asked, names)
    found.notes[:0] = bad.notes()
    found.skipped = bad.skipped(arrays.get("ids", ()))
    found.label = asked.label or "the label"
    return found


def _recordings(
    files: Sequence[Path], arrays: Mapping[str, np.ndarray], bad: BadRows, asked: OwnDataOptions, names: list[str]
) -> Arrays:
    """Return the columns ``names`` of recordings as sequences; by default all values of the first recording."""
    new = bool(names)  # a readout was fitted to columns of these names
    commas, percents, steps = dict[str, None](), dict[str, None](), dict[Path, float]()

    def read(file: Path) -> np.ndarray:
        nonlocal names
        table, drop = read_table(file, decimal=asked.decimal), columns.separated(asked.drop)
        times = [asked.time] if asked.time else []
        for role, wanted in {"time": times, "drop": [] if names else drop}.items():
            for name in wanted:
                columns.require_column(table, name, "" if new else role)
        times += [name for name in table.frame if name.lower() in columns.TIMES and name not in drop]
        if times:
            table, steps[file] = columns.in_order(table, times[0], new=new)
        frame, channels = table.frame, names
        commas.update(dict.fromkeys(table.commas))
        percents.update(dict.fromkeys(table.percents))
        if not channels:
            dropped = {*drop, *times}
            dropped |= {name for name in frame if columns.NO_NAME.fullmatch(name) and columns.counts_rows(frame[name])}
            channels = [name for name in frame if name not in dropped]
        if missing := [name for name in channels if name not in frame]:
            problem = f"{file}: no column {missing[0]!r} among {list(frame)}"
            raise InputError(f"{problem}; give the same columns as in the other recordings")
        if not channels or not len(frame):
            raise InputError(f"{file}: no values; give a column per channel and a row per step")
        values = columns.values_of(table, channels, fill=asked.missing != "refuse", new=new)
        table.bad.kept()
        names = channels
        return values

    sequences = bad.read_files(files, read)
    kept = bad.kept()
    x, lengths = padded(str(files[0].parent), sequences)
    found = Arrays({"x": x, "lengths": lengths} | {name: array[kept] for name, array in arrays.items()})
    found.files = list(files)
    found.chosen = {"columns": names, "recordings": True}
    note = f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {columns.listed(names)}"
    found.notes = [note, *columns.number_notes([*commas], [*percents])]
    if unsorted := [file.name for file, step in steps.items() if np.isnan(step)]:
        start = f"recordings whose times cannot be sorted keep the order of their rows ({len(unsorted):,})"
        found.notes.append(f"{start}; write dates as 2024-12-31, or numbers: {columns.listed(unsorted)}")
    if (rates := sorted(step for step in steps.values() if step > 0)) and rates[-1] > SAME_STEP * rates[0]:
        start = f"sampling rates differ: the median time step ranges from {rates[0]:g} to {rates[-1]:g}"
        found.notes.append(f"{start}; resample the recordings to one rate")
    return found
