"""Sweeps: several trainings with different numbers; only the best on validation is scored on the test rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from reservoir.errors import InputError
from reservoir.options import TrainOptions
from reservoir_pipelines.output import notify
from reservoir_pipelines.training.training_result import Training


class TrainOnce(Protocol):
    """A function that trains once, and scores the test split unless ``test`` is False."""

    def __call__(self, options: TrainOptions, *, test: bool = True) -> Training:
        """Return the result."""
        ...


def sweep(train: TrainOnce, options: TrainOptions) -> Training:
    """Train with each combination of values and return the result with the best validation score.

    Runs that were stopped continue. Ties go to the smaller validation loss, then to the first. A run that diverges
    counts with its best validation before that.
    """
    grid = list(_grid(options))
    runs = []
    for number, (values, one) in enumerate(grid, start=1):
        notify(f"sweep {number} of {len(grid)}: {_text(values)}")
        runs.append((train(one, test=False), values, one))
    runs.sort(key=lambda run: _merit(run[0]), reverse=True)
    best, values, chosen = runs[0]
    if best.best_step is None:
        raise InputError(
            f"--sweep {_text(options.sweep or {})}: every run diverged before its first validation; try smaller values"
        )
    notify(f"{_text(values)} has the best validation score of {len(runs)} runs")
    return replace(train(chosen), swept=tuple(_row(run, values) for run, values, _ in runs))


def _grid(options: TrainOptions) -> Iterator[tuple[dict[str, float], TrainOptions]]:
    """Yield each combination of values with its options; with ``--run`` each has its own folder inside."""
    swept = options.sweep or {}
    lists = [each if isinstance(each, list | tuple) else [each] for each in swept.values()]
    for numbers in itertools.product(*lists):
        values = dict(zip(swept, numbers, strict=True))
        folder = options.run and options.run / "-".join(f"{name}-{value:g}" for name, value in values.items())
        settings: dict[str, Any] = {**values, "sweep": None, "resume": True, "run": folder, "on_divergence": "report"}
        yield values, replace(options, **settings)


def _merit(done: Training) -> tuple[float, float]:
    if done.valid_score is None or done.valid_loss is None:
        return -math.inf, -math.inf
    return done.valid_score, -done.valid_loss


def _row(done: Training, values: dict[str, float]) -> dict[str, Any]:
    kept = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
    return {**values, **{name: getattr(done, name) for name in kept}}


def _text(values: Any) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float | int) else f"{name} {value}" for name, value in values.items()
    )
