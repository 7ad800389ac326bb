"""The table of the named tasks and their data."""

from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.tasks import SPLITS, TASKS, Tokens
from reservoir_pipelines.data.own_data import open_source
from reservoir_pipelines.files import data_folder
from reservoir_pipelines.preparation.downloads import DOWNLOADS
from reservoir_pipelines.preparation.folders import latest, settings_folder


def task_table(data: Path | None = None, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return one row per named task, with its default parameters.

    ``tokens`` is the length of the longest sequence, ``input`` the form of a token ("16 values", "25
    symbols"), ``splits`` the rows of each split or None, and ``data`` "generated", "here", "prepared"
    or "missing".
    """
    folder, table = data_folder(data), []
    for name in TASKS:
        source = open_source(name, data=folder)
        task, earlier = source.task, latest(settings_folder(name, source, cache), verify=False)
        rows, remedy = earlier.rows if earlier else None, ""
        try:
            status = "here" if source.files() else "generated"
        except InputError as error:
            status = "prepared" if rows else "missing"
            if not rows:
                remedy = (
                    f"{error}; or reservoir prepare {name} --download" if name in DOWNLOADS else str(error)
                )
        if rows is None and status == "generated" and "train_rows" in task.parameters:
            rows = {split: task.parameters[f"{split}_rows"] for split in SPLITS}
        form = task.form
        table.append(
            {
                "task": name,
                "tokens": task.max_tokens,
                "input": f"{form.vocabulary} symbols" if isinstance(form, Tokens) else f"{form.dim} values",
                "classes": task.classes,
                "labels_per_row": task.readout_tokens * task.outputs,
                "splits": rows,
                "data": status,
                "remedy": remedy,
            }
        )
    return table
