"""The rows that an extraction reads, and the specification that names its entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from reservoir_cache import Spec

from reservoir import InputError
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Tokens
from reservoir.tasks.windows import Windows
from reservoir_pipelines.preparation.prepared import Prepared

PADDING = "right, masked"
LIMIT_SEED = 0


def draw_rows(prepared: Prepared, limit: int | None) -> dict[str, np.ndarray]:
    """Return the row numbers used of each split, ascending: all, or a fixed random draw of ``limit``."""
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
            remedy = "use a smaller patch" if shortest < patch else "use smaller dilations, or --pad same"
            raise InputError(f"--patch {patch}: row {row} of {split} has {shortest} values; {remedy}")


def data_digest(prepared: Prepared, rows: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the prepared data and of the row numbers used."""
    digest = hashlib.sha256(prepared.digest.encode())
    for split, index in sorted(rows.items()):
        digest.update(json.dumps([split, len(index)]).encode())
        digest.update(index.astype("<i8").tobytes())
    return digest.hexdigest()


def make_spec(prepared: Prepared, rows: Mapping[str, np.ndarray], model: LoadedModel, store: str) -> Spec:
    """Return everything that changes a number in the entry, and nothing else."""
    return Spec(
        task=prepared.task.to_dict(),
        data={"digest": data_digest(prepared, rows), "rows": {split: len(index) for split, index in rows.items()}},
        **frozen_fields(model),
        store=store,
    )


def frozen_fields(model: LoadedModel) -> dict[str, Any]:
    """Return the fields of a specification that name a frozen model, whatever it is applied to."""
    settings = model.settings
    return {
        "backbone": {"family": model.family, "digest": model.digest, **_arithmetic(model)},
        "init": {"kind": settings.init, "seed": 0 if settings.init == "pretrained" else settings.seed},
        "input": _input_fields(model),
        "padding": PADDING,
        "compute": model.compute,
    }


def _arithmetic(model: LoadedModel) -> dict[str, str]:
    """Return how GELU with tanh is computed, in models that have it: the last bits of features depend on it."""
    from torch import nn

    gelus = (part for part in model.fpt.backbone.modules() if isinstance(part, nn.GELU))
    return {"gelu": "one step"} if any(part.approximate == "tanh" for part in gelus) else {}


def _input_fields(model: LoadedModel) -> dict[str, Any]:
    """Return what names the input: the digests of native input, or how a drawn one is drawn and cut into windows."""
    settings, windows = model.settings, model.windows
    if model.reader:
        long = {} if settings.long == "cut" else {"long": settings.long}
        return {"kind": "native", "seed": 0, "gain": 1.0, "patch": 1, "stride": 1, **model.input_digests, **long}
    # These are part of the key only where they differ from the plain ones, as keys had no such fields at first.
    further = {"dilations": list(windows.dilations), "pad": windows.pad, "normalise": windows.normalise}
    plain = {"dilations": [1], "pad": "valid", "normalise": "channel"}
    return {
        "kind": "gaussian" if isinstance(model.fpt.task.form, Tokens) else settings.input,
        "seed": settings.seed,
        "gain": settings.gain,
        "patch": settings.patch,
        "stride": settings.stride,
    } | {name: value for name, value in further.items() if value != plain[name]}
