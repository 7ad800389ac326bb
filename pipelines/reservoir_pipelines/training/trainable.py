"""Models with trainable groups, and the trained model of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from reservoir.errors import InputError, as_input_error
from reservoir.plan import split_names
from reservoir.reservoir import LoadedModel, Reservoir, choose_compute, choose_device, load_model
from reservoir.tasks.task import Task
from reservoir.training.fast import speed_up
from reservoir.training.groups import default_groups, unfreeze
from reservoir_pipelines.training.checkpoints import load_trained
from reservoir_pipelines.training.run_folder import CONFIG, RunFolder


def load_trainable(
    task: Task,
    settings: Reservoir,
    groups: str | Sequence[str] | None,
    device: str,
    compute: str,
    output_init: str,
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Build a model and unfreeze groups, by default those of an FPT; trained weights stay in float32."""
    if task.each:
        raise InputError(
            f"task {task.name!r}: every token has a label, which train does not support",
            "use extract and fit",
        )
    dtype = choose_compute(compute, choose_device(device))
    model = load_model(task, settings, device, "float32", output_init)
    backbone = model.fpt.backbone
    if not backbone.depth:
        raise InputError(
            f"--backbone {settings.backbone}: it has no blocks, and train needs some",
            "choose another backbone, such as mini",
        )
    chosen = split_names(groups) if groups else default_groups(backbone)
    unfreeze(model.fpt, chosen)
    if model.device.type == "cpu":
        speed_up(model.fpt)
    backbone.set_compute(getattr(torch, dtype))
    return replace(model, compute=str(backbone.compute).removeprefix("torch.")), chosen


def load_run(folder: Path, device: str = "auto", compute: str | None = None) -> LoadedModel:
    """Load the model of a run with the weights of its best validation score, in evaluation mode."""
    run = RunFolder(folder)
    config, checkpoint = run.config, run.best
    with as_input_error(
        f"{folder / CONFIG}: damaged, or not of a run of reservoir train", "name another run"
    ):
        settings, reservoir = config["settings"], Reservoir(**config["reservoir"])
        spec, output_init = settings["spec"], settings["recipe"].get("output_init", "orthogonal")
        task, digest = Task.from_dict(spec["task"]), spec["backbone"]["digest"]
        groups, trained_in = split_names(settings["train"]), spec["compute"]
        getattr(torch, trained_in).itemsize  # noqa: B018, only a data type has it
    model, _ = load_trainable(task, reservoir, groups, device, compute or trained_in, output_init)
    check_digest(model, digest, f"run {folder}")
    load_trained(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return model


def check_digest(model: LoadedModel, digest: str, where: str) -> None:
    """Raise `InputError` unless the frozen weights have the digest that a fit or training recorded."""
    if model.digest != digest:
        raise InputError(
            f"{where}: the weights of {model.settings.backbone!r} have changed since the fit or training",
            "restore them, or fit or train again",
        )
