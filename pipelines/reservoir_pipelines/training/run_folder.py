"""The folder of a training run: configuration, journal of the steps, checkpoints and result."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO, TypeVar

import torch
from reservoir_cache import (
    locked,
    make_folder,
    new_folder,
    refuse_links,
    remove_leftovers,
    replace_file,
    sync,
)
from torch import Tensor, nn

from reservoir.errors import InputError, as_input_error
from reservoir.options import StepOptions
from reservoir.plan import split_names
from reservoir.readouts.evaluation import Evaluation
from reservoir.records import check_arrays, fits, from_json
from reservoir.reservoir import LoadedModel, Reservoir, choose_compute, choose_device, load_model
from reservoir.tasks.task import Task
from reservoir.training.fast import speed_up
from reservoir.training.groups import default_groups, unfreeze
from reservoir.training.trainer import Processes, State, Steps, Trainer
from reservoir_pipelines.files import (
    checked_line,
    file_digest,
    json_digest,
    read_checked,
    read_lines,
    save_tensors,
    versions,
    write_checked,
    writing,
)
from reservoir_pipelines.output import Record, training_meter

TRAINED, OPTIMIZER, STATE = "trained.safetensors", "optimizer.safetensors", "state.json"
R = TypeVar("R")
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write ``<folder>/step-<number>``, then remove all other checkpoints except the best."""
    trained, moments = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter.detach().cpu().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    with new_folder(folder / f"step-{state.step:08d}") as part:
        save_tensors(trained, part / TRAINED)
        save_tensors(moments, part / OPTIMIZER)
        digests = {name: file_digest(part / name) for name in (TRAINED, OPTIMIZER)}
        write_checked(part / STATE, {**asdict(state), "digests": digests}, durable=False)
    kept = {folder / f"step-{step:08d}" for step in (state.step, state.best_step)}
    for old in set(folder.glob("step-*")) - kept:
        shutil.rmtree(old, ignore_errors=True)


def read_state(checkpoint: Path) -> tuple[State, dict[str, str]]:
    """Return the state of the training, and the SHA-256 of the other files of the checkpoint by name."""
    with as_input_error(f"{checkpoint / STATE}: not readable", "train in another folder"):
        values = read_checked(checkpoint / STATE)
        digests = values.pop("digests")
        state = from_json(State, values)
        if not 0 <= state.best_step <= state.step or not fits(digests, dict[str, str]):
            raise ValueError("its steps or its checksums are impossible")
        return state, digests


def load_trained(checkpoint: Path, model: nn.Module) -> None:
    """Copy a checkpoint's trained tensors into a model whose trained parameters are unfrozen."""
    tensors = read_tensors(checkpoint, TRAINED)
    problem = f"{checkpoint / TRAINED}: its tensors are not those that this run trains"
    with torch.no_grad(), as_input_error(problem, "train again"):
        trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        check_arrays(tensors, {name: tuple(one.shape) for name, one in trained.items()})
        for name, parameter in trained.items():
            parameter.copy_(tensors[name])


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the moments of Adam from a checkpoint."""
    tensors = read_tensors(checkpoint, OPTIMIZER)
    moved = {name: one for name, one in model.named_parameters() if f"{name}/step" in tensors}
    # The fused Adam reads beyond the end of tensors that are too small.
    shapes = {f"{n}/{m}": () if m == "step" else tuple(p.shape) for n, p in moved.items() for m in MOMENTS}
    with as_input_error(f"{checkpoint / OPTIMIZER}: not of this run", "train in another folder"):
        check_arrays(tensors, shapes)
    for name, parameter in moved.items():
        # The fused Adam counts its steps on the parameter's device.
        optimizer.state[parameter] = {m: tensors[f"{name}/{m}"].to(parameter) for m in MOMENTS}


def read_tensors(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of one file of a checkpoint after checking its SHA-256."""
    from safetensors.torch import load_file

    _, digests = read_state(checkpoint)
    with as_input_error(f"{checkpoint / name}: not readable", "train in another folder"):
        if file_digest(checkpoint / name) != digests.get(name):
            raise ValueError("checksum mismatch")
        return load_file(checkpoint / name)


FORMAT = 1
CONFIG, METRICS, RESULT, CHECKPOINTS = "config.json", "metrics.jsonl", "run.json", "checkpoints"
LOCK = "lock"
CURVE, CONFUSION = "curve.png", "confusion.png"


