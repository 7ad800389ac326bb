"""What an extraction will compute: its columns, its rows, and the specification that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from reservoir_cache import Layout, Spec

from reservoir import InputError
from reservoir.features import column_shapes
from reservoir.pooling import check_poolings
from reservoir.reservoir import LoadedModel
from reservoir.tasks.own.each import WORD
from reservoir.tasks.task import Tokens, Vectors
from reservoir.tasks.windows import Windows
from reservoir_pipelines.preparation.prepare import Prepared

PADDING = "right, masked"
LIMIT_SEED = 0
# One batch holds about this many tokens: enough to keep the device busy, little enough to stay in its caches.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}
# A block is what a kill can lose, one file, and the rows among which those of like length share a batch: so many that
# padding is under 5% of the tokens, see `reservoir.features.token_batches`.
BLOCK_ROWS = {"cpu": 256, "cuda": 4096}
PICTURE_ROWS = 64  # of photographs, whose files have megabytes
BLOCK_BYTES = 2**28  # of float32: several blocks wait in the writer's queue


def choose_columns(model: LoadedModel, layers: str | Sequence[str], pool: str | Sequence[str]) -> tuple[str, ...]:
    """Return every wanted layer under every wanted pooling, in the order of the layers; all of them exist."""
    wanted = _names(layers)
    known = model.fpt.backbone.layers
    if wanted == ["all"]:
        wanted = list(known)
    model.fpt.backbone.check_layers(wanted)
    pools = list(dict.fromkeys(_names(pool)))
    check_poolings(pools)
    task = model.fpt.task
    if task.each and pools != ["all"]:
        raise InputError(
            f"--pool {','.join(pools)}: every {task.each} has a label of its own, so take all, or leave it out"
        )
    if task.each == WORD and not model.reader:
        raise InputError("labels of every word are for a model with a tokenizer of its own; name one by --backbone")
    if "cls" in pools and not (model.reader and model.reader.has_cls):
        raise InputError("--pool cls: the sequences do not begin with a class token; take first, last or mean")
    if not wanted or not pools:
        raise InputError("no columns: name at least one layer and one pooling")
    return tuple(f"{layer}/{pooling}" for layer in known if layer in wanted for pooling in pools)


def draw_rows(prepared: Prepared, limit: int | None) -> dict[str, np.ndarray]:
    """Return the row numbers that are used of each split, ascending: all, or a fixed seeded draw of ``limit``."""
    drawn = {}
    for split, count in prepared.rows.items():
        if limit is None or limit >= count:
            drawn[split] = np.arange(count)
        else:
            drawn[split] = np.sort(np.random.default_rng(LIMIT_SEED).permutation(count)[:limit])
    return drawn


def check_windows(prepared: Prepared, rows: Mapping[str, np.ndarray], windows: Windows) -> None:
    """Raise `InputError` naming the first row that is shorter than a window, before anything is computed."""
    for split, index in rows.items():
        lengths = prepared.split(split).lengths[index]
        if not windows.plain and not windows.counts(lengths.min()):
            row, shortest, patch = int(index[lengths.argmin()]), lengths.min(), windows.patch
            remedy = "take a smaller patch" if shortest < patch else "take smaller dilations, or --pad same"
            raise InputError(f"--patch {patch}: row {row} of {split} has {shortest} values; {remedy}")


def data_digest(prepared: Prepared, rows: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the prepared data and of the rows that are used of it."""
    digest = hashlib.sha256(prepared.digest.encode())
    for split, index in sorted(rows.items()):
        digest.update(json.dumps([split, len(index)]).encode())
        digest.update(index.astype("<i8").tobytes())
    return digest.hexdigest()


def make_spec(prepared: Prepared, rows: Mapping[str, np.ndarray], model: LoadedModel, store: str) -> Spec:
    """Return everything that changes a number of the entry, and nothing else."""
    return Spec(
        task=prepared.task.to_dict(),
        data={"digest": data_digest(prepared, rows), "rows": {split: len(index) for split, index in rows.items()}},
        **frozen_fields(model),
        store=store,
    )


def frozen_fields(model: LoadedModel) -> dict[str, Any]:
    """Return the fields of a specification that name a frozen map, whatever it is applied to."""
    settings = model.settings
    return {
        "backbone": {"family": model.family, "digest": model.digest, **_arithmetic(model)},
        "init": {"kind": settings.init, "seed": 0 if settings.init == "pretrained" else settings.seed},
        "input": _way_in(model),
        "padding": PADDING,
        "compute": model.compute,
    }


def _arithmetic(model: LoadedModel) -> dict[str, str]:
    """Return how GELU by a tangent is computed, in models that have it: the last bits of features hang on that."""
    from torch import nn

    gelus = (part for part in model.fpt.backbone.modules() if isinstance(part, nn.GELU))
    return {"gelu": "one step"} if any(part.approximate == "tanh" for part in gelus) else {}


def _way_in(model: LoadedModel) -> dict[str, Any]:
    """Return what names the way in: the digests of a model's own, or how it is drawn and cut into windows."""
    settings = model.settings
    if model.reader:
        long = {} if settings.long == "cut" else {"long": settings.long}
        return {"kind": "native", "seed": 0, "gain": 1.0, "patch": 1, "stride": 1, **model.input_digests, **long}
    return {
        "kind": "gaussian" if isinstance(model.fpt.task.form, Tokens) else settings.input,
        "seed": settings.seed,
        "gain": settings.gain,
        "patch": settings.patch,
        "stride": settings.stride,
    } | _further(model.windows)


def _further(windows: Windows) -> dict[str, Any]:
    """Return what is said of windows beyond patch and stride, only where it is not the plain way."""
    said = {"dilations": list(windows.dilations), "pad": windows.pad, "normalise": windows.normalise}
    plain = {"dilations": [1], "pad": "valid", "normalise": "channel"}
    return {name: value for name, value in said.items() if value != plain[name]}


def choose_layout(model: LoadedModel, columns: Sequence[str], batch_rows: int | None) -> Layout:
    """Return the rows of a block and of a batch for a new entry, from the device and the size of a row."""
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    task = model.fpt.task
    shapes = column_shapes(task, model.fpt.backbone.width, columns).values()
    tokens = model.reader.row_tokens if model.reader else task.max_tokens
    row_bytes = 4 * sum(tokens * width for tokens, width in shapes)
    if model.reader and isinstance(task.form, Vectors):  # all that enters the model is made before its first batch
        row_bytes = max(row_bytes, 4 * tokens * task.form.dim)
    block_rows = max(1, min(PICTURE_ROWS if task.pictures else BLOCK_ROWS[kind], BLOCK_BYTES // row_bytes))
    return Layout(
        block_rows=block_rows,
        batch_rows=min(block_rows, batch_rows or max(1, BATCH_TOKENS[kind] // tokens)),
    )


def _names(value: str | Sequence[str]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return [part.strip() for part in parts if part.strip()]
