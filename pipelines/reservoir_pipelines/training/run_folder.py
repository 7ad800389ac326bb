"""The folder of a training run: its configuration, its journal, its checkpoints, and the training that writes them."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

from reservoir_cache import locked, make_folder, refuse_links, remove_leftovers, replace_file, sync
from torch import nn

from reservoir.errors import InputError, as_input_error
from reservoir.options import StepOptions
from reservoir.records import fits
from reservoir.training.trainer import Processes, State, Steps, Trainer
from reservoir_pipelines.files import (
    checked_line,
    json_digest,
    read_checked,
    read_lines,
    versions,
    write_checked,
    writing,
)
from reservoir_pipelines.output import training_meter
from reservoir_pipelines.training.checkpoints import (
    STATE,
    checkpoint_path,
    load_optimizer,
    load_trained,
    read_state,
    save_checkpoint,
)

FORMAT = 1  # version of the configuration, increased when a value changes its name or meaning
CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "run.json"
CHECKPOINTS, LOCK = "checkpoints", "lock"
CURVE, CONFUSION = "curve.png", "confusion.png"
R = TypeVar("R")


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


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run, with all defaults resolved; a damaged file raises `InputError`."""
    path = folder / CONFIG
    with as_input_error(f"{path}: damaged, or not of a run of reservoir train", "name another folder"):
        config = read_checked(path)
        if config["format"] != FORMAT:
            raise ValueError(f"it has format {config['format']!r}, not {FORMAT}")
        if not isinstance(config["settings"], dict):
            raise ValueError("it has no settings")
        return config


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


def open_journal(path: Path, step: int) -> TextIO:
    """Open a journal for appending, after removing the lines of all steps after the checkpoint."""
    lines = [line for line in read_journal(path) if line["step"] <= step]
    replace_file(path, lambda part: part.write_text("".join(map(checked_line, lines))))
    return path.open("a", buffering=1)  # others see each line at once


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal except an incomplete last one, or an empty list if there is no file."""
    lines = []
    for text, line in read_lines(path):
        # kill -9 may leave an incomplete last line; a power loss may leave zeros.
        is_incomplete = not text.endswith(b"\n") and b"}" not in text
        if is_incomplete or b"\0\0" in text:
            break
        if line is None or not fits(line.get("step"), int) or not fits(line, dict[str, float | None]):
            raise InputError(
                f"{path}: line {len(lines) + 1} is damaged", "remove the file, or train in another folder"
            )
        lines.append(line)
    return lines


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
        return read_config(self.path)

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
        return checkpoint_path(last.parent, self.state.best_step)

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
        for name, value, new in differences(old, json.loads(json.dumps(config["settings"]))):
            raise InputError(
                f"{self.path}: the folder has a run with {name} = {value}, not {new}", "name another folder"
            )

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


def train_in_folder(
    folder: RunFolder,
    model: nn.Module,
    steps: Steps,
    options: StepOptions,
    *,
    shown: str,
    unit: tuple[int, str] = (1, "steps"),
    ranks: Processes | None = None,
) -> State:
    """Train until a run has ``options.steps`` steps, starting from its last checkpoint, and return its state.

    ``shown`` formats the numbers of a step for the progress line; ``unit`` is the number of units
    per step and their name. Only the first of the ``ranks`` writes to the folder.
    """
    ranks = ranks or Processes()
    state, last_step = folder.state, options.steps or 0
    if checkpoint := folder.last:
        _restore(folder, checkpoint, model, steps)
    ranks.wait()  # until all processes have read the checkpoint
    settings = {"eval_every": options.eval_every, "state": state}
    if not ranks.first:
        return Trainer(model, steps, report=lambda *_: None, keep=lambda _: None, **settings).run(last_step)
    (folder.path / RESULT).unlink(missing_ok=True)
    meter = training_meter(last_step, state.step, shown, units_per_step=unit[0], unit=unit[1])
    with open_journal(folder.path / METRICS, state.step) as journal, meter as show:

        def report(step: int, numbers: dict[str, float]) -> None:
            # JSON has neither NaN nor infinity.
            finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            journal.write(checked_line({"step": step, **finite}))
            is_training_step = "norm" in numbers  # validations have no gradient norm
            if is_training_step:
                show(step, *numbers.values())

        def keep(state: State) -> None:
            sync(folder.path / METRICS)
            save_checkpoint(folder.path / CHECKPOINTS, model, steps.optimizer, state)

        return Trainer(model, steps, report=report, keep=keep, **settings).run(last_step)


def _restore(folder: RunFolder, checkpoint: Path, model: nn.Module, steps: Steps) -> None:
    """Load a checkpoint, whose best scores must be those of the journal."""
    state = folder.state
    with as_input_error(f"{checkpoint / STATE}: not readable", "train in another folder"):
        steps.better(state.best, state.best)  # fails if a value is missing
    validated = {"step": state.best_step, **state.best}
    for line in folder.history:
        is_validation = "norm" not in line
        if line["step"] == state.best_step and is_validation and line != validated:
            raise InputError(
                f"{checkpoint}: its best scores are not those in {METRICS}",
                "restore it, or train in another folder",
            )
    load_trained(folder.best, model)  # it is needed at the end, so damage is reported now
    load_trained(checkpoint, model)
    load_optimizer(checkpoint, model, steps.optimizer)