def make_config(settings: Mapping[str, Any], device: object, **more: Any) -> dict[str, Any]:
    """Return the configuration of a run: all settings that affect results, their SHA-256 as ``key``, and ``more``."""
    made_with = {"device": str(device), **versions("torch", "transformers", "numpy")}
    return {
        "format": FORMAT,
        "key": json_digest(settings),
        "settings": settings,
        **more,
        "made_with": made_with,
    }


def is_run(path: Path) -> bool:
    """Return whether a folder holds a training run."""
    return (path / CONFIG).is_file() and (path / METRICS).is_file()


class RunFolder:
    """The folder of one training run; reading a damaged file raises `InputError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with all defaults resolved."""
        path = self.path / CONFIG
        with as_input_error(f"{path}: damaged, or not of a run of reservoir train", "name another folder"):
            config = read_checked(path)
            if config["format"] != FORMAT:
                raise ValueError(f"it has format {config['format']!r}, not {FORMAT}")
            if not isinstance(config["settings"], dict):
                raise ValueError("it has no settings")
            return config

    @property
    def last(self) -> Path | None:
        """The latest checkpoint."""
        return max((self.path / CHECKPOINTS).glob("step-*"), default=None)

    @property
    def best(self) -> Path:
        """The checkpoint with the best validation score."""
        if (last := self.last) is None:
            raise InputError(
                f"{self.path}: the run has no checkpoint yet",
                "continue it with reservoir train ... --resume",
            )
        return last.with_name(f"step-{self.state.best_step:08d}")

    @property
    def state(self) -> State:
        """State of the last checkpoint."""
        return read_state(self.last)[0] if self.last else State()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the journal."""
        return read_journal(self.path / METRICS)

    def result(self, build: Callable[[dict[str, Any]], R]) -> R | None:
        """Return the result, built from its JSON values, or None if the run has not finished."""
        path = self.path / RESULT
        with as_input_error(f"{path}: damaged", "remove it, and continue with --resume"):
            return build(read_checked(path)) if path.exists() else None

    def start(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, or raise `InputError` if the folder has other files or a run with other settings."""
        for folder in (self.path, self.path / CHECKPOINTS):
            remove_leftovers(folder, locked=True)
        names = {path.name for path in self.path.iterdir()}
        if CONFIG not in names and names - {LOCK}:
            raise InputError(
                f"{self.path}: the folder contains other files", "name an empty or a new folder"
            )
        old = self.config["settings"] if CONFIG in names else {}
        if self.last is None and RESULT not in names:
            write_checked(self.path / CONFIG, config)
            return
        for name, value, new in _differences(old, json.loads(json.dumps(config["settings"]))):
            raise InputError(
                f"{self.path}: the folder has a run with {name} = {value}, not {new}", "name another folder"
            )

    def train(
        self,
        model: nn.Module,
        steps: Steps,
        options: StepOptions,
        *,
        shown: str,
        unit: tuple[int, str] = (1, "steps"),
        ranks: Processes | None = None,
    ) -> State:
        """Train until the run has ``options.steps`` steps, starting from its last checkpoint, and return its state.

        ``shown`` formats the numbers of a step for the progress line; ``unit`` is the number of units
        per step and their name. Only the first of the ``ranks`` writes to the folder.
        """
        ranks, checkpoints = ranks or Processes(), self.path / CHECKPOINTS
        state, last = self.state, options.steps or 0
        if checkpoint := self.last:
            with as_input_error(f"{checkpoint / STATE}: not readable", "train in another folder"):
                steps.better(state.best, state.best)  # fails if a value is missing
            validated = {"step": state.best_step, **state.best}
            for line in self.history:
                if line["step"] == state.best_step and "norm" not in line and line != validated:
                    raise InputError(
                        f"{checkpoint}: its best scores are not those in {METRICS}",
                        "restore it, or train in another folder",
                    )
            load_trained(self.best, model)  # it is needed at the end, so damage is reported now
            load_trained(checkpoint, model)
            load_optimizer(checkpoint, model, steps.optimizer)
        ranks.wait()  # until all processes have read the checkpoint
        settings = {"eval_every": options.eval_every, "state": state}
        if not ranks.first:
            return Trainer(model, steps, report=lambda *_: None, keep=lambda _: None, **settings).run(last)
        (self.path / RESULT).unlink(missing_ok=True)
        meter = training_meter(last, state.step, shown, units_per_step=unit[0], unit=unit[1])
        with open_journal(self.path / METRICS, state.step) as journal, meter as show:

            def report(step: int, numbers: dict[str, float]) -> None:
                # JSON has neither NaN nor infinity.
                finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
                journal.write(checked_line({"step": step, **finite}))
                if "norm" in numbers:  # a training step; validations have no gradient norm
                    show(step, *numbers.values())

            def keep(state: State) -> None:
                sync(self.path / METRICS)
                save_checkpoint(checkpoints, model, steps.optimizer, state)

            return Trainer(model, steps, report=report, keep=keep, **settings).run(last)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder within the context."""
        with ExitStack() as stack:
            with writing(self.path, "name another folder"):
                make_folder(self.path)
                refuse_links(self.path / CHECKPOINTS)
                is_held = stack.enter_context(locked(self.path / LOCK, wait=False))
            if not is_held:
                raise InputError(
                    f"{self.path}: another process is training this run", "wait for it, or stop it"
                )
            yield


def open_journal(path: Path, step: int) -> TextIO:
    """Open a journal for appending, after removing the lines of all steps after the checkpoint."""
    kept = [line for line in read_journal(path) if line["step"] <= step]
    replace_file(path, lambda part: part.write_text("".join(map(checked_line, kept))))
    return path.open("a", buffering=1)  # others see each line at once


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal except an incomplete last one, or an empty list if there is no file."""
    lines = []
    for text, line in read_lines(path):
        # kill -9 may leave an incomplete last line; a power loss may leave zeros.
        if (not text.endswith(b"\n") and b"}" not in text) or b"\0\0" in text:
            break
        if line is None or not fits(line.get("step"), int) or not fits(line, dict[str, float | None]):
            raise InputError(
                f"{path}: line {len(lines) + 1} is damaged", "remove the file, or train in another folder"
            )
        lines.append(line)
    return lines


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


