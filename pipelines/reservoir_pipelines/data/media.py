"""Files that are one sequence each: images, sounds and recordings (tables of steps), with labels by their folders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.pictures import check_pillow, decoded, has_several_frames
from reservoir.tasks.task import Task
from reservoir_pipelines.data.columns import (
    KIND_SUFFIXES,
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
from reservoir_pipelines.data.labels import SPLIT_NAMES, classes_by_name
from reservoir_pipelines.data.roles import INDEX_NAME, conventional
from reservoir_pipelines.data.rows import IMAGE_NOTE, BadRows, Rows, padded
from reservoir_pipelines.data.sounds import sound_rows
from reservoir_pipelines.data.table import SUFFIXES as TABLES
from reservoir_pipelines.data.table import Table, files_of_pattern, is_pattern, read_table
from reservoir_pipelines.data.table_labels import labels_from_table, padded_labels, typed_labels

# ---- images


MAX_BYTES = 2**27
"""Largest file of an image, in bytes: the largest image that is read, of 2**26 pixels, rarely needs as many."""

SUFFIXES_OF_FRAMES = (".webp", ".gif", ".tif", ".tiff")
"""Suffixes of images that may have several pages or frames."""

PIECE_ROWS = 64
"""Number of files that are in memory at a time."""


class ImageFiles:
    """Images as an array (rows,) of the bytes of their files, which are read when they are needed.

    Parameters
    ----------
    files : sequence of Path
        All files, also those that cannot be read.
    bad : BadRows
        The files that cannot be read, to which more are added.
    readable : array (files,) of bool
        Which files are rows of the array.
    are_checked : bool
        Whether the files have been decoded already; else each is decoded when it is read.
    """

    dtype = np.dtype(object)

    def __init__(self, files: Sequence[Path], bad: BadRows, readable: np.ndarray, *, are_checked: bool):
        self._all_files, self._bad = files, bad
        self._are_checked = are_checked
        self._files = [file for file, is_readable in zip(files, readable, strict=True) if is_readable]
        self.shape = (len(self._files),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        files = self._files[rows]
        if self._are_checked:
            return np.fromiter((_file_bytes(file) for file in files), object)
        try:
            return np.fromiter(map(stored_bytes, files), object)
        except InputError:
            # Check all files, so that the error counts all that cannot be read, not only this one.
            self._bad.read_files(self._all_files, _check_image)
            self._bad.readable()  # raises that error
            raise  # in case the file has been repaired meanwhile


def image_rows(files: Sequence[Path], columns: Mapping[str, Any], bad: BadRows) -> Rows:
    """Return image files as rows, with further ``columns`` (files,) by the names of their fields in `Rows`."""
    check_pillow()
    # To skip damaged files, all are decoded now, because rows are counted before they are read.
    if bad.skip:
        bad.read_files(files, _check_image)
    readable = bad.readable()
    readable_files = tuple(file for file, is_readable in zip(files, readable, strict=True) if is_readable)
    return Rows(
        x=ImageFiles(files, bad, readable, are_checked=bool(bad.skip)),
        **{name: array[readable] for name, array in columns.items()},
        holds="images",
        piece_rows=PIECE_ROWS,
        files=readable_files,
        notes=(*_notes_on_frames(readable_files), IMAGE_NOTE),
    )


def _notes_on_frames(files: Sequence[Path]) -> list[str]:
    """Return a note on the files of several pages or frames, of which only the first is read, if there are any."""
    # Only files of formats that may have frames are opened, because opening all takes time.
    may_have_frames = [file for file in files if file.suffix.lower() in SUFFIXES_OF_FRAMES]
    count = sum(map(has_several_frames, may_have_frames))
    return [f"files with several pages or frames, of which the first is read: {count:,}"] if count else []


def stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of an image file, (bytes,) of uint8; refuse a file that is too large or cannot be decoded."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}", "check that it is an image"
        )
    content = _file_bytes(path)
    # Only for the error that it may raise. With ``rough``, a JPEG is decoded at a lower resolution, which is faster;
    # all of its bytes are read nevertheless, so the same damage is found.
    decoded(content, str(path), rough=True)
    return content


def _check_image(path: Path) -> None:
    """Refuse an image file as `stored_bytes` does, without keeping its bytes in memory."""
    stored_bytes(path)


def _file_bytes(path: Path) -> np.ndarray:
    """Return the bytes of a file, (bytes,) of uint8."""
    return np.frombuffer(path.read_bytes(), np.uint8)


# ---- folders


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the files at a path that are one sequence each: those below a folder, sorted, or an image or a sound.

    All are of the first kind in `KIND_SUFFIXES` of which the folder has files. ``labels`` are tables of labels,
    which are no sequences. Return an empty list for other paths.
    """
    if not path.is_dir():
        # A single recording is not returned, because it is read as a table.
        is_media = path.is_file() and files_kind([path.name]) in {"images", "sounds"}
        return [path] if is_media else []
    tables_of_labels = [label for label in labels if label.exists()]
    files = [file for file in _visible(path) if not any(map(file.samefile, tables_of_labels))]
    files_of_kind = _files_of_first_kind(files)
    for file in files_of_kind:
        if file.is_symlink():
            check_inside(file, path)
    return files_of_kind


