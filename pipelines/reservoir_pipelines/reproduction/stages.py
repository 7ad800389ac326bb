"""Running a cell: its stage is called in this process, and part of its result is returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import folder_bytes, refuse_links, untracked

from reservoir.errors import InputError
from reservoir.option_fields import typed
from reservoir.options import (
    CacheOptions,
    ExtractOptions,
    FitOptions,
    ModelOptions,
    OutOptions,
    PlaceOptions,
    TaskOptions,
    TrainOptions,
)
from reservoir.reservoir import choose_device
from reservoir_pipelines.attention_maps import attention
from reservoir_pipelines.card import card
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.pretraining.pretrain import pretrain
from reservoir_pipelines.reports.views import fit_values, read_sweep, train_values
from reservoir_pipelines.reproduction.cell import Cell, group, groups
from reservoir_pipelines.training.train import train
from reservoir_pipelines.workspace import versions

MOST_TOKENS = 120
"""Largest side of a saved attention map, in tokens; larger maps are averaged over squares."""


def run_cell(cell: Cell, folder: Path, folders: Mapping[str, str], places: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell and return its result; ``folders`` are those of the cells that it needs, by their keys."""
    refuse_links(folder / cell.key)
    found = _RUNNERS[cell.stage](cell.task or "", {**cell.resolved(folders), **places}, folder / cell.key)
    made_with = versions("torch", "transformers", "numpy") | {"device": str(choose_device("auto"))}
    return found | {"made_with": made_with}


def _fit(task: str, settings: dict[str, Any], _: Path) -> dict[str, Any]:
    asked, of_fit = group(ExtractOptions, settings), group(FitOptions, settings)
    place = group(PlaceOptions, settings)
    with untracked():
        features = extract(task, asked)
    done = fit(features, of_fit, place)
    raw_alone = done.best.columns == ("raw",)
    return {
        "commands": [typed("extract", [task], asked), typed("fit", [features.store.entry.key[:16]], of_fit, place)],
        "folder": str(done.saved.parent),
        "bytes": 0 if raw_alone else features.bytes,
        "values": fit_values(done.to_dict(), done.best.title, read_sweep(done.results))
        | {
            "fit_seconds": done.seconds,
            "extract_seconds": features.seconds,
            "reused": features.reused,
            "passes": features.computed_rows,
            "cost": done.seconds + (0 if raw_alone else features.seconds),
        },
    }


def _train(task: str, settings: dict[str, Any], _: Path) -> dict[str, Any]:
    given = groups("train", settings)
    done, recipe = train(task, *given), group(TrainOptions, settings)
    return {
        "commands": [typed("train", [task], *given)],
        "folder": done.run,
        "bytes": folder_bytes(done.path),
        "values": train_values(done)
        | {
            "cost": sum(run["seconds"] for run in done.swept) or done.seconds,
            "passes": done.steps * recipe.batch * recipe.accumulate * max(1, len(done.swept)),
        },
    }


def _attention(task: str, settings: dict[str, Any], place: Path) -> dict[str, Any]:
    plot = place.with_suffix(".png")
    given = groups("attention", settings | {"out": plot})
    done = attention(task, *given)
    shown = _coarse(np.nan_to_num(done.mean.mean(axis=0)))
    return {
        "commands": [typed("attention", [task], *given)],
        "folder": str(plot),
        "bytes": sum(path.stat().st_size for path in (plot, done.arrays) if path.exists()),
        "values": {
            "diagonals": done.diagonal_strength,
            "map": shown.round(5).tolist(),
            "layer": done.layer,
            "rows": done.rows,
            "passes": done.rows,
            "lines": {str(back): what for back, what in done.diagonals.items()},
        },
    }


def _pretrain(_: str, settings: dict[str, Any], out: Path) -> dict[str, Any]:
    corpus = settings.get("corpus")
    if corpus is None:
        raise InputError("this package has no text; pass --override corpus=TEXT, a file or a folder")
    _, shape, recipe, place = groups("pretrain", settings)
    done = pretrain(corpus, shape, recipe, place, out=out)
    return {
        "commands": [typed("pretrain", [corpus], shape, recipe, place, OutOptions(out=out))],
        "folder": str(out),
        "bytes": folder_bytes(out),
        "values": {
            "test_score": done.test_accuracy,
            "test_bits": done.test_bits,
            "train_seconds": done.seconds,
            "cost": done.seconds,
            "steps": done.steps,
        },
    }


def _backbone(_: str, settings: dict[str, Any], place: Path) -> dict[str, Any]:
    name, plot = settings.pop("backbone"), place.with_suffix(".png")
    settings.pop("device", None)  # `card` has no device
    model, root, out = group(ModelOptions, settings), group(CacheOptions, settings), OutOptions(out=plot)
    done = card(name, model, TaskOptions(), root, out)
    return {
        "commands": [typed("backbone", [name], model, root, out)],
        "folder": str(plot),
        "bytes": plot.stat().st_size if plot.exists() else 0,
        "values": {
            "blocks": done.depth,
            "width": done.width,
            "heads": done.heads,
            "parameters": done.whole,
            "weight_deviation": done.weight_deviation,
            "bias_deviation": done.bias_deviation,
            "deviations": done.deviations,
        },
    }


_RUNNERS: dict[str, Callable[[str, dict[str, Any], Path], dict[str, Any]]] = {
    "fit": _fit,
    "train": _train,
    "attention": _attention,
    "pretrain": _pretrain,
    "backbone": _backbone,
}


def _coarse(values: np.ndarray) -> np.ndarray:
    """Return a square map with at most `MOST_TOKENS` a side, averaged over squares."""
    side = len(values)
    factor = -(-side // MOST_TOKENS)
    whole = side // factor * factor
    return values[:whole, :whole].reshape(whole // factor, factor, whole // factor, factor).mean(axis=(1, 3))
