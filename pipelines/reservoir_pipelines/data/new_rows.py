"""New rows of a task: the sequences of a file for a readout that was fitted before."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.words import texts_of
from reservoir_pipelines.data.formats import open_rows
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.values import encode


def read_new(path: Path, task: Task, labels: str | None = None) -> Rows:
    """Return the rows of a file in the form that `encode` reads; those that cannot be read are skipped, unless all are.

    ``x`` holds texts (rows,), numbers, or files of images, which stay on disk; ``labels`` is a table of
    labels.
    """
    # New rows are read with the options and choices that the task was read with.
    parameters = {**task.parameters, "labels": labels, "skip_bad_rows": True}
    # Without a table of labels, these options named columns of another table, or were patterns of headers.
    if labels and "labels" not in task.parameters:
        parameters |= {"label": None, "id": None, "group": None}
    try:
        rows = open_rows(str(path), as_group(parameters, OwnDataOptions), task)
    except InputError as error:  # flags of `extract` do not apply to new data
        raise InputError(str(error).partition(", or pass --")[0]) from None
    rows.refuse_unused(str(path), ["labels"] if labels else [])
    are_images, read_images = rows.holds == "images", task.pictures > 0
    if are_images != read_images:
        kind, fitted = ("images", "other data") if are_images else ("no images", "images")
        raise InputError(
            f"{path}: {kind}, but the readout was fitted on {fitted}", "give data of this kind"
        )
    if rows.holds == "letters":
        assert rows.lengths is not None
        return replace(rows, x=np.array(texts_of(rows.x[:], rows.lengths)), lengths=None)
    if are_images:
        return rows
    x = rows.x[:]
    are_whole = x.dtype.kind == "f" and x.ndim == 2 and bool((x == np.rint(x)).all())
    return replace(rows, x=x.astype(np.int64) if isinstance(task.form, Tokens) and are_whole else x)


def encode_rows(rows: Rows, task: Task, where: str) -> Rows:
    """Return the rows of `read_new` with their stored sequences and lengths; images stay on disk."""
    if rows.holds == "images":
        return replace(rows, lengths=np.full(len(rows), task.max_tokens, np.int32))
    x, lengths = encode(task, rows.x[:], rows.lengths, where)
    return replace(rows, x=x, lengths=lengths)
