"""The table of ``reservoir tasks``: the tasks, their shapes, and whether their data is present."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.tasks import TASKS, Source, Tokens, task_named
from reservoir_pipelines.preparation.download import FILES
from reservoir_pipelines.preparation.prepare import settings_folder
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.workspace import data_folder


def task_table(data: Path | None = None, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return one row per named task, with its default parameters.

    ``tokens`` is the length of the longest sequence, ``input`` is "16 values" or "25 symbols" a token,
    ``labels_per_row`` is readout tokens times outputs, ``splits`` the rows of each split if known, ``data`` is
    "generated", "here", "prepared" or "missing", and ``remedy`` what to do if it is missing.
    """
    folder = data_folder(data)
    return [_row(name, task_named(name, data=folder), cache) for name in TASKS]


def _row(name: str, source: Source, cache: Path | None) -> dict[str, Any]:
    task = source.task
    earlier = Prepared.latest(settings_folder(name, source, cache), verify=False)
    rows = earlier.rows if earlier else None
    status, remedy = _data(name, source)
    if status == "missing" and rows:
        status, remedy = "prepared", ""
    if rows is None and status == "generated" and "train_rows" in task.parameters:
        rows = {split: task.parameters[f"{split}_rows"] for split in ("train", "valid", "test")}
    return {
        "task": name,
        "tokens": task.max_tokens,
        "input": f"{task.form.vocabulary} symbols" if isinstance(task.form, Tokens) else f"{task.form.dim} values",
        "classes": task.classes,
        "labels_per_row": task.readout_tokens * task.outputs,
        "splits": rows,
        "data": status,
        "remedy": remedy,
    }


def _data(name: str, source: Source) -> tuple[str, str]:
    try:
        files = source.files()
    except InputError as error:
        download = f"; or reservoir prepare {name} --download" if name in FILES else ""
        return "missing", f"{error}{download}"
    return ("here" if files else "generated"), ""
