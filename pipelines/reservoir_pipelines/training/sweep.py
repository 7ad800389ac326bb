"""Train with each combination of some options' values, and choose the one with the best validation score."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reservoir.errors import InputError
from reservoir.options import TrainOptions
from reservoir.tasks import TASKS, task_named
from reservoir_pipelines.output import notify
from reservoir_pipelines.training.job import Request
from reservoir_pipelines.training.result import Training

REPORTED = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
"""Fields of a result that a row of the sweep shows."""


@dataclass(frozen=True)
class _Trial:
    """One combination of values, and the result of training with it, which never read the test rows."""

    values: dict[str, Any]
    request: Request
    result: Training

    @property
    def rank(self) -> tuple[float, float]:
        """Validation score, then the negative loss: the best trial has the largest rank.

        A run that diverged has the score of its best validation before the divergence.
        """
        score = self.result.valid_score
        return -math.inf if score is None else score, -(self.result.valid_loss or 0.0)

    @property
    def row(self) -> dict[str, Any]:
        """The line of this trial in the result."""
        return {**self.values, **{name: getattr(self.result, name) for name in REPORTED}}


def sweep(request: Request, train_once: Callable[..., Training]) -> Training:
    """Train with each combination of values without test rows; then score the best one on the test rows.

    ``train_once`` is called with a request, and with ``test=False`` for all but the best.
    """
    options = request.options
    is_named = request.task in TASKS
    if is_named and (obstacle := task_named(request.task, **request.source.given).no_selection):
        raise InputError(
            f"--sweep of {request.task}: {obstacle.reason}, which would choose the value",
            f"remove --sweep, or {obstacle.remedy}",
        )
    combinations = _combinations(options)
    trials = list[_Trial]()
    for number, values in enumerate(combinations, start=1):
        notify(f"sweep {number} of {len(combinations)}: {_text(values)}")
        trial_request = replace(request, options=_options_of(options, values))
        trials.append(_Trial(values, trial_request, train_once(trial_request, test=False)))
    trials.sort(key=lambda trial: trial.rank, reverse=True)
    best = trials[0]
    if best.result.best_step is None:
        raise InputError(
            f"--sweep {', '.join(best.values)}: every run diverged before its first validation",
            "try smaller values",
        )
    notify(f"{_text(best.values)} has the best validation score")
    return replace(train_once(best.request), swept=tuple(trial.row for trial in trials))


def _combinations(options: TrainOptions) -> list[dict[str, Any]]:
    """Return every combination of the values of the swept options, by name."""
    swept = options.sweep or {}
    lists = [values if isinstance(values, list | tuple) else [values] for values in swept.values()]
    combinations = [dict(zip(swept, values, strict=True)) for values in itertools.product(*lists)]
    for values in combinations:
        replace(options, **values)  # refuses a wrong value before the first run
    return combinations


def _options_of(options: TrainOptions, values: dict[str, Any]) -> TrainOptions:
    """Return the options of one run, which has a folder of its own below ``--run``."""
    folder = options.run and options.run / "-".join(f"{name}-{value:g}" for name, value in values.items())
    settings = {**values, "sweep": None, "resume": True, "run": folder, "on_divergence": "report"}
    return replace(options, **settings)


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
