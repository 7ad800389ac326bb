"""What an extraction will compute: its columns, its rows, and the specification that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
from reservoir_cache import Spec

from reservoir import InputError
from reservoir.pooling import check_poolings
from reservoir.tasks.task import Tokens
from reservoir_pipelines.frozen import FrozenModel, Reservoir
from reservoir_pipelines.prepare import Prepared

PADDING = "right, masked"
LIMIT_SEED = 0


def choose_columns(model: FrozenModel, layers: str | Sequence[str], pool: str | Sequence[str]) -> tuple[str, ...]:
    """Return every wanted layer under every wanted pooling, in the order of the layers.

    Raises
    ------
    InputError
        If a layer or a pooling does not exist.
    """
    wanted = _names(layers)
    known = model.fpt.backbone.layers
    if wanted == ["all"]:
        wanted = list(known)
    model.fpt.backbone.check_layers(wanted)
    pools = list(dict.fromkeys(_names(pool)))
    check_poolings(pools)
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


def make_spec(
    prepared: Prepared, rows: Mapping[str, np.ndarray], model: FrozenModel, settings: Reservoir, store: str
) -> Spec:
    """Return everything that changes a number of the entry, and nothing else."""
    digest = hashlib.sha256(prepared.digest.encode())
    for split, index in sorted(rows.items()):
        digest.update(json.dumps([split, len(index)]).encode())
        digest.update(index.astype("<i8").tobytes())
    kind = "gaussian" if isinstance(prepared.task.form, Tokens) else "orthogonal"
    return Spec(
        task=prepared.task.to_dict(),
        data={"digest": digest.hexdigest(), "rows": {split: len(index) for split, index in rows.items()}},
        backbone={"family": model.family, "digest": model.digest},
        init={"kind": settings.init, "seed": settings.seed if settings.init == "random" else 0},
        input={"kind": kind, "seed": settings.seed, "gain": settings.gain, "patch": 1, "stride": 1},
        padding=PADDING,
        compute=model.compute,
        store=store,
    )


def _names(value: str | Sequence[str]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return [part.strip() for part in parts if part.strip()]
