"""Where the numbers of a run may go besides its own files; each package is imported only if it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from reservoir.errors import InputError

TRACKERS = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


class Tracker(Protocol):
    """Takes the numbers of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step or a validation."""
        ...


@contextmanager
def tracking(name: str | None, run: Path, config: Mapping[str, Any]) -> Iterator[Tracker | None]:
    """Open a tracker, a key of `TRACKERS`, for the time of the context; it is named after the run and its folder."""
    if name is None:
        yield None
        return
    if name not in TRACKERS:
        raise InputError(f"--track {name}: choose among {', '.join(TRACKERS)}")
    try:
        package = import_module(TRACKERS[name])
    except ImportError as error:
        raise InputError(f"--track {name}: not installed; pip install 'reservoir-features[{name}]'") from error
    tracker = {"tensorboard": _TensorBoard, "wandb": _WandB, "mlflow": _MLflow}[name](package, run, config)
    try:
        yield tracker
    finally:
        tracker.close()


class _TensorBoard:
    def __init__(self, package: Any, run: Path, _config: Mapping[str, Any]) -> None:
        self._writer = package.SummaryWriter(str(run / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, package: Any, run: Path, config: Mapping[str, Any]) -> None:
        self._run = package.init(
            project=f"reservoir-{run.parent.name}", name=run.name, id=run.name, resume="allow", config=dict(config)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, package: Any, run: Path, config: Mapping[str, Any]) -> None:
        self._package = package
        if "MLFLOW_TRACKING_URI" not in os.environ:
            package.set_tracking_uri((run.parent / "mlflow").resolve().as_uri())
        package.set_experiment(f"reservoir-{run.parent.name}")
        package.start_run(run_name=run.name)
        package.log_params({name: str(value)[:250] for name, value in config.items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._package.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._package.end_run()
