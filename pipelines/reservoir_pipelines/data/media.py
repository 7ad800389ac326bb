"""Folders of files that are one sequence each: images, sounds and recordings (tables of steps)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data import folders
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.file_kinds import files_kind, named_kind
from reservoir_pipelines.data.images import image_rows
from reservoir_pipelines.data.label_table import labels_from_table
from reservoir_pipelines.data.recordings import recording_rows
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.sounds import sound_rows
from reservoir_pipelines.data.table import SUFFIXES as TABLES


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
        notes = folders.files_left_out(path, files)
        if task is None:
            arrays = folders.folder_labels(path, names)
        else:
            classes = [task.label(number) for number in range(task.classes)]
            arrays = folders.classes_of_folders(names, classes)
    rows = media_rows(files, arrays | {"ids": np.array(names)}, bad, options, task)
    unused = ("text", *(() if options.labels else ("label", "id", "group")))
    return replace(rows, notes=(*notes, *rows.notes), unused=unused)


def media_rows(
    files: Sequence[Path],
    arrays: Mapping[str, np.ndarray],
    bad: BadRows,
    options: OwnDataOptions,
    task: Task | None,
) -> Rows:
    """Return files of one kind as rows, with other ``arrays`` (files,); those of a ``task`` have its channels."""
    kind = files_kind([files[0].name])
    if kind == "images":
        rows = image_rows(files, arrays, bad)
    elif kind == "sounds":
        rows = sound_rows(files, arrays, bad, options.rate, waveform=options.waveform)
    else:
        channels: Any = task.parameters.get("columns", ()) if task else ()
        rows = recording_rows(files, arrays, bad, options, channels)
    return replace(
        rows,
        notes=(*bad.notes(), *rows.notes),
        skipped=bad.skipped(arrays.get("ids", ())),
        label=options.label or "the label",
    )


def _files(path: Path, options: OwnDataOptions, task: Task | None) -> list[Path]:
    """Return the files of a path, without a table of labels; a single recording is one if the task has recordings."""
    parameters = task.parameters if task else {}
    tables_of_labels = [path / parameters["labels"]] if "labels" in parameters else []
    if options.labels:
        tables_of_labels.append(Path(options.labels))
    files = folders.media_files(path, *tables_of_labels)
    is_recording = parameters.get("recordings") and path.suffix.lower() in TABLES
    if is_recording and not files and not named_kind(path):
        return [path]
    return files
