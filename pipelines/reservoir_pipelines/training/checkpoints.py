"""The training that a folder records: it continues from the last checkpoint, and writes a journal and checkpoints.

`load_run` is the model that a finished or stopped run has trained.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from reservoir_cache import new_folder, replace_file, sync
from torch import Tensor, nn

from reservoir.devices import choose_training_compute
from reservoir.errors import InputError, as_input_error
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.options import PRECISIONS, StepOptions
from reservoir.plan.columns import split_names
from reservoir.records import check_arrays
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir.training.trainable import make_trainable
from reservoir.training.trainer import DivergedError, Processes, State, Steps, Trainer
from reservoir_pipelines.files import checked_line, file_digest, save_tensors, write_checked
from reservoir_pipelines.output import notify, training_meter
from reservoir_pipelines.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RESULT,
    STATE,
    Checkpoint,
    RunFolder,
    checkpoint_path,
)

TRAINED, OPTIMIZER = "trained.safetensors", "optimizer.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # tensors of Adam for each parameter


@dataclass(frozen=True, kw_only=True)
class Display:
    """What a training shows on stderr.

    Parameters
    ----------
    step : str
        Format of the progress line, with the numbers of a step by position.
    validation : str
        Format of the line after a validation, with its values by name.
    unit : str
        Unit of the speed.
    units_per_step : int
        Number of units in a step.
    """

    step: str
    validation: str
    unit: str = "steps"
    units_per_step: int = 1


@dataclass(frozen=True)
class TrainedSteps:
    """The end of the steps of a run: the state, and why it is before the last step.

    ``diverged_step`` is the step at which the loss diverged. ``lost_patience`` says that the training stopped
    because the validation score had not improved for long.
    """

    state: State
    diverged_step: int | None = None
    lost_patience: bool = False


def train_in_folder(
    folder: RunFolder,
    config: Mapping[str, Any],
    model: nn.Module,
    steps: Steps,
    options: StepOptions,
    display: Display,
    *,
    ranks: Processes | None = None,
    patience: int | None = None,
    on_divergence: str = "stop",
) -> TrainedSteps:
    """Train until a run has ``options.steps`` steps, starting from its last checkpoint; keep the best weights.

    Only the first of the ``ranks`` writes to the folder. The training stops earlier if the validation has not
    improved for ``patience`` steps. If the loss diverges, `DivergedError` is raised, unless
    ``on_divergence`` is ``report``. In the end the model has the weights of the best validation.
    """
    ranks = ranks or Processes()
    last_step = options.steps or 0
    # 1. Continue from the last checkpoint, if there is one.
    last = folder.last
    state = last.state if last else State()
    if last:
        _restore(folder, last, model, steps)
    ranks.wait()  # until all processes have read the checkpoint
    # 2. Take the steps; the first process records them.
    recording = nullcontext(_UNRECORDED)
    if ranks.first:
        recording = _recorded(folder, config, model, steps, last_step, display)
    with recording as record:
        trainer = Trainer(
            model, steps, options.eval_every, record.report, record.keep, state=state, patience=patience
        )
        try:
            end = trainer.run(last_step)
            trained = TrainedSteps(end, lost_patience=end.step < last_step)
        except DivergedError as error:
            if on_divergence == "stop":
                raise
            trained = TrainedSteps(error.state, diverged_step=error.step)
    ranks.wait()  # until the first process has written the checkpoints and the journal
    # 3. Leave the best weights in the model.
    if trained.state.step:
        load_checkpoint(folder.best, model)
    return trained


def _restore(folder: RunFolder, last: Checkpoint, model: nn.Module, steps: Steps) -> None:
    """Load the last checkpoint, whose best scores must be those of the journal."""
    state = last.state
    with as_input_error(f"{last.path / STATE}: not readable", "train in another folder"):
        steps.better(state.best, state.best)  # fails if a value is missing
    validated = {"step": state.best_step, **state.best}
    for line in folder.history:
        is_validation = "norm" not in line  # steps have the norm of their gradients
        if line["step"] == state.best_step and is_validation and line != validated:
            raise InputError(
                f"{last.path}: its best scores are not those in {METRICS}",
                "restore it, or train in another folder",
            )
    # The best checkpoint is needed at the end, so damage is reported now. The last one is the one that stays loaded.
    for checkpoint in (folder.best, last):
        load_checkpoint(checkpoint, model, steps.optimizer if checkpoint is last else None)


def load_checkpoint(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Copy a checkpoint into a model whose trained parameters are unfrozen, and into its optimizer, if given."""
    names = (TRAINED, OPTIMIZER) if optimizer else (TRAINED,)
    tensors = read_tensors(checkpoint, *names)
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    problem = f"{checkpoint.path / TRAINED}: its tensors are not those that this run trains"
    with torch.no_grad(), as_input_error(problem, "train again"):
        check_arrays(tensors[TRAINED], {name: tuple(tensor.shape) for name, tensor in trained.items()})
        for name, parameter in trained.items():
            parameter.copy_(tensors[TRAINED][name])
    if not optimizer:
        return
    # The moments of the parameters that have some, by their names. Their shapes are checked, because the fused Adam
    # reads beyond the end of tensors that are too small.
    moments = tensors[OPTIMIZER]
    moved = {name: tensor for name, tensor in model.named_parameters() if f"{name}/step" in moments}
    shapes = dict[str, tuple[int, ...]]()
    for name, parameter in moved.items():
        shapes |= {f"{name}/{moment}": tuple(parameter.shape) for moment in MOMENTS}
        shapes[f"{name}/step"] = ()
    with as_input_error(f"{checkpoint.path / OPTIMIZER}: not of this run", "train in another folder"):
        check_arrays(moments, shapes)
    for name, parameter in moved.items():
        # The fused Adam counts its steps on the parameter's device.
        optimizer.state[parameter] = {
            moment: moments[f"{name}/{moment}"].to(parameter) for moment in MOMENTS
        }


