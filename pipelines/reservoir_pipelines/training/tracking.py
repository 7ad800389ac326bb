"""Experiment trackers; each package is imported only if ``--track`` names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from reservoir.errors import InputError

TRACKERS = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}

Log = Callable[[int, Mapping[str, float]], object]
"""Receives the step and the numbers of a step or a validation."""


@contextmanager
def tracking(name: str | None, run: Path, config: Mapping[str, Any]) -> Iterator[Log | None]:
    """Open a tracker, a key of `TRACKERS`, within the context; it is named after the run and its folder."""
    if name is None:
        yield None
        return
    if name not in TRACKERS:
        raise InputError(f"--track {name}: choose among {', '.join(TRACKERS)}")
    try:
        package = import_module(TRACKERS[name])
    except ImportError as error:
        raise InputError(f"--track {name}: not installed; pip install 'reservoir-features[{name}]'") from error
    log, close = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}[name](package, run, config)
    try:
        yield log
    finally:
        close()


def _tensorboard(package: Any, run: Path, _config: Mapping[str, Any]) -> tuple[Log, Callable[[], object]]:
    writer = package.SummaryWriter(str(run / "tensorboard"))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(package: Any, run: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], object]]:
    started = package.init(
        project=f"reservoir-{run.parent.name}", name=run.name, id=run.name, resume="allow", config=dict(config)
    )
    return lambda step, values: started.log(dict(values), step=step), started.finish


def _mlflow(package: Any, run: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], object]]:
    if "MLFLOW_TRACKING_URI" not in os.environ:
        package.set_tracking_uri((run.parent / "mlflow").resolve().as_uri())
    package.set_experiment(f"reservoir-{run.parent.name}")
    package.start_run(run_name=run.name)
    package.log_params({name: str(value)[:250] for name, value in config.items()})
    return lambda step, values: package.log_metrics(dict(values), step=step), package.end_run
