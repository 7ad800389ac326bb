"""Several trainings that differ in a few numbers: validation chooses one, whose test score alone is looked at."""

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


class Trains(Protocol):
    """Trains once with options, and scores the test split if asked."""

    def __call__(self, options: TrainOptions, *, test: bool = True) -> Training:
        """Return what the training came to."""
        ...


def sweep(train: Trains, options: TrainOptions) -> Training:
    """Train with each combination of values, going on where one was stopped; return the best on the validation split.

    Of equal ones the smaller validation loss is preferred, and then the first. A run that diverges counts with what it
    had before.
    """
    grid = list(_grid(options))
    runs = []
    for number, (said, one) in enumerate(grid, start=1):
        notify(f"sweep {number} of {len(grid)}: {_text(said)}")
        runs.append((train(one, test=False), said, one))
    runs.sort(key=lambda run: _merit(run[0]), reverse=True)
    best, said, chosen = runs[0]
    if best.best_step is None:
        raise InputError(
            f"--sweep {_text(options.sweep or {})}: every run diverged before it was validated; try smaller"
        )
    notify(f"{_text(said)} does best on the validation split, of {len(runs)} runs")
    return replace(train(chosen), swept=tuple(_row(run, values) for run, values, _ in runs))


def _grid(options: TrainOptions) -> Iterator[tuple[dict[str, float], TrainOptions]]:
    """Yield each combination of values with the options that it makes; a named folder has one folder for each."""
    swept = options.sweep or {}
    lists = [each if isinstance(each, list | tuple) else [each] for each in swept.values()]
    for values in itertools.product(*lists):
        said = dict(zip(swept, values, strict=True))
        folder = options.run and options.run / "-".join(f"{name}-{value:g}" for name, value in said.items())
        settings: dict[str, Any] = {**said, "sweep": None, "resume": True, "run": folder, "on_divergence": "report"}
        yield said, replace(options, **settings)


def _merit(done: Training) -> tuple[float, float]:
    if done.valid_score is None or done.valid_loss is None:
        return -math.inf, -math.inf
    return done.valid_score, -done.valid_loss


def _row(done: Training, said: dict[str, float]) -> dict[str, Any]:
    kept = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
    return {**said, **{name: getattr(done, name) for name in kept}}


def _text(said: Any) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float | int) else f"{name} {value}" for name, value in said.items()
    )