def read_tensors(checkpoint: Checkpoint, *names: str) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of some files of a checkpoint, by the file's name, after checking their SHA-256."""
    from safetensors.torch import load_file

    tensors = {}
    for name in names:
        path = checkpoint.path / name
        with as_input_error(f"{path}: not readable", "train in another folder"):
            if file_digest(path) != checkpoint.digests.get(name):
                raise ValueError("checksum mismatch")
            tensors[name] = load_file(path)
    return tensors


@dataclass(frozen=True)
class _Record:
    """What the training loop calls with the numbers of a step or a validation, and after a validation."""

    report: Callable[[int, dict[str, float]], None]
    keep: Callable[[State], None]


_UNRECORDED = _Record(report=lambda *_: None, keep=lambda _: None)


@contextmanager
def _recorded(
    folder: RunFolder,
    config: Mapping[str, Any],
    model: nn.Module,
    steps: Steps,
    last_step: int,
    display: Display,
) -> Iterator[_Record]:
    """Yield what writes the configuration, the journal and the checkpoints of a run, and shows its progress."""
    journal = folder.path / METRICS
    validation = dict[str, float]()  # the values of the latest one

    def keep(state: State) -> None:
        sync(journal)
        save_checkpoint(folder.path / CHECKPOINTS, model, steps.optimizer, state)
        scores = display.validation.format(**validation)
        notify(f"step {state.step:,}: {scores}; best so far: step {state.best_step:,}")

    if folder.is_new:
        write_checked(folder.path / CONFIG, config)
    (folder.path / RESULT).unlink(missing_ok=True)  # it does not describe the weights of further steps
    # The lines of steps after the checkpoint go, because these steps are taken again.
    first_step = folder.state.step
    text = "".join(checked_line(line) for line in folder.history if line["step"] <= first_step)
    replace_file(journal, lambda part: part.write_text(text))
    meter = training_meter(
        last_step, first_step, display.step, units_per_step=display.units_per_step, unit=display.unit
    )
    # Others see each line of the journal at once.
    with journal.open("a", buffering=1) as lines, meter as show:

        def report(step: int, numbers: dict[str, float]) -> None:
            # JSON has neither NaN nor infinity.
            finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            lines.write(checked_line({"step": step, **finite}))
            is_training_step = "norm" in numbers  # validations have no gradient norm
            if is_training_step:
                show(step, *numbers.values())
            else:
                validation.update(numbers)

        yield _Record(report, keep)


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write ``<folder>/step-<number>``, then remove all other checkpoints except the best."""
    trained, moments = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter.detach().cpu().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    with new_folder(checkpoint_path(folder, state.step)) as part:
        save_tensors(trained, part / TRAINED)
        save_tensors(moments, part / OPTIMIZER)
        digests = {name: file_digest(part / name) for name in (TRAINED, OPTIMIZER)}
        write_checked(part / STATE, {**asdict(state), "digests": digests}, durable=False)
    needed = {checkpoint_path(folder, step) for step in (state.step, state.best_step)}
    for old in set(folder.glob("step-*")) - needed:
        shutil.rmtree(old, ignore_errors=True)


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
    loaded = load_model(task, reservoir, device, "float32", output_init)
    model, _ = make_trainable(loaded, groups, choose_training_compute(compute or trained_in, loaded.device))
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