def _files_of_first_kind(files: Sequence[Path]) -> list[Path]:
    """Return the files of the first kind in `KIND_SUFFIXES` of which there are any, if there are any."""
    for kind in KIND_SUFFIXES:
        files_of_kind = [file for file in files if files_kind([file.name]) == kind]
        if files_of_kind:
            return files_of_kind
    return []


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and those in hidden folders.

    Links to files are returned, but links to folders are not followed.
    """

    def is_hidden(path: Path) -> bool:
        """Return whether the name of the file, or of a folder between the root and it, begins with a point."""
        return any(part.startswith(".") for part in path.relative_to(root).parts)

    return sorted(path for path in root.rglob("*") if path.is_file() and not is_hidden(path))


def files_left_out(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a note on the files below a folder that are not among ``files``, those of one kind, if there are any."""
    others = len(_visible(root)) - len(files) if root.is_dir() else 0
    if not others:
        return []
    return [f"files left out because they are not {files_kind([files[0].name])}: {others:,}"]


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}", "copy it into this folder")


def classes_of_folders(names: Sequence[str], classes: Mapping[str, str | int]) -> dict[str, np.ndarray]:
    """Return the labels of new files as ``y`` (files,), by the folders in their names; nothing if no file has one.

    The label of a file is the class of the first folder on its path that is the name of one, else None. ``classes`` has
    them by name, see `classes_by_name`.
    """
    labels: list[str | int | None] = []
    for name in names:
        folders = name.split("/")[:-1]
        labels.append(next((classes[folder] for folder in folders if folder in classes), None))
    has_labels = any(label is not None for label in labels)
    return {"y": np.array(labels, object)} if has_labels else {}


