"""What ``reservoir tasks`` shows: every task, its shape, and whether its data is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.tasks import TASKS, Vectors, task_named
from reservoir_pipelines.root import data_folder


def task_table(data: Path | None = None, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return one row per named task.

    Parameters
    ----------
    data : Path, optional
        Folder of the publishers' files; else ``RESERVOIR_DATA``.
    cache : Path, optional
        Unused root of the cache, accepted like by the other stages.
    """
    folder = data_folder(data)
    rows = []
    for name in TASKS:
        source = task_named(name, data=folder)
        try:
            source.files()
            state = "here"
        except InputError as error:
            state = str(error)
        form = source.task.form
        rows.append(
            {
                "task": name,
                "input": f"{form.dim} values a token" if isinstance(form, Vectors) else f"{form.vocabulary} symbols",
                "tokens": source.task.max_tokens,
                "classes": source.task.classes,
                "rows": "",
                "data": state,
            }
        )
    return rows