def _differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """The result of a training run.

    Parameters
    ----------
    run : str
        Folder of the run, for `predict` and ``reservoir attention``.
    steps : int
        Number of steps.
    best_step : int or None
        Step of the best validation score, whose weights are saved; the last step if the test rows are the
        validation rows, as in some tasks of the paper. None if the loss diverged before the first validation.
    metric : str
        ``accuracy``, or ``R²`` of a regression, whose losses are squared errors of standardised targets.
    valid_score, valid_loss, test_score, test_loss : float or None
        Scores and losses of the saved weights on the validation split and on the test split.
    test_score_of_all : float or None
        Test accuracy if sequences that were dropped because of their length count as wrong.
    floor : float
        Validation score of a constant output, or of copying the input if that is higher.
    converged_step : int or None
        Step of the first validation after which all scores stay within 0.01 of the last one; None with fewer than three
        validations, or if the last score is not above ``floor``.
    diverged_step : int or None
        Step at which the loss diverged, if it did.
    groups : tuple of str
        The groups that were trained.
    trained : int
        Number of trained parameters.
    frozen_tensors : int
        Number of tensors that were not trained; a checksum verifies that none has changed.
    seconds : float
        Wall time of the steps, without validations.
    evaluation : Evaluation or None
        Measures on the test split, in the unit of the data.
    swept : tuple of dict
        Tried values, ``valid_score``, ``valid_loss``, ``seconds`` and ``run`` of each run of a sweep, best run first.
    """

    run: str
    steps: int
    best_step: int | None
    metric: str
    valid_score: float | None
    valid_loss: float | None
    test_score: float | None
    test_loss: float | None
    test_score_of_all: float | None
    floor: float
    converged_step: int | None
    diverged_step: int | None
    groups: tuple[str, ...]
    trained: int
    frozen_tensors: int
    seconds: float
    evaluation: Evaluation | None = field(compare=False)
    swept: tuple[dict[str, Any], ...] = ()

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return Path(self.run)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: ``step`` with ``loss``, or with ``valid_loss``."""
        return RunFolder(self.path).history

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [line["loss"] for line in self.history if "loss" in line]

    @property
    def train_score(self) -> float | None:
        """Accuracy on the training rows over the last tenth of the steps; None for a regression."""
        right = [line["accuracy"] for line in self.history if line.get("accuracy") is not None]
        last = right[-max(1, len(right) // 10) :]
        return fmean(last) if last else None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Training":
        """Build a result from what `to_dict` returned."""
        found = values["evaluation"]
        evaluation = Evaluation.from_dict(found) if found else None
        lists = {"groups": tuple(values["groups"]), "swept": tuple(values["swept"])}
        return from_json(cls, {**values, **lists, "evaluation": evaluation})
