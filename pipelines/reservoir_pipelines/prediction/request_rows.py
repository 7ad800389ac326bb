"""The rows of a folder of an inference engine, for a readout that was fitted on features of such a folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table_labels import labels_from_table
from reservoir_pipelines.extraction.engine_files import is_engine_folder, request_files
from reservoir_pipelines.extraction.engine_folder import EngineFolder
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import notify


def request_rows(folder: Path, bundle: Bundle, labels: str | None) -> tuple[Rows, EngineFolder]:
    """Return a row for each request of a folder, and its requests in the same order.

    The values ``x`` of the rows are placeholders. ``labels`` is a table of labels, joined by the names of the requests.
    Raise `InputError` if the readout reads other features as well, or if the folder has another model or other layers.
    """
    engines = [part.engine for part in bundle.parts]
    if any(engine is None or engine != engines[0] for engine in engines) or engines[0] is None:
        names = ", ".join(part.columns[0] for part in bundle.parts)
        raise InputError(
            f"{folder}: the readout reads {names}, which are not the requests of one folder alone",
            "fit columns of one imported folder",
        )
    if not is_engine_folder(folder):
        raise InputError(
            f"{folder}: the readout reads hidden states of {engines[0].title}, not this kind of data",
            "give a folder that the engine wrote, with a .safetensors file for each request",
        )
    files = request_files(folder)
    requests = EngineFolder(folder, [*files.values()])
    notify(requests.check_model(engines[0]))
    names = [*files]
    lengths = np.array([request.tokens for request in requests.requests], np.int32)
    rows = Rows(x=np.zeros((len(names), 1)), lengths=lengths, ids=np.array(names))
    if labels:
        options = as_group({"labels": labels, "skip_bad_rows": True}, OwnDataOptions)
        bad = BadRows(str(folder), [f"request {name}" for name in names])
        joined = labels_from_table(options, names, bad, is_new=True)
        bad.readable()  # refuses requests without a row
        notify(*joined.notes)
        rows = replace(rows, y=joined.arrays["y"], groups=joined.arrays.get("groups"))
    return rows, requests
