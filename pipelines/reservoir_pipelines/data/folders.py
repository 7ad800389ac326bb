"""Files that are one sequence each, and their labels: images, sounds and recordings (tables of steps)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data import columns
from reservoir_pipelines.data.arrays import Arrays, padded
from reservoir_pipelines.data.images import Images
from reservoir_pipelines.data.labels import SPLIT_NAMES
from reservoir_pipelines.data.sounds import Sounds
from reservoir_pipelines.data.tables import BadRows, Table, read_table

OTHER_RATE = 1.5  # ratio of the times between rows of recordings from which a note says that they differ


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        return [path] if path.is_file() and columns.files_kind([path.name]) in {"images", "sounds"} else []
    files = [file for file in _visible(path) if not any(map(file.samefile, filter(Path.exists, labels)))]
    by_kind = (
        [file for file in files if columns.files_kind([file.name]) == kind] for kind in columns.FILES
    )
    files = next(filter(None, by_kind), [])
    for link in (file for file in files if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return files


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and folders."""
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(
        path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def files_left_out(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a note on files in a folder that are of another kind, if there are any."""
    left = len(_visible(root)) - len(files) if root.is_dir() else 0
    note = f"files left out because they are not {columns.files_kind([files[0].name])}: {left:,}"
    return [note] if left else []


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}", "copy it into this folder")


def folder_labels(
    root: Path, names: list[str], known: Collection[str | int] | None
) -> dict[str, np.ndarray]:
    """Return labels and splits of the files of a folder by their folders; ``known`` has the classes of new files."""
    parts = [name.split("/") for name in names]
    if known is not None:
        named = [next((name for name in part[:-1] if name in known), None) for part in parts]
        return {"y": np.array(named, object)} if any(named) else {}
    splits = {part[0]: SPLIT_NAMES.get(part[0].lower(), "") for part in parts if len(part) > 1}
    others = [top for top, split in splits.items() if not split]
    if others and len(set(splits.values())) > 2:
        named = ", ".join(top for top, split in splits.items() if split)
        raise InputError(
            f"{root}: {others[0]!r} is not one of the splits {named}", "remove it, or move it into one"
        )
    divided = bool(splits) and not others
    if short := next((part for part in parts if len(part) < 2 + divided), None):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(
            f"{root}: {'/'.join(short)} is in no class folder", f"move it to {where}, or pass --labels"
        )
    labels = {"y": np.array([part[divided] for part in parts])}
    return labels | ({"split": np.array([splits[part[0]] for part in parts])} if divided else {})


def labels_from_table(
    asked: OwnDataOptions, names: list[str], bad: BadRows, *, new: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return labels, groups and splits of files or records from the table of ``--labels``, and notes."""
    assert asked.labels
    table = read_table(Path(asked.labels), None, asked.decimal)  # all as text, because run 007 is not run 7
    table.bad.skip = bad.skip
    table.bad.kept()
    for role, name in {"id": asked.id, "label": asked.label, "group": None if new else asked.group}.items():
        columns.require_column(table, name, "" if new else role)
    key, found = _joined(table, asked.id, names, some=bool(bad.skip) and not new)
    rows = [found.get(name, 0) for name in names]
    for place in [place for place, name in enumerate(names) if name not in found]:
        bad.add(place, f"no row in {table.path.name}")
    labels = [asked.label] if asked.label else columns.usual_labels(table, {key}, alone=not new)
    others = [name for name in table.frame if name not in {key, asked.group, "groups", "split"}]
    labels = labels or (others if len(others) == 1 else [])
    if not labels:
        columns.refuse_unlabelled(table)
    left = [str(cell) for cell in table.frame[key].drop(index=[*found.values()])]
    table = table.take(rows)
    arrays = {"y": columns.joined_labels(table, labels, asked, required=not new)}
    for array, name in {"groups": asked.group or "groups", "split": "" if new else "split"}.items():
        if name in table.frame:
            arrays[array] = columns.labels_of(table, name, OwnDataOptions(classes=True), required=True)
    for row, reason in table.bad.reasons.items():
        bad.add(row, f"{table.path.name}, {table.bad.places[row]}: {reason}")
    note = f"labels from {table.path.name}, column {labels[0]!r}, joined by {key!r}"
    if left:
        note += f"; rows without a file or record are left out ({len(left):,}): {columns.listed(left)}"
    return arrays, [note, *table.notes()]


def _joined(
    table: Table, named: str | None, names: Sequence[str], *, some: bool
) -> tuple[str, dict[str, int]]:
    """Return the column that names most files (whole, or without folder or suffix), and the row of each file.

    With ``some``, only one of the files needs a row.
    """
    found = {key: _rows_of(table.frame[key], names) for key in ([named] if named else table.frame)}
    key = max(found, key=lambda column: len(found[column]))
    rows, column = found[key], f"in column {key!r}"
    missing = [name for name in names if name not in rows]
    if missing and not (some and rows):
        problem = f"{table.path}: no row for {missing[0]!r} {column} ({len(missing):,} of {len(names):,} have none)"
        ways = "or pass --id NAME of another column, or --skip-bad-rows"
        raise InputError(problem, f"add it (predict needs no label in it), {ways}")
    taken: dict[int, str] = {}
    for name, of_file in rows.items():
        if len(of_file) > 1 or taken.setdefault(of_file[0], name) != name:
            row = of_file[-1]
            problem = f"{table.path}, {table.bad.places[row]}: {table.frame[key][row]!r} {column}"
            remedy = "write one row with the whole name for each file"
            raise InputError(f"{problem} stands for several files, or another row has it, too", remedy)
    return key, {name: of_file[0] for name, of_file in rows.items()}


def _rows_of(column: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows that name each file, if any; the longest form of a name that has a row counts."""
    rows_of: dict[str, list[int]] = {}
    for row, cell in enumerate(column):
        rows_of.setdefault(str(columns.with_slashes(str(cell))), []).append(row)
    found = {}
    for name in names:
        # of the id of a protein: sp|P12345|NAME_HUMAN
        path, parts = columns.with_slashes(name), name.split("|")
        for form in (str(path), str(path.with_suffix("")), path.name, path.stem, *parts):
            if form in rows_of:
                found.setdefault(name, rows_of[form])
    return found


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
    found.unused_options += ("text", *(() if asked.labels else ("label", "id", "group")))
    found.notes[:0] = bad.notes()
    found.skipped = bad.skipped(arrays.get("ids", ()))
    found.label = asked.label or "the label"
    return found


def _recordings(
    files: Sequence[Path],
    arrays: Mapping[str, np.ndarray],
    bad: BadRows,
    asked: OwnDataOptions,
    names: list[str],
) -> Arrays:
    """Return the columns ``names`` of recordings as sequences; by default all values of the first recording."""
    fitted, drop, notes = bool(names), columns.separated(asked.drop), dict[str, None]()
    steps = set[float]()

    def read(file: Path) -> np.ndarray:
        nonlocal names
        table = read_table(file, decimal=asked.decimal)
        columns.require_column(table, asked.time, "" if fitted else "time")
        for name in () if names else drop:
            columns.require_column(table, name, "drop")
        table.frame = table.frame.drop(columns=drop, errors="ignore")
        times = asked.time or next((name for name in table.frame if name.lower() in columns.TIMES), "")
        if times:
            table, step = _in_order(table, times)
            steps.update({step} - {0.0})
        frame, channels = table.frame, names
        notes.update(dict.fromkeys(table.notes()))
        if not channels:
            unnamed = {name for name in frame if columns.NO_NAME.fullmatch(name)}
            left = {n for n in unnamed if columns.counts_rows(frame[n]) or frame[n].isna().all()} | {times}
            channels = [name for name in frame if name.lower() not in columns.TIMES and name not in left]
        if missing := [name for name in channels if name not in frame]:
            raise InputError(
                f"{file}: no column {missing[0]!r} among {columns.listed(list(frame))}",
                "give the same columns as in the other recordings",
            )
        if not channels or not len(frame):
            raise InputError(f"{file}: no values", "give a column per channel and a row per step")
        values = columns.values_of(table, channels, fill=asked.missing != "refuse")
        table.bad.kept()
        names = channels
        return values

    sequences = bad.read_files(files, read)
    kept = bad.kept()
    x, lengths = padded(str(files[0].parent), sequences)
    found = Arrays({"x": x, "lengths": lengths} | {name: array[kept] for name, array in arrays.items()})
    found.files = list(files)
    found.chosen, found.unused_options = {"columns": names, "recordings": True}, ("rate",)
    note = f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {columns.listed(names)}"
    found.notes = [note, *notes]
    if steps and max(steps) > OTHER_RATE * min(steps):
        apart = f"{max(steps) / min(steps):.3g} times as far apart in time as those of others"
        found.notes.append(f"the rows of some recordings are {apart}; resample them to one sampling rate")
    return found


def _in_order(table: Table, name: str) -> tuple[Table, float]:
    """Return the rows of a recording sorted by a column of times, which may repeat in order, and their median gap."""
    times = columns.sortable_times(table, name)
    gaps = np.diff(np.sort(times)) / (np.timedelta64(1, "s") if times.dtype.kind == "M" else 1)
    step = float(np.median(gaps)) if len(gaps) else 0.0
    if (times[1:] >= times[:-1]).all():
        return table, step
    if len(np.unique(times)) < len(times):
        raise InputError(
            f"{table.path}: the times in {name!r} repeat and are not in order",
            f"sort the rows, or pass --drop {quote(name)} if they are sorted",
        )
    return table.take(np.argsort(times).tolist()), step
