"""Import a folder of an inference engine: the hidden states of each request are pooled into an entry of a task."""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, Layout, rows_per_block

from reservoir.column import Column
from reservoir.errors import InputError
from reservoir.option_fields import typed
from reservoir.options import CacheOptions, LayerOptions, TaskOptions
from reservoir_pipelines.extraction.engine_folder import (
    EngineFolder,
    EngineModel,
    files_of_rows,
    parse_layers,
    request_columns,
    request_shape,
)
from reservoir_pipelines.extraction.entries import data_record, write_labels
from reservoir_pipelines.extraction.extract import Extraction, origin_of
from reservoir_pipelines.extraction.import_features import (
    UNKNOWN_FORM,
    RowRange,
    imported_spec,
    write_entry,
)
from reservoir_pipelines.files import cache_root, versions
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, data_spec, draw_rows

DEFAULT_POOLINGS = "mean,last"  # what `extract` stores of a causal language model by default


def import_requests(
    folder: Path,
    task: str | None,
    name: str | None,
    revision: str | None,
    columns: LayerOptions,
    options: TaskOptions,
    place: CacheOptions,
) -> Extraction:
    """Write the pooled hidden states of a folder of requests as an entry of a task; see `api.import_features`."""
    started = time.monotonic()
    if task is None or name is None:
        raise InputError(
            f"{folder}: requests of an engine need --task and --name",
            "name the table of their rows and labels, and the model",
        )
    flags = {"--task": task, "--name": name, "--revision": revision, **_flags_of(columns)}
    arguments = [str(folder)]
    for flag, value in flags.items():
        if value is not None:
            arguments += [flag, value]
    call = {
        "command": typed("import-features", arguments, options),
        "file": str(folder.resolve()),
        "task": origin_of(task),
        "settings": options.to_dict(),
    }
    root = cache_root(place.cache)
    prepared = prepare(task, options, cache=root)
    if prepared.task.labels_each_token or prepared.task.labels_text_tokens:
        raise InputError(f"{folder}: the task labels every token", "give a task with one label per row")
    layers = None if columns.layers is None else parse_layers(columns.layers)
    engine_folder = _open_folder(folder, prepared, skips_bad_rows=options.skip_bad_rows)
    model = _model_of(engine_folder, name, revision, layers)
    parsed_columns = request_columns(model.layers, columns.pool or DEFAULT_POOLINGS)
    notify(*_notes(engine_folder, model))
    entry, written_rows = _write(root, engine_folder, model, parsed_columns, prepared, call)
    column_names = sorted(column.name for column in parsed_columns)
    return Extraction.of(entry, column_names, written_rows, started)


def _model_of(
    engine_folder: EngineFolder, name: str, revision: str | None, layers: tuple[int, ...] | None
) -> EngineModel:
    """Return the model of a folder; refuse the folder if the user does not name as many ``layers`` as it has."""
    if layers is None or len(layers) != engine_folder.layers:
        problem = "without --layers" if layers is None else f"but --layers names {len(layers)}"
        raise InputError(
            f"{engine_folder.folder}: its files have {engine_folder.layers} layers, {problem}",
            "name those of eagle_aux_hidden_state_layer_ids, which the files do not have",
        )
    return EngineModel(
        name=name,
        revision=revision,
        layers=layers,
        width=engine_folder.width,
        first_tokens=engine_folder.first_tokens,
    )


def _write(
    root: Path,
    engine_folder: EngineFolder,
    model: EngineModel,
    columns: Sequence[Column],
    prepared: Prepared,
    call: Mapping[str, Any],
) -> tuple[Entry, int]:
    """Pool the requests into an entry, block by block; return it and the number of rows written.

    The requests of the folder are those of all rows of ``prepared``, split by split.
    """
    shapes = {column.name: request_shape(column, engine_folder.width) for column in columns}
    row_bytes = 4 * sum(tokens * width for tokens, width in shapes.values())  # of float32
    block_rows = rows_per_block(row_bytes, 1, max(prepared.rows.values()))
    # The model, its revision and the layers are part of the key, because the values do not tell them.
    identity = json.dumps([model.name, model.revision, model.layers, engine_folder.digest])
    row_numbers = draw_rows(prepared, limit=None)
    spec = imported_spec(
        prepared.task.to_dict(),
        data_spec(prepared, row_numbers),
        hashlib.sha256(identity.encode()).hexdigest(),
        UNKNOWN_FORM,
    )
    record = {
        "call": call,
        "engine": vars(model),
        "weights": f"those of an inference engine, layers {', '.join(map(str, model.layers))}",
        "versions": versions("h5py", "numpy", "safetensors", "torch"),
        **data_record(prepared),
    }
    # The number of the first request of each split, and that of all requests, which has no split.
    first_numbers = itertools.accumulate(prepared.rows.values(), initial=0)
    first_request_of = dict(zip(prepared.rows, first_numbers, strict=False))

    def read_features(rows: RowRange, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the pooled hidden states of the requests of some rows; see `write_entry`."""
        first = first_request_of[rows.split]
        return engine_folder.pooled(first + rows.start, first + rows.stop, model.layers, names)

    return write_entry(
        root,
        _title(model.name),
        spec,
        Layout(block_rows=block_rows, batch_rows=block_rows),
        shapes,
        record,
        partial(write_labels, prepared=prepared, rows=row_numbers),
        read_features,
    )


def _open_folder(folder: Path, prepared: Prepared, *, skips_bad_rows: bool) -> EngineFolder:
    """Return the requests of the rows of prepared data, in the order of its splits."""
    ids = {split: prepared.split(split).ids for split in prepared.rows}
    # The engine may have had the texts of rows that the prepared data lacks.
    may_lack_rows = skips_bad_rows or sum(prepared.dropped.values()) > 0
    files_of_split = files_of_rows(folder, ids, more_allowed=may_lack_rows)
    return EngineFolder(folder, [*itertools.chain.from_iterable(files_of_split.values())])


def _flags_of(columns: LayerOptions) -> dict[str, str | None]:
    """Return the options that name columns by their flags, lists joined by commas; None for those not given."""
    flags: dict[str, str | None] = {}
    for flag, names in (("--layers", columns.layers), ("--pool", columns.pool)):
        flags[flag] = names if names is None or isinstance(names, str) else ",".join(names)
    return flags


def _title(name: str) -> str:
    """Return the name of a model as a part of a folder's name, such as ``Qwen-Qwen3-8B``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "engine"


def _notes(engine_folder: EngineFolder, model: EngineModel) -> list[str]:
    """Return what to print of a folder: its requests, the meaning of its layers, and whether `predict` can check it."""
    tokens = [request.tokens for request in engine_folder.requests]
    notes = [
        f"{engine_folder.folder}: {len(tokens):,} requests of {min(tokens):,} to {max(tokens):,} tokens; layers "
        f"{', '.join(map(str, model.layers))} are {', '.join(model.layer_names)}"
    ]
    if not engine_folder.is_causal:
        notes.append(
            f"{engine_folder.folder}: requests that begin with the same token have different states of it, because "
            "several models wrote the files or the model is not causal; predict cannot recognise the model in other "
            "folders"
        )
    return notes
