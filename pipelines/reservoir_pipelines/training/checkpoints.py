"""The training that a folder records: it continues from the last checkpoint, and writes a journal and checkpoints.

`load_run` returns the model that a finished or stopped run has trained.
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
from reservoir.file_checks import check_arrays
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.options import PRECISIONS, StepOptions
from reservoir.plan.columns import split_names
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

TRAINED, OPTIMIZER = "trained.safetensors", "optimizer.safetensors"  # files of a checkpoint
# Tensors of Adam for each parameter: its steps and two moments.
ADAM_TENSORS = ("step", "exp_avg", "exp_avg_sq")


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
    """The state in which the steps of a run ended, and why they ended before the last step, if they did."""

    state: State
    diverged_step: int | None = None  # step at which the loss diverged, if it did
    lost_patience: bool = False  # whether no validation had been better for too long


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
    last_checkpoint = folder.last
    first_state = State()
    if last_checkpoint:
        first_state = last_checkpoint.state
        _restore(folder, last_checkpoint, model, steps)
    ranks.wait()  # until all processes have read the checkpoint, which the first one may soon remove
    # 2. Take the steps; the first process records them.
    recorder = nullcontext(_NO_RECORDER)
    if ranks.first:
        recorder = _recorder(folder, config, model, steps, last_step, display)
    with _naming(folder), recorder as functions:
        trainer = Trainer(
            model,
            steps,
            options.eval_every,
            functions.report,
            functions.keep,
            state=first_state,
            patience=patience,
        )
        try:
            end_state = trainer.run(last_step)
            trained = TrainedSteps(end_state, lost_patience=end_state.step < last_step)
        except DivergedError as error:
            if on_divergence == "stop":
                raise
            trained = TrainedSteps(error.state, diverged_step=error.step)
    ranks.wait()  # until the first process has written the checkpoints and the journal
    # 3. Leave the best weights in the model; without a validation there are none.
    if trained.state.step:
        load_checkpoint(folder.best, model)
    return trained


@contextmanager
def _naming(folder: RunFolder) -> Iterator[None]:
    """Add the folder to an error of the system inside the context that names no file, as those of writing do not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(folder.path)
        raise


def _restore(folder: RunFolder, last_checkpoint: Checkpoint, model: nn.Module, steps: Steps) -> None:
    """Load the last checkpoint into the model and the optimizer of ``steps``.

    Raise `InputError` if its best scores are not those of the journal, or if the best checkpoint is damaged.
    """
    state = last_checkpoint.state
    with as_input_error(f"{last_checkpoint.path / STATE}: not readable", "train in another folder"):
        steps.better(state.best, state.best)  # fails if a value is missing
    best_validation = {"step": state.best_step, **state.best}
    for line in folder.history:
        is_validation = "norm" not in line  # steps have the norm of their gradients
        is_best_step = line["step"] == state.best_step
        if is_validation and is_best_step and line != best_validation:
            raise InputError(
                f"{last_checkpoint.path}: its best scores are not those in {METRICS}",
                "restore it, or train in another folder",
            )
    # The best checkpoint is needed at the end, so it is loaded first, to report damage now. The last one stays loaded.
    load_checkpoint(folder.best, model)
    load_checkpoint(last_checkpoint, model, steps.optimizer)


