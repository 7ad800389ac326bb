"""How a cell is run: the stage it names, called in this process, and what is kept of what it returns."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import FitOptions, TrainOptions
from reservoir_pipelines.attention_maps import attention
from reservoir_pipelines.card import card
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.files import folder_bytes
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.fitting.results import score_matrix
from reservoir_pipelines.pretraining.pretrain import pretrain
from reservoir_pipelines.reproduction.cell import Cell, command_line
from reservoir_pipelines.training.train import train

FIT = {item.name for item in fields(FitOptions)}
MOST_POINTS = 60
"""Points of a curve that are kept: what can be told apart in a small picture."""

MOST_TOKENS = 120
"""Tokens of an attention map that are kept; those of longer sequences are averaged."""


def run_cell(cell: Cell, folder: Path, folders: Mapping[str, str], places: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell and return what is kept of it; ``folders`` are those of the cells that it needs, by key."""
    settings = cell.resolved(folders)
    if "run" in settings:
        settings["run"] = Path(settings["run"])
    return _RUNNERS[cell.stage](cell, settings, folder, dict(places)) | {"made_with": _made_with()}


def _fit(cell: Cell, settings: dict[str, Any], _: Path, places: dict[str, Any]) -> dict[str, Any]:
    assert cell.task
    keep = {name: value for name, value in settings.items() if name not in FIT} | places
    of_fit = {name: value for name, value in settings.items() if name in FIT}
    on = {name: value for name, value in places.items() if name == "device"}
    features = extract(cell.task, **keep)
    done = fit(features, **of_fit, **on)
    columns, penalties, scores = score_matrix(done.table)
    evaluation = done.evaluation.to_dict()
    key = features.entry.name.rpartition("-")[2]
    there = {name: value for name, value in places.items() if name == "cache"}
    raw_alone = done.best.columns == ("raw",)
    return {
        "commands": [command_line("extract", cell.task, keep), command_line("fit", key, of_fit | on | there)],
        "folder": str(done.saved.parent),
        "bytes": 0 if raw_alone else features.bytes,
        "values": {
            **{name: evaluation[name] for name in ("recall", "classes", "confusion", "reliability")},
            "curve": done.to_dict()["curve"],
            "metric": done.best.metric,
            "test_score": done.best.test_score,
            "test_interval": done.best.test_interval,
            "valid_score": done.best.valid_score,
            "raw_score": done.raw.test_score if done.raw else None,
            "readout": f"{done.best.title}, {done.best.readout} {done.best.alpha or 0:.3g}",
            "tried": len(done.table),
            "fit_seconds": done.seconds,
            "extract_seconds": features.seconds,
            "reused": features.reused,
            "passes": features.computed_rows,
            "cost": done.seconds + (0 if raw_alone else features.seconds),
            "sweep": {"columns": columns, "penalties": penalties, "scores": _numbers(scores)},
        },
    }


def _train(cell: Cell, settings: dict[str, Any], _: Path, places: dict[str, Any]) -> dict[str, Any]:
    assert cell.task
    done = train(cell.task, **settings, **places)
    history = done.history
    losses = [(line["step"], line["loss"]) for line in history if line.get("loss") is not None]
    valid = [(line["step"], line["valid_score"]) for line in history if line.get("valid_score") is not None]
    step = settings.get("batch", TrainOptions().batch) * settings.get("accumulate", TrainOptions().accumulate)
    kept = (
        "metric",
        "steps",
        "best_step",
        "valid_score",
        "test_score",
        "train_score",
        "converged_step",
        "diverged_step",
        "trained",
    )
    return {
        "commands": [command_line("train", cell.task, settings | places)],
        "folder": done.run,
        "bytes": folder_bytes(done.path),
        "values": {
            **{name: getattr(done, name) for name in kept},
            "groups": list(done.groups),
            "train_seconds": done.seconds,
            "cost": sum(run["seconds"] for run in done.swept) or done.seconds,
            "passes": done.steps * step * max(1, len(done.swept)),
            "swept": [{name: run[name] for name in run if name != "run"} for run in done.swept],
            "losses": _thinned(losses),
            "validations": _thinned(valid),
        },
    }


def _attention(cell: Cell, settings: dict[str, Any], folder: Path, places: dict[str, Any]) -> dict[str, Any]:
    assert cell.task
    plot = folder / f"{cell.key}.png"
    done = attention(cell.task, out=plot, **settings, **places)
    return {
        "commands": [command_line("attention", cell.task, settings | places | {"out": plot})],
        "folder": str(plot),
        "bytes": plot.stat().st_size + done.arrays.stat().st_size,
        "values": {
            "diagonals": done.diagonal_strength,
            "map": _numbers(_coarse(np.nan_to_num(done.mean.mean(axis=0)))),
            "layer": done.layer,
            "rows": done.rows,
            "passes": done.rows,
            "lines": {str(back): what for back, what in done.diagonals.items()},
        },
    }


def _pretrain(cell: Cell, settings: dict[str, Any], folder: Path, places: dict[str, Any]) -> dict[str, Any]:
    out, on = folder / cell.key, {name: value for name, value in places.items() if name != "data"}
    corpus = settings.pop("corpus", None)
    if corpus is None:
        raise InputError("no text comes with this package; name yours: --override corpus=TEXT, a file or a folder")
    done = pretrain(corpus, out=out, **settings, **on)
    return {
        "commands": [command_line("pretrain", corpus, settings | on | {"out": out})],
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


def _backbone(cell: Cell, settings: dict[str, Any], folder: Path, places: dict[str, Any]) -> dict[str, Any]:
    name = settings.pop("backbone")
    plot, on = folder / f"{cell.key}.png", {name: value for name, value in places.items() if name == "cache"}
    done = card(name, out=plot, **settings, **on)
    return {
        "commands": [command_line("backbone", name, settings | on | {"out": plot})],
        "folder": str(plot),
        "bytes": plot.stat().st_size,
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


_RUNNERS: dict[str, Callable[[Cell, dict[str, Any], Path, dict[str, Any]], dict[str, Any]]] = {
    "fit": _fit,
    "train": _train,
    "attention": _attention,
    "pretrain": _pretrain,
    "backbone": _backbone,
}


def _made_with() -> dict[str, str]:
    import torch
    import transformers

    from reservoir.reservoir import choose_device

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "device": str(choose_device("auto")),
    }


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most so many points of a curve, each the mean over its stretch."""
    if len(points) <= MOST_POINTS:
        return points
    parts = np.array_split(np.array(points, float), MOST_POINTS)
    return [(int(part[-1, 0]), round(float(part[:, 1].mean()), 5)) for part in parts]


def _coarse(values: np.ndarray) -> np.ndarray:
    """Return a square map of at most so many tokens a side, by the means of squares."""
    side = len(values)
    factor = -(-side // MOST_TOKENS)
    whole = side // factor * factor
    return values[:whole, :whole].reshape(whole // factor, factor, whole // factor, factor).mean(axis=(1, 3))


def _numbers(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), 5) for v in row] for row in values]
