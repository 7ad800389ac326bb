"""The numbers of a finished fit or training that the page shows and that a reproduction keeps of its cells."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_pipelines.fitting.results import Result, score_matrix
from reservoir_pipelines.training.training_result import Training

MOST_POINTS = 60
"""Points of a curve that are stored: as many as a small picture can show."""

_TRAINED = "metric steps best_step valid_score test_score train_score converged_step diverged_step trained groups"


def fit_values(found: Mapping[str, Any], title: str, sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a fit, from its summary, the title of the chosen readout, and the scores of the sweep."""
    best, evaluation = found["best"], found["evaluation"]
    return {
        **{name: evaluation[name] for name in ("recall", "classes", "confusion", "reliability")},
        **{name: best[name] for name in ("metric", "test_score", "test_interval", "valid_score")},
        "curve": found["curve"],
        "raw_score": found["raw"]["test_score"] if found["raw"] else None,
        "readout": f"{title}, {best['readout']} {best['alpha'] or 0:.3g}",
        "tried": found["tried"],
        "sweep": sweep,
    }


def read_sweep(results: Path) -> dict[str, Any]:
    """Return the validation scores (columns, settings) of the table that a fit wrote, and the place of the best."""
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    tried = [line for line in lines if line["columns"] != "raw"] or lines
    found = [_result(line) for line in tried]
    columns, settings, scores = score_matrix(found)
    chosen = next((one for one, line in zip(found, tried, strict=True) if line["chosen"] == "1"), found[0])
    values = [[None if np.isnan(score) else score for score in row] for row in scores.tolist()]
    best = [columns.index(chosen.title), settings.index(chosen.setting)]
    return {"columns": columns, "settings": settings, "scores": values, "best": best}


def _result(line: Mapping[str, str]) -> Result:
    alpha = float(line["alpha"]) if line["alpha"] else None
    names = tuple(line["columns"].split("+"))
    return Result(columns=names, readout=line["readout"], alpha=alpha, valid_score=float(line["valid_score"]))


def train_values(done: Training) -> dict[str, Any]:
    """Return what is shown of a training, its curves thinned."""
    return {name: getattr(done, name) for name in _TRAINED.split()} | {
        "train_seconds": done.seconds,
        "swept": [{name: run[name] for name in run if name != "run"} for run in done.swept],
        "losses": _thinned(done.history, "loss"),
        "validations": _thinned(done.history, "valid_score"),
    }


def _thinned(history: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return at most `MOST_POINTS` points of a curve, each the mean over its stretch."""
    points = [(line["step"], line[name]) for line in history if line.get(name) is not None]
    if len(points) <= MOST_POINTS:
        return points
    parts = np.array_split(np.array(points, float), MOST_POINTS)
    return [(int(part[-1, 0]), round(float(part[:, 1].mean()), 5)) for part in parts]
