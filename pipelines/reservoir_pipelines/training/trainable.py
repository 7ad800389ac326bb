"""Models with trainable groups, and the trained model of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reservoir.devices import choose_device, choose_training_compute
from reservoir.errors import InputError, as_input_error
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.options import PRECISIONS
from reservoir.plan.columns import split_names
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir.training.fast import speed_up
from reservoir.training.groups import default_groups, set_dropout, unfreeze
from reservoir_pipelines.training.checkpoints import load_checkpoint
from reservoir_pipelines.training.run_folder import CONFIG, RunFolder


def load_trainable(
    task: Task,
    settings: Reservoir,
    groups: str | Sequence[str] | None,
    device: str,
    compute: str,
    output_init: str,
    *,
    dropout: float = 0.0,
    drops_below: bool = False,
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Build a model and unfreeze groups, by default those of an FPT; trained weights stay in float32.

    The rate ``dropout`` applies above the lowest trained layer, with ``drops_below`` also below it.
    """
    if task.labels_each_token or task.labels_text_tokens:
        raise InputError(
            f"task {task.name!r}: every token has a label, which train does not support",
            "use extract and fit",
        )
    precision = choose_training_compute(compute, choose_device(device))
    model = load_model(task, settings, device, "float32", output_init)
    backbone = model.fpt.backbone
    if not backbone.depth:
        raise InputError(
            f"--backbone {settings.backbone}: it has no blocks, and train needs some",
            "choose another backbone, such as mini",
        )
    chosen = split_names(groups) if groups else default_groups(backbone)
    unfreeze(model.fpt, chosen)
    set_dropout(model.fpt, dropout, below=drops_below)
    if model.device.type == "cpu":
        speed_up(model.fpt)
    backbone.set_compute(precision)
    return replace(model, compute=backbone.compute), chosen


def load_run(folder: Path, device: str = "auto", compute: str | None = None) -> LoadedModel:
    """Load the model of a run with the weights of its best validation score, in evaluation mode."""
    run = RunFolder(folder)
    config = run.config
    checkpoint = run.best
    with as_input_error(
        f"{folder / CONFIG}: damaged, or not of a run of reservoir train", "name another run"
    ):
        settings = config["settings"]
        reservoir = Reservoir(**config["reservoir"])
        groups = split_names(settings["train"])
        output_init = settings["recipe"].get("output_init", "orthogonal")
        spec = settings["spec"]
        task = Task.from_dict(spec["task"])
        digest = spec["backbone"]["digest"]
        trained_in = spec["compute"]
        if trained_in not in PRECISIONS:
            raise ValueError(f"unknown precision {str(trained_in)[:40]!r}")
    model, _ = load_trainable(task, reservoir, groups, device, compute or trained_in, output_init)
    check_digest(model, digest, f"run {folder}")
    load_checkpoint(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return model


def check_digest(model: LoadedModel, digest: str, where: str) -> None:
    """Raise `InputError` unless the frozen weights have the digest that a fit or training recorded."""
    if model.digest != digest:
        raise InputError(
            f"{where}: the weights of {model.settings.backbone!r} have changed since the fit or training",
            "restore them, or fit or train again",
        )
