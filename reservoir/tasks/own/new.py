"""New sequences from a file, for a task that has been prepared."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.images.mnist import read_idx
from reservoir.tasks.own.files import SUFFIXES, open_arrays
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.own.media import media_files
from reservoir.tasks.own.pictures import Pictures, objects
from reservoir.tasks.task import Task, Tokens

NewRows = tuple[np.ndarray, np.ndarray | None, list[str] | None, np.ndarray | None]
"""Sequences, their lengths, the names of the rows, and their labels."""


def read_new(path: Path, task: Task) -> NewRows:
    """Return the sequences of a file, their lengths, the names of the rows, and their labels, if the file has them.

    Pictures are returned as the paths of their files.
    """
    if path.suffix.lower() not in SUFFIXES and path.is_file() and not (media_files(path) or task.pictures):
        return read_idx(path, (28, 28)), None, None, None
    asked = {
        f.name: task.parameters[f.name]
        for f in fields(OwnDataOptions)
        if f.name in task.parameters and f.name not in {"labels", "skip_bad_rows"}
    }
    columns = open_arrays(str(path), OwnDataOptions(**asked), task)
    if "x" not in columns.shapes:
        raise InputError(f"{path}: it has no array 'x'; put the sequences there")
    if not columns.shapes["x"]:
        raise InputError(f"{path}: x is a single number; give one sequence per row")
    rows = columns.shapes["x"][0]
    for name in ("lengths", "ids"):
        if columns.shapes.get(name, (rows,)) != (rows,):
            raise InputError(f"{path}: x has {rows} rows and {name} the shape {columns.shapes[name]}; give one per row")
    pictures = isinstance(columns, Pictures)
    if bool(task.pictures) != pictures:
        found, wanted = ("pictures", "other data") if pictures else ("no pictures", "pictures")
        raise InputError(f"{path}: holds {found}, and the readout was fitted to {wanted}")
    x = objects(columns.files) if pictures else columns.read("x", 0, rows)
    lengths = columns.read("lengths", 0, rows) if "lengths" in columns.shapes else None
    ids = [str(name) for name in columns.read("ids", 0, rows)] if "ids" in columns.shapes else None
    y = columns.read("y", 0, rows) if columns.shapes.get("y") else None
    if columns.letters:
        assert lengths is not None
        return np.array(texts_of(x, lengths)), None, ids, y
    if isinstance(task.form, Tokens) and x.dtype.kind == "f" and x.ndim == 2 and (x == np.rint(x)).all():
        x = x.astype(np.int64)
    return x, lengths, ids, y