def load_checkpoint(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Copy a checkpoint into a model whose trained parameters are unfrozen, and into its optimizer, if given.

    Raise `InputError` if the tensors of the checkpoint are damaged, or not those of the model.
    """
    file_names = (TRAINED, OPTIMIZER) if optimizer else (TRAINED,)
    tensors = read_tensors(checkpoint, *file_names)
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    problem = f"{checkpoint.path / TRAINED}: its tensors are not those that this run trains"
    with torch.no_grad(), as_input_error(problem, "train again"):
        check_arrays(tensors[TRAINED], {name: tuple(tensor.shape) for name, tensor in trained.items()})
        for name, parameter in trained.items():
            parameter.copy_(tensors[TRAINED][name])
    if optimizer:
        _load_moments(tensors[OPTIMIZER], checkpoint, model, optimizer)


def _load_moments(
    moments: Mapping[str, Tensor],
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Copy the moments of a checkpoint, ``PARAMETER/MOMENT`` each, into the optimizer of a model."""
    # Frozen parameters have no moments.
    with_moments = {name: tensor for name, tensor in model.named_parameters() if f"{name}/step" in moments}
    # The shapes are checked, because the fused Adam reads beyond the end of tensors that are too small.
    shapes = dict[str, tuple[int, ...]]()
    for name, parameter in with_moments.items():
        shapes |= {f"{name}/{moment}": tuple(parameter.shape) for moment in ADAM_TENSORS}
        shapes[f"{name}/step"] = ()
    with as_input_error(f"{checkpoint.path / OPTIMIZER}: not of this run", "train in another folder"):
        check_arrays(moments, shapes)
    for name, parameter in with_moments.items():
        # `to` also moves the number of steps, because the fused Adam counts them on the parameter's device.
        optimizer.state[parameter] = {
            moment: moments[f"{name}/{moment}"].to(parameter) for moment in ADAM_TENSORS
        }


def read_tensors(checkpoint: Checkpoint, *file_names: str) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of some files of a checkpoint, by the file's name and their own; verify the SHA-256."""
    from safetensors.torch import load_file

    tensors = {}
    for name in file_names:
        path = checkpoint.path / name
        with as_input_error(f"{path}: not readable", "train in another folder"):
            if file_digest(path) != checkpoint.digests.get(name):
                raise ValueError("checksum mismatch")
            tensors[name] = load_file(path)
    return tensors


@dataclass(frozen=True)
class _Recorder:
    """The functions that record a training; see `Trainer`.

    The training loop calls ``report`` with the number of a step and the values of the step or of a validation, and
    ``keep`` with the state after a validation.
    """

    report: Callable[[int, dict[str, float]], None]
    keep: Callable[[State], None]


_NO_RECORDER = _Recorder(report=lambda step, values: None, keep=lambda state: None)
"""Of the processes that do not write to the folder."""


@contextmanager
def _recorder(
    folder: RunFolder,
    config: Mapping[str, Any],
    model: nn.Module,
    steps: Steps,
    last_step: int,
    display: Display,
) -> Iterator[_Recorder]:
    """Write the configuration of a new run, and yield what writes its journal and checkpoints and shows its progress.

    The result of a run that continues is removed, and its configuration gets the command and the validation of this
    call.
    """
    journal = folder.path / METRICS
    last_validation = dict[str, float]()  # its values, by name

    def keep(state: State) -> None:
        """Save a checkpoint of the model and the optimizer, and print the last validation."""
        sync(journal)  # so that the journal on disk has all lines of the steps before the checkpoint
        save_checkpoint(folder.path / CHECKPOINTS, model, steps.optimizer, state)
        scores = display.validation.format(**last_validation)
        # Where the last weights are kept, every step counts as the best, though another may have a better score.
        best = "" if state.best_step == state.step else f"; best so far: step {state.best_step:,}"
        notify(f"step {state.step:,}: {scores}{best}")

    (folder.path / RESULT).unlink(missing_ok=True)  # it does not describe the weights of further steps
    first_step = folder.state.step
    if folder.is_new:
        write_checked(folder.path / CONFIG, config)
    elif first_step < last_step:
        # The result will be that of this command. The settings are the same, and the versions stay the first ones.
        call = {name: config[name] for name in ("command", "validation") if name in config}
        write_checked(folder.path / CONFIG, {**folder.config, **call})
    # The lines of steps after the checkpoint go, because these steps are taken again.
    text = "".join(checked_line(line) for line in folder.history if line["step"] <= first_step)
    replace_file(journal, lambda temporary: temporary.write_text(text))
    meter = training_meter(
        last_step, first_step, display.step, units_per_step=display.units_per_step, unit=display.unit
    )
    # Buffered by line, so that other processes see each line of the journal at once.
    with journal.open("a", buffering=1) as lines, meter as show:

        def report(step: int, values: dict[str, float]) -> None:
            """Write a line of the journal, and show the values of a step, or note those of a validation for `keep`."""
            # JSON has neither NaN nor infinity.
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            lines.write(checked_line({"step": step, **finite}))
            is_training_step = "norm" in values  # validations have no gradient norm
            if is_training_step:
                show(step, *values.values())
            else:
                last_validation.update(values)

        yield _Recorder(report, keep)


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write ``<folder>/step-<number>``, then remove all other checkpoints except the best."""
    trained: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter.detach().cpu().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    # The folder appears when it is complete and on disk, so its files need not be synced one by one.
    with new_folder(checkpoint_path(folder, state.step)) as temporary:
        save_tensors(trained, temporary / TRAINED)
        save_tensors(moments, temporary / OPTIMIZER)
        digests = {name: file_digest(temporary / name) for name in (TRAINED, OPTIMIZER)}
        write_checked(temporary / STATE, {**asdict(state), "digests": digests}, durable=False)
    needed = {checkpoint_path(folder, step) for step in (state.step, state.best_step)}
    for old in set(folder.glob("step-*")) - needed:
        shutil.rmtree(old, ignore_errors=True)


def load_run(
    folder: Path, device: str = "auto", compute: str | None = None, step: int | None = None
) -> LoadedModel:
    """Load the model of a run with the weights of its best validation score, in evaluation mode.

    ``compute`` is the precision, by default that of the training, and ``step`` that of the checkpoint, by default the
    best.
    """
    run = RunFolder(folder)
    config = run.config
    checkpoint = run.best if step is None else run.checkpoint(step)
    with as_input_error(
        f"{folder / CONFIG}: damaged, or not of a run of reservoir train", "name another run"
    ):
        settings = config["settings"]
        reservoir = Reservoir(**config["reservoir"])
        trained_groups = split_names(settings["train"])
        # The recipe records it only if it is not the default.
        output_init = settings["recipe"].get("output_init", "orthogonal")
        spec = settings["spec"]
        task = Task.from_dict(spec["task"])
        frozen_digest = spec["backbone"]["digest"]  # of the weights that were not trained
        training_compute = spec["compute"]
        if training_compute not in PRECISIONS:
            raise ValueError(f"unknown precision {str(training_compute)[:40]!r}")
    # The weights are loaded in float32, because the trained ones are stored so; `make_trainable` sets the precision.
    loaded = load_model(task, reservoir, device, "float32", output_init)
    precision = choose_training_compute(compute or training_compute, loaded.device)
    model, _ = make_trainable(loaded, trained_groups, precision)
    check_digest(model, frozen_digest, f"run {folder}")
    load_checkpoint(checkpoint, model.fpt)
    model.fpt.eval().requires_grad_(False)
    return model


def check_digest(model: LoadedModel, digest: str, where: str) -> None:
    """Raise `InputError`, which begins with ``where``, unless the frozen weights have the recorded digest."""
    if model.digest != digest:
        raise InputError(
            f"{where}: the weights of {model.settings.backbone!r} have changed since the fit or training",
            "restore them, or fit or train again",
        )
