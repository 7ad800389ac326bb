"""Files that are one sequence each: images, sounds and recordings (tables of steps), with labels by their folders."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.pictures import check_pillow, decoded
from reservoir.tasks.task import Task
from reservoir_pipelines.data.columns import (
    FILES,
    as_texts,
    example,
    files_kind,
    listed,
    named_kind,
    require_column,
    separated,
    sortable_times,
    values_of,
)
from reservoir_pipelines.data.labels import SPLIT_NAMES
from reservoir_pipelines.data.roles import INDEX, conventional
from reservoir_pipelines.data.rows import IMAGE_NOTE, BadRows, Rows, padded
from reservoir_pipelines.data.sounds import sound_rows
from reservoir_pipelines.data.table import SUFFIXES as TABLES
from reservoir_pipelines.data.table import Table, files_of_pattern, is_pattern, read_table
from reservoir_pipelines.data.table_labels import labels_from_table, padded_labels, typed_labels

# ---- images


MAX_BYTES = 2**27  # a larger file is probably no image; 2**26 pixels, the maximum, rarely need as much
PIECE_ROWS = 64  # files that are in memory at a time


class ImageFiles:
    """Images as an array (rows,) of the bytes of their files, which are read and checked piece by piece."""

    dtype = np.dtype(object)

    def __init__(self, files: Sequence[Path], bad: BadRows, readable: np.ndarray, *, checked: bool):
        self._all_files, self._bad = files, bad
        self._checked = checked
        self._files = [file for file, is_readable in zip(files, readable, strict=True) if is_readable]
        self.shape = (len(self._files),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        files = self._files[rows]
        if self._checked:
            return np.fromiter((_file_bytes(file) for file in files), object)
        try:
            return np.fromiter(map(stored_bytes, files), object)
        except InputError:
            # The error counts all unreadable files, not only this one.
            self._bad.read_files(self._all_files, stored_bytes)
            self._bad.readable()
            raise


def image_rows(files: Sequence[Path], columns: Mapping[str, Any], bad: BadRows) -> Rows:
    """Return image files as rows, with other ``columns`` (files,)."""
    check_pillow()
    if bad.skip:  # all files are read, because damage must be detected before the rows are counted
        bad.read_files(files, stored_bytes)
    readable = bad.readable()
    return Rows(
        x=ImageFiles(files, bad, readable, checked=bool(bad.skip)),
        **{name: array[readable] for name, array in columns.items()},
        holds="images",
        piece_rows=PIECE_ROWS,
        files=tuple(file for file, is_readable in zip(files, readable, strict=True) if is_readable),
        notes=(IMAGE_NOTE,),
    )


def stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of an image file, after checking that they can be decoded."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}", "check that it is an image"
        )
    stored = _file_bytes(path)
    decoded(stored, str(path), rough=True)
    return stored


def _file_bytes(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), np.uint8)


# ---- folders


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        is_media = path.is_file() and files_kind([path.name]) in {"images", "sounds"}
        return [path] if is_media else []
    tables_of_labels = [label for label in labels if label.exists()]
    files = [file for file in _visible(path) if not any(map(file.samefile, tables_of_labels))]
    # A folder is read as the first kind of which it has files.
    by_kind = ([file for file in files if files_kind([file.name]) == kind] for kind in FILES)
    of_kind = next(filter(None, by_kind), [])
    for link in (file for file in of_kind if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return of_kind


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and folders."""
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(
        path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def files_left_out(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a note on files in a folder that are of another kind, if there are any."""
    others = len(_visible(root)) - len(files) if root.is_dir() else 0
    note = f"files left out because they are not {files_kind([files[0].name])}: {others:,}"
    return [note] if others else []


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}", "copy it into this folder")


def classes_of_folders(names: Sequence[str], classes: Collection[str | int]) -> dict[str, np.ndarray]:
    """Return the labels of new files: the first folder of each file that has the name of a class, or None."""
    folders = [name.split("/")[:-1] for name in names]
    labels = [next((folder for folder in of_file if folder in classes), None) for of_file in folders]
    return {"y": np.array(labels, object)} if any(labels) else {}


def folder_labels(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the labels, and the splits if there are any, of the files CLASS/... or SPLIT/CLASS/... of a folder."""
    parts = [name.split("/") for name in names]
    # Top folders named like a split, with the split's name in this program; the others are classes.
    top_folders = list(dict.fromkeys(part[0] for part in parts if len(part) > 1))
    split_of_folder = {
        folder: SPLIT_NAMES[folder.lower()] for folder in top_folders if folder.lower() in SPLIT_NAMES
    }
    others = [folder for folder in top_folders if folder not in split_of_folder]
    has_splits = bool(split_of_folder) and not others
    # Without class folders there are no labels, and splits only if each file is in one.
    has_class_folders = bool(others) or any(len(part) > 2 for part in parts)
    if not has_class_folders:
        if not has_splits or any(len(part) == 1 for part in parts):
            return {}
        return {"split": np.array([split_of_folder[part[0]] for part in parts])}
    # A single folder named like a split may be a class (test beside control). Of several, all folders must be splits.
    if others and len(set(split_of_folder.values())) > 1:
        raise InputError(
            f"{root}: {others[0]!r} is not one of the splits {', '.join(split_of_folder)}",
            "remove it, or move it into one",
        )
    class_level = 1 if has_splits else 0  # the class folder is below the split's, or at the top
    for part in parts:
        is_in_class_folder = len(part) > class_level + 1
        if not is_in_class_folder:
            example = f"{'train/' if has_splits else ''}CLASS/{part[-1]}"
            raise InputError(
                f"{root}: {'/'.join(part)} is in no class folder", f"move it to {example}, or pass --labels"
            )
    labels = {"y": np.array([part[class_level] for part in parts])}
    if has_splits:
        labels["split"] = np.array([split_of_folder[part[0]] for part in parts])
    return labels


# ---- recordings


OTHER_RATE = 1.5
"""A note says that sampling rates differ if the largest is more than this many times the smallest."""


FEW_STEPS = 4
"""Fewest steps in which an increase from each step to the next is taken for that of times."""


STEP_LABELS = ("label", "target", "class")
"""Conventional names of a column with the label of each step; y may be a channel, as in x, y, z."""


class RecordingReader:
    """Reads recordings of the same channels; those of the first one count if ``channels`` is empty.

    If the recordings ``may_hold_labels``, a column with the label of each step is not a channel: that of
    ``--label``, or one of `STEP_LABELS`. Its cells are in ``labels``, one list per recording.
    """

    def __init__(
        self, options: OwnDataOptions, where: str, channels: Sequence[str], *, may_hold_labels: bool
    ):
        self.options, self.where = options, where
        self.channels = list(channels)
        self.fitted = bool(channels)
        self.may_hold_labels = may_hold_labels
        self.label = (options.label or "") if may_hold_labels else ""
        self.labels: list[list[str]] = []
        self.increasing: set[str] | None = None  # channels that increase in every recording
        self.sampling_times: set[float] = set()  # median time from row to row of each recording

    def read(self, file: Path) -> np.ndarray:
        """Return the values of a recording, (steps, channels), in the order of its times.

        The first recording that can be read decides the channels of all.
        """
        # Labels stay as they are written: 007 is not 7.
        table = read_table(file, self._label_columns, self.options.decimal)
        self._check_named_columns(table)
        table.frame = table.frame.drop(columns=separated(self.options.drop), errors="ignore")
        # Sort the steps by time. A median gap of 0, of equal times or a single one, is not a sampling time.
        time = self._time_column(table)
        if time:
            table, sampling_time = _in_order(table, time)
            self.sampling_times |= {sampling_time} - {0.0}
        # Read the values of the channels, and the labels of the steps.
        channels = self._channels_of(table, time)
        fill = self.options.missing != "refuse"
        values = values_of(table, channels, self.options, fill=fill, data=self.where)
        labels = as_texts(table.frame[self.label]) if self.label in table.frame else None
        # New recordings may lack labels; those of a fit may not.
        if labels is not None and not self.fitted:
            for row in np.flatnonzero(labels == ""):
                table.bad.add(row, f"no label in column {self.label!r}")
        table.bad.readable()  # raises an error that names the bad rows
        # The recording can be read: remember what it shows of all recordings.
        self.channels = channels
        if not time and not self.fitted:
            self._note_increasing(channels, values)
        if labels is not None:
            self.labels.append(labels.tolist())
        return values

    def _check_named_columns(self, table: Table) -> None:
        """Find the column of labels in recordings of a fit; refuse a table without a column that an option names."""
        require_column(table.path, table.names, self.options.time, "" if self.fitted else "time")
        if self.may_hold_labels and not self.fitted:
            self.label = self.label or next(iter(self._label_columns(table.names)), "")
            require_column(table.path, table.names, self.label, "label")
        # Only the first recording needs the columns of ``--drop``.
        if not self.channels:
            for name in separated(self.options.drop):
                require_column(table.path, table.names, name, "drop")

    def _channels_of(self, table: Table, time: str) -> list[str]:
        """Return the channels: those of the recordings before, or in the first one all other columns."""
        channels = self.channels or [
            name for name in table.names if name not in (time, self.label) and not INDEX.fullmatch(name)
        ]
        missing = [name for name in channels if name not in table.frame]
        if missing:
            raise InputError(
                f"{table.path}: no column {missing[0]!r} among {listed(table.names)}",
                "give the same columns as in the other recordings",
            )
        if not self.channels:
            self._refuse_groups(table, channels)
        if not channels or not len(table.frame):
            raise InputError(f"{table.path}: no values", "give a column per channel and a row per step")
        return channels

    def _note_increasing(self, channels: Sequence[str], values: np.ndarray) -> None:
        """Keep in ``increasing`` only channels that also increase in a recording with ``values`` (steps, channels)."""
        increasing = {name for name, column in zip(channels, values.T, strict=True) if _increases(column)}
        self.increasing = increasing if self.increasing is None else self.increasing & increasing

    def _label_columns(self, names: list[str]) -> list[str]:
        """Return the column of labels among some names, if there is one."""
        if not self.may_hold_labels or self.label:
            return [name for name in names if name == self.label]
        return [name for name in names if name.lower() in STEP_LABELS][:1]

    def label_array(self) -> np.ndarray:
        """Return a label per recording if each has one alone, else the labels of steps, (recordings, longest)."""
        where = f"{self.where}, column {self.label!r}"
        if all(len(set(cells)) == 1 for cells in self.labels):
            return typed_labels(where, [cells[0] for cells in self.labels], self.options)
        return padded_labels(where, self.labels, self.options)

    def new_labels(self, *, each: bool) -> np.ndarray:
        """Return the labels of new recordings as objects (rows,): lists if ``each`` step has a label.

        A recording that lacks a label has None.
        """
        where = f"{self.where}, column {self.label!r}"
        labels = np.empty(len(self.labels), object)
        for row, cells in enumerate(self.labels):
            if "" not in cells:
                typed = typed_labels(where, cells, self.options).tolist()
                labels[row] = typed if each else typed[0]
        return labels

    def _refuse_groups(self, table: Table, channels: Sequence[str]) -> None:
        """Refuse a column of whole numbers with a conventional name that says whose the whole recording is."""
        for name in (*conventional("group", channels), *conventional("id", channels)):
            column = table.frame[name]
            if column.dtype.kind in "iu" and column.nunique() == 1:
                drop = ",".join([*separated(self.options.drop), name])
                raise InputError(
                    f"{table.path}: the column {name!r} is the same in the whole recording, and names it or its group",
                    f"pass --drop {quote(name)}, and --labels with a table of the recordings if they have groups, for "
                    f"example: {example(self.where, self.options, drop=drop)}",
                )

    def notes(self) -> list[str]:
        """Return notes if a channel may be the time, and if the sampling rates of the recordings differ."""
        if self.increasing:
            names = ", ".join(sorted(self.increasing))
            return [
                f"the values of {names} increase in every recording, as times do; pass --time for times, or --drop to "
                "leave them out"
            ]
        if not self.sampling_times:
            return []
        ratio = max(self.sampling_times) / min(self.sampling_times)
        if ratio <= OTHER_RATE:
            return []
        return [
            f"the rows of some recordings are {ratio:.3g} times as far apart in time as those of others; "
            "resample them to one sampling rate"
        ]

    def _time_column(self, table: Table) -> str:
        if self.options.time:
            return self.options.time
        names = conventional("time", [name for name in table.names if name not in self.channels])
        if len(names) > 1 and not self.fitted:
            command = example(self.where, self.options, time=names[0])
            raise InputError(
                f"{table.path}: the columns {listed(names)} all have conventional names of the time",
                f"pass --time NAME, for example: {command}",
            )
        return names[0] if names else ""


def recording_rows(
    files: Sequence[Path],
    others: Mapping[str, Any],
    bad: BadRows,
    options: OwnDataOptions,
    task: Task | None,
    *,
    may_hold_labels: bool = False,
) -> Rows:
    """Return recordings as rows; ``others`` are further arrays (files,), such as the ids.

    A ``task`` is given for new recordings, which must have its channels. Recordings that ``may_hold_labels`` may have a
    column of labels, for each step or with one label for the whole recording; ``label`` of the parameters names it.
    """
    channels: Any = task.parameters.get("columns", ()) if task else ()
    reader = RecordingReader(options, bad.where, channels, may_hold_labels=may_hold_labels)
    sequences = bad.read_files(files, reader.read)
    readable = bad.readable()
    x, lengths = padded(str(files[0].parent), sequences)
    values = listed(reader.channels)
    notes = [f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {values}"]
    arrays = {name: array[readable] for name, array in others.items()}
    parameters: dict[str, Any] = {"columns": reader.channels, "recordings": True}
    # The reader appends labels only for a recording with the column; labels of some recordings alone are not used.
    all_have_labels = len(reader.labels) == len(lengths)
    if all_have_labels:
        arrays["y"] = reader.new_labels(each=task.labels_each_token) if task else reader.label_array()
        labels_steps = task.labels_each_token if task else arrays["y"].ndim > 1
        notes.append(f"the column {reader.label!r} labels every {'step' if labels_steps else 'recording'}")
        parameters |= {"label": reader.label} | ({"each": "token"} if labels_steps else {})
    return Rows(
        x=x,
        lengths=lengths,
        **arrays,
        files=tuple(files),
        notes=(*notes, *reader.notes()),
        parameters=parameters,
    )


def _increases(values: np.ndarray) -> bool:
    """Return whether ``values`` (steps,) increase from each step to the next, and are enough to judge that."""
    return len(values) >= FEW_STEPS and bool((np.diff(values) > 0).all())


def _in_order(table: Table, name: str) -> tuple[Table, float]:
    """Return the rows of a recording sorted by a column of times, which may repeat in order, and their median gap."""
    times = sortable_times(table, name)
    unit = np.timedelta64(1, "s") if times.dtype.kind == "M" else 1  # dates differ by seconds
    gaps = np.diff(np.sort(times)) / unit
    step = float(np.median(gaps)) if len(gaps) else 0.0
    if (times[1:] >= times[:-1]).all():
        return table, step
    if len(np.unique(times)) < len(times):
        raise InputError(
            f"{table.path}: the times in {name!r} repeat and are not in order",
            f"sort the rows, or pass --drop {quote(name)} if they are sorted",
        )
    return table.take(np.argsort(times).tolist()), step


def table_parts(path: Path, options: OwnDataOptions, task: Task | None) -> list[Path]:
    """Return the parts of a table in Parquet files, sorted by name: those of a pattern, or of a folder.

    The Parquet files of a folder are recordings instead if they lie in folders of their classes, or if a
    table has their labels.
    """
    if is_pattern(path):
        return files_of_pattern(path)
    if options.labels or (task and task.parameters.get("recordings")):
        return []
    files = media_files(path)
    are_parts = all(file.parent == path and file.suffix.lower() == ".parquet" for file in files)
    return files if are_parts and path.is_dir() else []


# ---- files of any kind


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path is a folder of such files, or one of them."""
    return bool(_files(Path(origin), options, task))


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the files of a folder, with labels of the table of ``--labels`` or of their folders."""
    path = Path(origin)
    files = _files(path, options, task)
    names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
    bad = BadRows(origin, [f"file {name}" for name in names], skip=options.skip_bad_rows)
    if options.labels:
        labels = labels_from_table(options, names, bad, is_new=task is not None)
        arrays, notes = labels.arrays, labels.notes
    else:
        notes = files_left_out(path, files)
        if task is None:
            arrays = folder_labels(path, names)
        else:
            classes = [task.label(number) for number in range(task.classes)]
            arrays = classes_of_folders(names, classes)
    reads_label_table = bool(options.labels)
    if task is None:
        # Files of a new task: --label names a column of recordings, or the reader looks for one by its conventional
        # names, unless the folders name classes.
        looks_for_column = bool(options.label) or "y" not in arrays
        recordings_may_hold_labels = looks_for_column and not reads_label_table
    else:
        # New files for a task take --label from it, which named a column of the table if the task read one of labels.
        task_read_label_table = bool(task.parameters.get("labels"))
        has_label_table = reads_label_table or task_read_label_table
        recordings_may_hold_labels = bool(options.label) and not has_label_table
    rows = media_rows(
        files,
        arrays | {"ids": np.array(names)},
        bad,
        options,
        task,
        recordings_may_hold_labels=recordings_may_hold_labels,
    )
    # Options that name columns do not apply without a table of labels, except --label if recordings hold labels.
    recordings_hold_labels = "label" in rows.parameters  # which `recording_rows` sets only then
    unused = ["text"]
    if not reads_label_table:
        unused += ["id", "group"] if recordings_hold_labels else ["label", "id", "group"]
    return replace(rows, notes=(*notes, *rows.notes), unused=tuple(unused))


def media_rows(
    files: Sequence[Path],
    arrays: Mapping[str, np.ndarray],
    bad: BadRows,
    options: OwnDataOptions,
    task: Task | None,
    *,
    recordings_may_hold_labels: bool = False,
) -> Rows:
    """Return files of one kind as rows, with other ``arrays`` (files,); those of a ``task`` have its channels.

    If ``recordings_may_hold_labels``, a column of the recordings with the label of each step is not a channel.
    """
    kind = files_kind([files[0].name])
    if kind == "images":
        rows = image_rows(files, arrays, bad)
    elif kind == "sounds":
        rows = sound_rows(files, arrays, bad, options.rate, waveform=options.waveform)
    else:
        rows = recording_rows(files, arrays, bad, options, task, may_hold_labels=recordings_may_hold_labels)
    return replace(
        rows,
        notes=(*bad.notes(), *rows.notes),
        skipped=bad.skipped(arrays.get("ids", ())),
        label=options.label or "the label",
    )


def _files(path: Path, options: OwnDataOptions, task: Task | None) -> list[Path]:
    """Return the files of a path, without a table of labels; a single recording is one if the task has recordings."""
    if table_parts(path, options, task):
        return []
    parameters = task.parameters if task else {}
    tables_of_labels = [path / parameters["labels"]] if "labels" in parameters else []
    if options.labels:
        tables_of_labels.append(Path(options.labels))
    files = media_files(path, *tables_of_labels)
    is_recording = parameters.get("recordings") and path.suffix.lower() in TABLES
    if is_recording and not files and not named_kind(path):
        return [path]
    return files
