"""A model some of whose groups are trained: made for training, and loaded again from a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from reservoir import InputError
from reservoir.groups import default_groups, unfreeze
from reservoir.tasks import encode
from reservoir.tasks.task import Scaling, Split, Task
from reservoir_pipelines.checkpoint import load_trained
from reservoir_pipelines.frozen import FrozenModel, Reservoir, choose_compute, load_frozen
from reservoir_pipelines.prepared import scaling_from_json
from reservoir_pipelines.run import Run
from reservoir_pipelines.scoring import run_batches
from reservoir_pipelines.stream import raw_rows

if TYPE_CHECKING:
    from reservoir_pipelines.prediction import Prediction

BATCH_ROWS = 32


def load_trainable(
    task: Task, settings: Reservoir, groups: Sequence[str] | None, device: str, compute: str
) -> tuple[FrozenModel, tuple[str, ...]]:
    """Make a model some of whose groups can be trained.

    Parameters
    ----------
    task : Task
    settings : Reservoir
        Backbone, init, seed and gain.
    groups : sequence of str, optional
        What is trained; by default `reservoir.groups.default_groups`.
    device, compute : str
        As for `load_frozen`; only products with frozen weights are in bfloat16.

    Returns
    -------
    FrozenModel
        With the trained parameters unfrozen.
    tuple of str
        The groups.
    """
    model = load_frozen(task, settings, device, "float32")
    chosen = tuple(groups or default_groups(model.fpt.backbone))
    unfreeze(model.fpt, chosen)
    backbone = model.fpt.backbone
    backbone.set_compute(getattr(torch, choose_compute(compute, model.device)))
    return replace(model, compute=str(backbone.compute).removeprefix("torch.")), chosen


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """The model of a run, with the weights that did best on the validation split.

    Parameters
    ----------
    model : FrozenModel
        In evaluation mode, on its device.
    task : Task
        The task as prepared.
    scaling : Scaling, optional
        From stored values to what the model sees.
    checkpoint : Path
        Where the trained weights come from.
    """

    model: FrozenModel
    task: Task
    scaling: Scaling | None
    checkpoint: Path


def load_run(folder: Path, device: str = "auto", compute: str | None = None) -> TrainedModel:
    """Load the model of a run.

    Parameters
    ----------
    folder : Path
        A folder that `reservoir_pipelines.training.train` wrote.
    device : str, default "auto"
        Where it will run.
    compute : str, optional
        Precision, if not the run's own.

    Raises
    ------
    InputError
        If the folder holds no run, no checkpoint, or the backbone's weights are no longer those it was trained on.
    """
    run = Run(folder)
    config = run.config
    checkpoint = run.best
    spec = config["settings"]["spec"]
    settings, task = Reservoir(**config["reservoir"]), Task.from_dict(spec["task"])
    model, _ = load_trainable(task, settings, config["settings"]["train"], device, compute or spec["compute"])
    if model.digest != spec["backbone"]["digest"]:
        raise InputError(
            f"run {folder}: the weights of {settings.backbone!r} are no longer those it was trained on; bring them "
            "back, or train again"
        )
    load_trained(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return TrainedModel(model=model, task=task, scaling=scaling_from_json(config["scaling"]), checkpoint=checkpoint)


def predict_run(folder: Path, file: Path, *, device: str = "auto") -> Iterator[Prediction]:
    """Apply the model of a run to the sequences of a file; see `reservoir_pipelines.prediction.predict`."""
    from reservoir_pipelines.prediction import predictions, read_inputs

    trained = load_run(folder, device)
    x, lengths = encode(trained.task, *read_inputs(file))
    task = trained.task
    unknown = np.zeros((len(x), task.readout_tokens, task.outputs), np.int64 if task.classes else np.float32)
    split = Split(x=x, y=unknown, lengths=lengths)
    convert = raw_rows(trained.model, trained.scaling)
    found = torch.empty(len(x), task.readout_tokens, task.outputs, max(task.classes, 1))
    for rows, logits, _ in run_batches(trained.model.fpt, convert, split, BATCH_ROWS):
        found[torch.from_numpy(rows)] = logits.float().cpu()
    labels = found.argmax(dim=-1) if task.classes else found[..., 0]
    chances = found.softmax(dim=-1).numpy() if task.classes else None
    yield from predictions(task, labels.numpy(), chances)
