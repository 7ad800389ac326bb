"""Models with trained groups: creating one for training, and loading one from a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from reservoir.errors import InputError
from reservoir.reservoir import LoadedModel, Reservoir, choose_compute, load_model
from reservoir.tasks.task import Task
from reservoir.training.fast import speed_up
from reservoir.training.groups import default_groups, unfreeze
from reservoir_pipelines.training.checkpoint import load_trained
from reservoir_pipelines.training.run_folder import RunFolder


def load_trainable(
    task: Task, settings: Reservoir, groups: Sequence[str] | None, device: str, compute: str, output_init: str
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Build a model and unfreeze groups, by default those of an FPT; only frozen weights use bfloat16."""
    if task.each:
        raise InputError(
            f"task {task.name!r}: every {task.each} has a label, which train does not support; use extract and fit"
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
    """Load the model of a run with the weights of its best validation, in evaluation mode."""
    run = RunFolder(folder)
    config, checkpoint = run.model_config, run.best
    spec = config["settings"]["spec"]
    settings = Reservoir(**config["reservoir"])
    task = Task.from_dict(spec["task"])
    groups, output_init = config["settings"]["train"], config["settings"]["recipe"].get("output_init", "orthogonal")
    model, _ = load_trainable(task, settings, groups, device, compute or spec["compute"], output_init)
    check_digest(model, spec["backbone"]["digest"], f"run {folder}")
    load_trained(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return model


def check_digest(model: LoadedModel, digest: str, where: str) -> None:
    """Raise `InputError` if the frozen weights are not those that something was fitted or trained on."""
    if model.digest != digest:
        raise InputError(
            f"{where}: the weights of {model.settings.backbone!r} have changed since it was fitted; restore "
            "them, or fit again"
        )