def folder_labels(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the labels ``y`` and the splits ``split``, (files,) each, of files by their folders, as far as these say.

    The ``names`` of the files, relative to the folder ``root``, are CLASS/... or SPLIT/CLASS/..., or SPLIT/... for
    files without labels.
    """
    # The names of the folders of each file, from the top; none for a file directly in the root.
    folders_of_files = [name.split("/")[:-1] for name in names]
    # The folders at the top that are named like a split, with the name of the split in this program, and the others.
    top_folders = list(dict.fromkeys(folders[0] for folders in folders_of_files if folders))
    split_of_folder = {
        folder: SPLIT_NAMES[folder.lower()] for folder in top_folders if folder.lower() in SPLIT_NAMES
    }
    other_folders = [folder for folder in top_folders if folder not in split_of_folder]
    # | folders at the top                       | meaning                              |
    # | ---------------------------------------- | ------------------------------------ |
    # | all are named like splits                | splits                               |
    # | none is named like a split               | classes                              |
    # | some are, all like the same split        | classes, as "test" beside "control"  |
    # | some are, like several splits            | refused                              |
    names_several_splits = len(set(split_of_folder.values())) > 1
    if names_several_splits and other_folders:
        raise InputError(
            f"{root}: {other_folders[0]!r} is not one of the splits {', '.join(split_of_folder)}",
            "remove it, or move it into one",
        )
    has_splits = bool(split_of_folder) and not other_folders
    # Class folders are at the top, or below the folders of splits. Without them there are no labels, and splits only if
    # each file is in one.
    has_class_folders = bool(other_folders) or any(len(folders) > 1 for folders in folders_of_files)
    if not has_class_folders:
        all_in_splits = has_splits and all(folders_of_files)
        if not all_in_splits:
            return {}
        return {"split": np.array([split_of_folder[folders[0]] for folders in folders_of_files])}
    class_level = 1 if has_splits else 0  # the class folder is below the split's, or at the top
    for name in names:
        _require_class_folder(root, name, class_level)
    labels = {"y": np.array([folders[class_level] for folders in folders_of_files])}
    if has_splits:
        labels["split"] = np.array([split_of_folder[folders[0]] for folders in folders_of_files])
    return labels


def _require_class_folder(root: Path, name: str, class_level: int) -> None:
    """Refuse the file called ``name``, relative to ``root``, if it is in no class folder.

    The class folder is number ``class_level`` of the folders of the file, from 0 at the top.
    """
    *folders, file_name = name.split("/")
    if len(folders) > class_level:
        return
    destination = f"{'train/' if class_level else ''}CLASS/{file_name}"
    raise InputError(f"{root}: {name} is in no class folder", f"move it to {destination}, or pass --labels")


# ---- recordings


OTHER_RATE = 1.5
"""A note says that sampling rates differ if the largest is more than this many times the smallest."""

FEW_STEPS = 4
"""Fewest steps in which an increase from each step to the next is taken for that of times."""

STEP_LABELS = ("label", "target", "class")
"""Conventional names of a column with the label of each step; y may be a channel, as in x, y, z."""


class RecordingReader:
    """Reads recordings of the same channels, one after the other, and collects their labels.

    Parameters
    ----------
    options : OwnDataOptions
        The user's options, or those of the readout.
    where : str
        The path of the data, for messages.
    channels : sequence of str
        The columns that a readout was fitted on; if it is empty, the first recording decides.
    may_hold_labels : bool
        Whether a column of the recordings may have the label of each step, and is then not a channel: the column of
        ``--label``, or one of `STEP_LABELS`.
    """

    def __init__(
        self, options: OwnDataOptions, where: str, channels: Sequence[str], *, may_hold_labels: bool
    ):
        self.options, self.where = options, where
        self.channels = list(channels)  # empty until the first recording has been read
        self.is_new = bool(channels)  # whether these are new recordings for a readout
        self.may_hold_labels = may_hold_labels
        # The column of labels; "" if there is none, or before the first recording has been read.
        self.label = (options.label or "") if may_hold_labels else ""
        self.labels: list[list[str]] = []  # the labels of the steps of each recording that has them
        # Channels that increase in every recording so far; None before the first.
        self.increasing: set[str] | None = None
        self.sampling_times: set[float] = set()  # median time from row to row of each recording

    def read(self, file: Path) -> np.ndarray:
        """Return the values of a recording, (steps, channels), in the order of its times, and collect its labels.

        The first recording that can be read decides the channels of all.
        """
        # Labels stay as they are written: 007 is not 7.
        table = read_table(file, self._label_columns, self.options.decimal)
        self._choose_label_and_check_columns(table)
        table.frame = table.frame.drop(columns=separated(self.options.drop), errors="ignore")
        # Sort the steps by time.
        time = self._time_column(table)
        if time:
            table, sampling_time = _in_order(table, time)
            if sampling_time:  # 0 for equal times or a single one, which say nothing about it
                self.sampling_times.add(sampling_time)
        # Read the values of the channels, and the labels of the steps.
        channels = self._channels_of(table, time)
        fill = self.options.missing != "refuse"
        values = values_of(table, channels, self.options, fill=fill, data=self.where)
        labels = as_texts(table.frame[self.label]) if self.label in table.frame else None
        # New recordings may lack labels; those of a fit may not.
        if labels is not None and not self.is_new:
            for row in np.flatnonzero(labels == ""):
                table.bad.add(row, f"no label in column {self.label!r}")
        table.bad.readable()  # raises an error that names the bad rows
        # Only a recording that can be read decides about the others.
        self.channels = channels
        # Without a column of times, an increasing channel may be one whose name is not conventional: see `notes`.
        if not time and not self.is_new:
            self._note_increasing(channels, values)
        if labels is not None:
            self.labels.append(labels.tolist())
        return values

    def _choose_label_and_check_columns(self, table: Table) -> None:
        """Set ``self.label`` to the column of labels, if any, and refuse a table without a column that an option names.

        New recordings may lack the column of labels.
        """
        require_column(table.path, table.names, self.options.time, "" if self.is_new else "time")
        if self.may_hold_labels and not self.is_new:
            self.label = self.label or next(iter(self._label_columns(table.names)), "")
            require_column(table.path, table.names, self.label, "label")
        # Only the first recording needs the columns of ``--drop``.
        if not self.channels:
            for name in separated(self.options.drop):
                require_column(table.path, table.names, name, "drop")

    def _channels_of(self, table: Table, time: str) -> list[str]:
        """Return the channels: those of earlier recordings, or in the first one all columns without another role.

        ``time`` is the column of times, "" without one. Refuse a table that lacks a channel, or has no values.
        """
        channels = self.channels or [
            name
            for name in table.names
            if name not in (time, self.label) and not INDEX_NAME.fullmatch(name)
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
        """Keep in ``self.increasing`` only the channels that increase in these ``values`` (steps, channels), too."""
        increasing = {name for name, column in zip(channels, values.T, strict=True) if _increases(column)}
        self.increasing = increasing if self.increasing is None else self.increasing & increasing

    def _label_columns(self, names: list[str]) -> list[str]:
        """Return the column of labels among the names of a table in a list, which is empty if there is none."""
        is_decided = not self.may_hold_labels or bool(self.label)
        if is_decided:
            return [name for name in names if name == self.label]
        return [name for name in names if name.lower() in STEP_LABELS][:1]

    def label_array(self) -> np.ndarray:
        """Return the label of each recording, (recordings,), if its steps all have the same; else those of the steps.

        The labels of steps are an array (recordings, longest).
        """
        where = f"{self.where}, column {self.label!r}"
        if all(len(set(cells)) == 1 for cells in self.labels):
            return typed_labels(where, [cells[0] for cells in self.labels], self.options)
        return padded_labels(where, self.labels, self.options)

    def new_labels(self, task: Task) -> np.ndarray:
        """Return the labels of new recordings, (recordings,) of objects: a list for each if the task labels steps.

        Else each has the label of its first step. A recording of which a step lacks a label has None.
        """
        where = f"{self.where}, column {self.label!r}"
        labels = np.empty(len(self.labels), object)
        for row, cells in enumerate(self.labels):
            if "" not in cells:
                typed = typed_labels(where, cells, self.options).tolist()
                labels[row] = typed if task.labels_each_token else typed[0]
        return labels

    def _refuse_groups(self, table: Table, channels: Sequence[str]) -> None:
        """Refuse a channel that has one whole number throughout, and a name as of groups, ids or labels."""
        labels = [name for name in channels if name.lower() in STEP_LABELS]
        for name in (*conventional("group", channels), *conventional("id", channels), *labels):
            column = table.frame[name]
            is_constant_integer = column.dtype.kind in "iu" and column.nunique() == 1
            if is_constant_integer:
                drop = ",".join([*separated(self.options.drop), name])
                raise InputError(
                    f"{table.path}: the column {name!r} is the same in the whole recording, as its name, its group or "
                    "its label is",
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
        """Return the column of times, by flag or by its conventional name; "" if there is none.

        Several conventional names are refused in a fit; in new recordings, the most usual of them counts.
        """
        if self.options.time:
            return self.options.time
        names = conventional("time", [name for name in table.names if name not in self.channels])
        if len(names) > 1 and not self.is_new:
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
    """Return recordings as rows.

    Parameters
    ----------
    files : sequence of Path
        The recordings, which are tables of steps.
    others : mapping of str to array (files,)
        Further arrays by the names of their fields in `Rows`, such as ``ids``.
    bad : BadRows
        The files that cannot be read, to which more are added.
    options : OwnDataOptions
        The user's options, or those of the readout.
    task : Task, optional
        The task of the readout for new recordings, which must have its channels.
    may_hold_labels : bool
        Whether a column of the recordings may have labels, of each step or one for the whole recording. If all have
        it, the parameter ``label`` of the rows names it.
    """
    channels: Any = task.parameters.get("columns", ()) if task else ()
    reader = RecordingReader(options, bad.where, channels, may_hold_labels=may_hold_labels)
    sequences = bad.read_files(files, reader.read)
    readable = bad.readable()
    x, lengths = padded(str(files[0].parent), sequences)
    channel_names = listed(reader.channels)
    notes = [
        f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {channel_names}"
    ]
    arrays = {name: array[readable] for name, array in others.items()}
    parameters: dict[str, Any] = {"columns": reader.channels, "recordings": True}
    # The reader appends labels only for a recording with the column; labels of some recordings alone are not used.
    all_have_labels = len(reader.labels) == len(lengths)
    if all_have_labels:
        arrays["y"] = reader.label_array() if task is None else reader.new_labels(task)
        labels_steps = arrays["y"].ndim > 1 if task is None else task.labels_each_token
        notes.append(f"the column {reader.label!r} labels every {'step' if labels_steps else 'recording'}")
        parameters["label"] = reader.label
        if labels_steps:
            parameters["each"] = "token"
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
    """Return the rows of a recording sorted by the column ``name`` of times, and the median time between them.

    That is in seconds for dates, and 0 for a single row. Times that repeat are refused, unless the rows are in order.
    """
    times = sortable_times(table, name, may_lack_times=True)
    # What times differ by, as a number: for dates, in seconds.
    unit = np.timedelta64(1, "s") if times.dtype.kind == "M" else 1
    gaps = np.diff(np.sort(times)) / unit
    median_gap = float(np.median(gaps)) if len(gaps) else 0.0
    are_in_order = (times[1:] >= times[:-1]).all()
    if are_in_order:
        return table, median_gap
    if len(np.unique(times)) < len(times):
        raise InputError(
            f"{table.path}: the times in {name!r} repeat and are not in order",
            f"sort the rows, or pass --drop {quote(name)} if they are sorted",
        )
    return table.take(np.argsort(times).tolist()), median_gap


def table_parts(path: Path, options: OwnDataOptions, task: Task | None) -> list[Path]:
    """Return the Parquet files, sorted by name, that are the parts of one table: those of a pattern, or of a folder.

    Return an empty list for any other path. The Parquet files of a folder are recordings instead if they lie in folders
    of their classes, if a table has their labels, or if the readout's ``task`` has recordings.
    """
    if is_pattern(path):
        return files_of_pattern(path)
    reads_recordings = task is not None and task.parameters.get("recordings")
    if options.labels or reads_recordings or not path.is_dir():
        return []
    files = media_files(path)
    are_parts = all(file.parent == path and file.suffix.lower() == ".parquet" for file in files)
    return files if are_parts else []


# ---- files of any kind


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path is a folder of images, sounds or recordings, or one such file."""
    return bool(_files(Path(origin), options, task))


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the files of a folder as rows, with labels of the table of ``--labels``, of their folders or in them.

    ``task`` is that of the readout if the files are new.
    """
    # The labels of the files: from the table, or by their folders. Recordings may hold labels themselves.
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
            classes = classes_by_name(task)
            arrays = classes_of_folders(names, classes)
    recordings_may_hold_labels = _may_recordings_hold_labels(
        options, task, have_class_folders="y" in arrays
    )
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
    unused = ["text"] if "recordings" in rows.parameters else ["text", "time", "drop"]
    if not options.labels:
        unused += ["id", "group"] if recordings_hold_labels else ["label", "id", "group"]
    return replace(rows, notes=(*notes, *rows.notes), unused=tuple(unused))


def _may_recordings_hold_labels(
    options: OwnDataOptions, task: Task | None, *, have_class_folders: bool
) -> bool:
    """Return whether a column of the files, if they are recordings, may have labels.

    ``task`` is that of the readout if the files are new; ``have_class_folders`` says whether folders name classes.
    """
    if options.labels:  # a table has the labels
        return False
    if task is None:
        # --label names a column of the recordings. Without it, the reader looks for one by its conventional names.
        return bool(options.label) or not have_class_folders
    # The options of new files are those of the task. If that read a table of labels, --label names a column of it.
    task_read_label_table = bool(task.parameters.get("labels"))
    return bool(options.label) and not task_read_label_table


def media_rows(
    files: Sequence[Path],
    arrays: Mapping[str, np.ndarray],
    bad: BadRows,
    options: OwnDataOptions,
    task: Task | None,
    *,
    recordings_may_hold_labels: bool = False,
) -> Rows:
    """Return files of one kind as rows, with further ``arrays`` (files,) by the names of their fields in `Rows`.

    ``bad`` has the files that cannot be read, to which more are added. ``task`` is that of the readout if the files are
    new. If ``recordings_may_hold_labels``, a column of recordings that has labels is not a channel.
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
    """Return the files at a path that are one sequence each, without tables of labels and parts of a table.

    A single table is a recording if the readout's ``task`` has recordings.
    """
    if table_parts(path, options, task):
        return []
    parameters = task.parameters if task else {}
    # The table of labels of the fit may be in the folder, too, under the name that the task has stored.
    tables_of_labels = [path / parameters["labels"]] if "labels" in parameters else []
    if options.labels:
        tables_of_labels.append(Path(options.labels))
    files = media_files(path, *tables_of_labels)
    # A table whose cells name files is not a recording, but their list.
    may_be_recording = parameters.get("recordings") and path.suffix.lower() in TABLES
    if may_be_recording and not files and not named_kind(path):
        return [path]
    return files
