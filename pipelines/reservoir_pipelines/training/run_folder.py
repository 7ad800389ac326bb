"""The folder of a training run: its names, its configuration, its lock, and what it holds when a training starts."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from reservoir_cache import locked, make_folder, refuse_links, remove_leftovers

from reservoir.errors import InputError, as_input_error, writing
from reservoir.file_checks import fits, from_json
from reservoir.options import TrainOptions
from reservoir.training.trainer import State
from reservoir_pipelines.files import FILE_DIGESTS, json_digest, read_checked, read_lines, versions

RUN_FORMAT = 1  # version of the configuration, increased when a value changes its name or meaning
CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "run.json"
CHECKPOINTS, LOCK = "checkpoints", "lock"
CURVE, CONFUSION = "curve.png", "confusion.png"
STATE = "state.json"  # in the folder of a checkpoint
R = TypeVar("R")  # a result


class OtherSettingsError(InputError):
    """A folder has a run with another value of a setting, whose name is ``setting``."""

    setting = ""


class MayDiverge(Protocol):
    """The result of a training, which may have diverged."""

    @property
    def diverged_step(self) -> int | None:
        """The step at which the loss diverged, None if it did not."""
        ...


Finished = TypeVar("Finished", bound=MayDiverge)


def make_config(settings: Mapping[str, Any], device: object, **more: Any) -> dict[str, Any]:
    """Return the configuration of a run: all settings that affect results, their SHA-256 as ``key``, and ``more``."""
    made_with = {"device": str(device), **versions("torch", "transformers", "numpy")}
    return {
        "format": RUN_FORMAT,
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
        if config["format"] != RUN_FORMAT:
            raise ValueError(f"it has format {config['format']!r}, not {RUN_FORMAT}")
        if not isinstance(config["settings"], dict):
            raise ValueError("it has no settings")
        return config


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the old and the new value of each setting that differs, None for one that is missing.

    The values of nested dicts are compared one by one; their names are joined by dots and begin with ``name``.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the values of the lines of a journal, or an empty list if there is no file.

    An incomplete last line is left out. Raise `InputError` for any other damaged line.
    """
    lines = []
    for text, values in read_lines(path):
        # kill -9 may leave an incomplete last line; a power loss may leave zeros.
        is_incomplete = not text.endswith(b"\n") and b"}" not in text
        if is_incomplete or b"\0\0" in text:
            break
        if values is None or not _is_journal_line(values):  # None if the checksum of the line is wrong
            raise InputError(
                f"{path}: line {len(lines) + 1} is damaged", "remove the file, or train in another folder"
            )
        lines.append(values)
    return lines


def _is_journal_line(values: Mapping[str, Any]) -> bool:
    """Return whether a line of a journal has a step, and numbers, or None for those that were not finite."""
    return fits(values, dict[str, float | None]) and fits(values.get("step"), int)


@dataclass(frozen=True)
class Checkpoint:
    """The description of a checkpoint, whose folder holds the trained tensors and the moments of Adam."""

    path: Path  # the folder
    state: State  # the progress of the training
    digests: dict[str, str]  # SHA-256 of the files by their names


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step; the names sort in the order of the steps."""
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
        """The latest checkpoint, None if there is none yet."""
        last_path = max((self.path / CHECKPOINTS).glob("step-*"), default=None)
        return read_checkpoint(last_path) if last_path else None

    @property
    def best(self) -> Checkpoint:
        """The checkpoint with the best validation score; a run without a checkpoint raises `InputError`."""
        last = self.last
        if last is None:
            raise InputError(
                f"{self.path}: the run has no checkpoint yet",
                "continue it with reservoir train ... --resume",
            )
        return self.checkpoint(last.state.best_step)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the checkpoint after a step; one that the training has replaced meanwhile raises `InputError`."""
        path = checkpoint_path(self.path / CHECKPOINTS, step)
        if not path.is_dir():
            raise InputError(
                f"{path}: missing; a training that goes on replaces it",
                "run the command again, or train in another folder",
            )
        return read_checkpoint(path)

    @property
    def state(self) -> State:
        """State of the last checkpoint; at step 0 if there is none yet."""
        last = self.last
        return last.state if last else State()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The values of each line of the journal: of steps and of validations."""
        return read_journal(self.path / METRICS)

    def result(self, build: Callable[[dict[str, Any]], R]) -> R | None:
        """Return the result, built from its JSON values, or None if the run has not finished."""
        path = self.path / RESULT
        with as_input_error(f"{path}: damaged", "remove it, and continue with --resume"):
            if not path.exists():
                return None
            values = read_checked(path)
            values.pop(FILE_DIGESTS, None)
            return build(values)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder, lock it within the context, and remove what a killed process left unfinished.

        Raise `InputError` if another process has locked it.
        """
        with ExitStack() as stack:  # because the lock is held longer than errors of writing are caught
            with writing(self.path, "name another folder"):
                make_folder(self.path)
                refuse_links(self.path / CHECKPOINTS)
                has_lock = stack.enter_context(locked(self.path / LOCK, wait=False))
            if not has_lock:
                raise InputError(
                    f"{self.path}: another process is training this run", "wait for it, or stop it"
                )
            for folder in (self.path, self.path / CHECKPOINTS):
                remove_leftovers(folder, locked=True)
            yield

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise `InputError` if the folder has other files, or `OtherSettingsError` for a run with other settings."""
        file_names = {path.name for path in self.path.iterdir()}
        if CONFIG not in file_names and file_names - {LOCK}:
            raise InputError(
                f"{self.path}: the folder contains other files", "name an empty or a new folder"
            )
        # A damaged configuration is refused even if the run is new.
        old_settings = self.config["settings"] if CONFIG in file_names else {}
        if self.is_new:
            return
        # The new settings as they would be read back: tuples become lists. The first difference is reported.
        new_settings = json.loads(json.dumps(config["settings"]))
        for name, old, new in differences(old_settings, new_settings):
            error = OtherSettingsError(
                f"{self.path}: the folder has a run with {name} = {old}, not {new}", "name another folder"
            )
            error.setting = name
            raise error

    @property
    def is_new(self) -> bool:
        """Whether the run has neither a checkpoint nor a result, so that its configuration may be replaced."""
        return self.last is None and not (self.path / RESULT).exists()

    def final_result(
        self, build: Callable[[dict[str, Any]], Finished], options: TrainOptions, patience: int | None
    ) -> Finished | None:
        """Return the result as `result` does, or None if with these options the run needs further steps.

        ``patience`` is the number of steps without a better validation after which a run stops; None if it does not.
        """
        result = self.result(build)
        if result is None:
            return None
        state = self.state
        last_step = options.steps or 0
        has_all_steps = state.step >= last_step
        lost_patience = patience is not None and state.stale_steps >= patience
        # A run that diverged has ended if divergence is a result; with --resume, its last steps are tried again.
        has_diverged = result.diverged_step is not None and result.diverged_step <= last_step
        accepts_divergence = options.on_divergence == "report" and not options.resume
        is_final = has_all_steps or lost_patience or (has_diverged and accepts_divergence)
        return result if is_final else None
