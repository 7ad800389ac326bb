"""Tables, ``.csv``, ``.tsv``, ``.jsonl`` and ``.parquet``, and the files that a column of a table may name."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.file_kinds import names_files, with_slashes
from reservoir_pipelines.data.folders import check_inside
from reservoir_pipelines.data.media import media_rows
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.table import SUFFIXES, Table
from reservoir_pipelines.data.table_rows import read_table_rows
from reservoir_pipelines.data.texts import TextCodes

__all__ = ["SUFFIXES", "read"]
UNUSED = ("labels",)  # a table has labels of its own


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of a table, or the files that it names together with its other columns."""
    path = Path(origin)
    table, rows = read_table_rows(path, options, task.parameters if task else None)
    if isinstance(rows.x, TextCodes) and names_files(path.parent, rows.x.texts):
        rows = _rows_of_files(table, rows, rows.x.texts, options, task)
    return replace(rows, unused=UNUSED)


def _rows_of_files(
    table: Table, rows: Rows, names: list[str], options: OwnDataOptions, task: Task | None
) -> Rows:
    """Return the files that the cells ``names`` of a table stand for, with the other columns of its ``rows``."""
    folder = table.path.parent
    # The rows of the table that can be read; others are missing in ``rows`` already.
    places = np.flatnonzero(table.bad.readable()).tolist()
    bad = table.bad.take(places)
    files = [folder / with_slashes(name) for name in names]
    for row, file in enumerate(files):  # nothing outside the folder is read
        if file.is_file():
            check_inside(file, folder)
        else:
            bad.add(row, f"no file {names[row]!r} in the table's folder")
    bad.readable()
    paths = np.array([str(file.relative_to(folder)) for file in files])
    columns = {"y": rows.y, "groups": rows.groups, "split": rows.split}
    arrays = {name: array for name, array in columns.items() if array is not None}
    arrays["ids"] = paths if rows.ids is None else rows.ids
    media = media_rows(files, arrays, bad, options, task)
    return replace(
        media,
        notes=(*rows.notes, *media.notes),
        skipped=rows.skipped | {places[row]: reason for row, reason in media.skipped.items()},
        parameters={**rows.parameters, **media.parameters},
        label=rows.label,
        roles=rows.roles,
    )
