"""A model some of whose groups are trained: made for training, and loaded again from a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from reservoir.errors import InputError
from reservoir.readouts import LinearReadout, Targets
from reservoir.reservoir import LoadedModel, Reservoir, choose_compute, load_model
from reservoir.tasks.task import Task
from reservoir.training.fast import speed_up
from reservoir.training.groups import default_groups, unfreeze
from reservoir.training.target_scale import TargetScale
from reservoir_pipelines.fitting.bundle import Bundle, Part
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.training.checkpoint import load_trained, trained_output
from reservoir_pipelines.training.run import CONFIG, Run, is_run


def load_trainable(
    task: Task, settings: Reservoir, groups: Sequence[str] | None, device: str, compute: str, output_init: str
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Make a model and unfreeze some groups, by default those of an FPT; only frozen weights multiply in bfloat16."""
    if task.each:
        raise InputError(
            f"task {task.name!r}: every {task.each} has a label, which extract and fit read; train does not"
        )
    model = load_model(task, settings, device, "float32", output_init)
    chosen = tuple(groups or default_groups(model.fpt.backbone))
    unfreeze(model.fpt, chosen)
    if model.device.type == "cpu":
        speed_up(model.fpt)
    backbone = model.fpt.backbone
    backbone.set_compute(getattr(torch, choose_compute(compute, model.device)))
    return replace(model, compute=str(backbone.compute).removeprefix("torch.")), chosen


def load_run(folder: Path, device: str = "auto", compute: str | None = None) -> LoadedModel:
    """Load the model of a run with the weights that did best on the validation split, in evaluation mode."""
    run = Run(folder)
    config, checkpoint = run.model_config, run.best
    spec = config["settings"]["spec"]
    settings = Reservoir(**config["reservoir"])
    task = Task.from_dict(spec["task"])
    groups, output_init = config["settings"]["train"], config["settings"]["recipe"].get("output_init", "orthogonal")
    model, _ = load_trainable(task, settings, groups, device, compute or spec["compute"], output_init)
    _check_digest(model, spec["backbone"]["digest"], f"run {folder}")
    load_trained(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return model


def open_readout(path: Path) -> Bundle:
    """Open what `fit` saved, or a run of `train`, which is the readout of the last layer of a trained map."""
    folder = path.parent if path.name == CONFIG else path
    if not is_run(folder):
        return Bundle.load(path)
    config = Run(folder).model_config
    spec = config["settings"]["spec"]
    task = Task.from_dict(spec["task"])
    part = Part(
        reservoir=Reservoir(**config["reservoir"]),
        digest=spec["backbone"]["digest"],
        compute=spec["compute"],
        columns=("final/last",),
        run=str(folder),
    )
    trained = trained_output(Run(folder).best) or load_run(folder, "cpu").fpt.output
    scale = config["settings"].get("targets")
    return Bundle(
        task=task,
        scaling=scaling_from_json(config["scaling"]),
        parts=(part,),
        readout=linear_readout(task, trained, TargetScale.from_json(scale) if scale else None),
        scores=Run(folder).result or {},
        lengths=config["lengths"],
    )


def linear_readout(task: Task, output: nn.Linear, scale: TargetScale | None = None) -> LinearReadout:
    """Return a trained output layer as a readout: the same labels and probabilities, targets in the data's own unit."""
    targets = Targets(task.outputs, task.classes)
    coef, intercept = (p.detach().cpu().double().numpy() for p in (output.weight.T, output.bias))
    if task.classes == 2:  # the readout's score s stands for the logits -s and +s
        coef, intercept = ((values[..., 1::2] - values[..., ::2]) / 2 for values in (coef, intercept))
    if scale:
        coef, intercept = scale.undo(coef, intercept)
    return LinearReadout(coef=np.ascontiguousarray(coef), intercept=intercept, targets=targets)


def load_part(task: Task, part: Part, device: str, where: Path, compute: str | None = None) -> LoadedModel:
    """Load the map that a readout reads, frozen or trained; ``where`` is the readout, for messages."""
    if part.reservoir is None:
        raise InputError(f"readout {where}: it reads the input itself, without a model")
    if part.run:
        return load_run(Path(part.run), device, compute)
    model = load_model(task, part.reservoir, device, compute or part.compute)
    _check_digest(model, part.digest, f"readout {where}")
    if dict(model.door) != part.door:
        raise InputError(
            f"readout {where}: the {' or the '.join(model.door)} of {model.settings.backbone!r} have changed; "
            "bring them back, or fit again"
        )
    return model


def _check_digest(model: LoadedModel, digest: str, where: str) -> None:
    if model.digest != digest:
        raise InputError(
            f"{where}: the weights of {model.settings.backbone!r} are no longer those it was fitted on; bring them "
            "back, or fit again"
        )
