"""The folder of a training run: its names, its configuration, its lock, and what it holds when a training starts."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from reservoir_cache import locked, make_folder, refuse_links, remove_leftovers

from reservoir.errors import InputError, as_input_error, writing
from reservoir.options import TrainOptions
from reservoir.records import fits, from_json
from reservoir.training.trainer import State
from reservoir_pipelines.files import json_digest, read_checked, read_lines, versions

FORMAT = 1  # version of the configuration, increased when a value changes its name or meaning
CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "run.json"
CHECKPOINTS, LOCK = "checkpoints", "lock"
CURVE, CONFUSION = "curve.png", "confusion.png"
STATE = "state.json"  # in the folder of a checkpoint
R = TypeVar("R")


class MayDiverge(Protocol):
    """The result of a training, which may have diverged."""

    @property
    def diverged_step(self) -> int | None:
        """The step at which the loss diverged."""
        ...


Finished = TypeVar("Finished", bound=MayDiverge)


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


@dataclass(frozen=True)
class Checkpoint:
    """A folder of trained tensors and moments of Adam, the state of the training, and the files' SHA-256 by name."""

    path: Path
    state: State
    digests: dict[str, str]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step."""
    return folder / f"step-{step:08d}"


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the description of a checkpoint; its tensors are not read."""
    with as_input_error(f"{path / STATE}: not readable", "train in another folder"):
        values = read_checked(path / STATE)
        digests = values.pop("digests")
        state = from_json(State, values)
        if not 0 <= state.best_step <= state.step or not fits(digests, dict[str, str]):
            raise ValueError("its steps or its checksums are impossible")
        return Checkpoint(path, state, digests)


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
    def last(self) -> Checkpoint | None:
        """The latest checkpoint."""
        last = max((self.path / CHECKPOINTS).glob("step-*"), default=None)
        return read_checkpoint(last) if last else None

    @property
    def best(self) -> Checkpoint:
        """The checkpoint with the best validation score."""
        if (last := self.last) is None:
            raise InputError(
                f"{self.path}: the run has no checkpoint yet",
                "continue it with reservoir train ... --resume",
            )
        return read_checkpoint(checkpoint_path(last.path.parent, last.state.best_step))

    @property
    def state(self) -> State:
        """State of the last checkpoint."""
        last = self.last
        return last.state if last else State()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the journal."""
        return read_journal(self.path / METRICS)

    def result(self, build: Callable[[dict[str, Any]], R]) -> R | None:
        """Return the result, built from its JSON values, or None if the run has not finished."""
        path = self.path / RESULT
        with as_input_error(f"{path}: damaged", "remove it, and continue with --resume"):
            return build(read_checked(path)) if path.exists() else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder within the context; what a killed process left unfinished is removed."""
        with ExitStack() as stack:
            with writing(self.path, "name another folder"):
                make_folder(self.path)
                refuse_links(self.path / CHECKPOINTS)
                is_held = stack.enter_context(locked(self.path / LOCK, wait=False))
            if not is_held:
                raise InputError(
                    f"{self.path}: another process is training this run", "wait for it, or stop it"
                )
            for folder in (self.path, self.path / CHECKPOINTS):
                remove_leftovers(folder, locked=True)
            yield

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise `InputError` if the folder has other files, or a run with other settings."""
        names = {path.name for path in self.path.iterdir()}
        if CONFIG not in names and names - {LOCK}:
            raise InputError(
                f"{self.path}: the folder contains other files", "name an empty or a new folder"
            )
        old_settings = self.config["settings"] if CONFIG in names else {}
        if self.is_new:
            return
        # The new settings as they would be read back: tuples become lists.
        new_settings = json.loads(json.dumps(config["settings"]))
        for name, old, new in differences(old_settings, new_settings):
            raise InputError(
                f"{self.path}: the folder has a run with {name} = {old}, not {new}", "name another folder"
            )

    @property
    def is_new(self) -> bool:
        """Whether the run has neither a checkpoint nor a result, so that its configuration may be replaced."""
        return self.last is None and not (self.path / RESULT).exists()

    def final_result(
        self, build: Callable[[dict[str, Any]], Finished], options: TrainOptions, patience: int | None
    ) -> Finished | None:
        """Return the result as `result` does; None also if the run needs further steps with some options.

        ``patience`` is a number of steps.
        """
        result = self.result(build)
        if result is None:
            return None
        state = self.state
        last_step = options.steps or 0
        is_stale = patience is not None and state.stale_steps >= patience
        has_diverged = result.diverged_step is not None and result.diverged_step <= last_step
        is_reported = options.on_divergence == "report" and not options.resume
        is_final = state.step >= last_step or is_stale or (has_diverged and is_reported)
        return result if is_final else None
