"""The folder of a training: configuration, journal of the steps, checkpoints and result."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from reservoir_cache import make_folder, open_lock, refuse_links

from reservoir.errors import InputError
from reservoir.training.trainer import State
from reservoir_pipelines.files import DamagedError, json_digest, read_checked, remove_parts, write_checked, writing
from reservoir_pipelines.training.checkpoint import last_checkpoint, read_state
from reservoir_pipelines.training.journal import read_journal
from reservoir_pipelines.workspace import versions

FORMAT = 1
CONFIG, METRICS, RESULT, CHECKPOINTS = "config.json", "metrics.jsonl", "run.json", "checkpoints"
CURVE, CONFUSION = "curve.png", "confusion.png"


def make_config(settings: Mapping[str, Any], device: object, **more: Any) -> dict[str, Any]:
    """Return the configuration of a run: all settings that change a number, their SHA-256 as ``key``, and ``more``."""
    return {
        "format": FORMAT,
        "key": json_digest(settings),
        "settings": settings,
        **more,
        "made_with": {"device": str(device), **versions("torch", "transformers", "numpy")},
    }


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a training."""
    return (path / CONFIG).is_file() and (path / METRICS).is_file()


class RunFolder:
    """The folder of one training; reading a damaged file raises `InputError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with all defaults resolved."""
        return self._read("settings")

    @property
    def model_config(self) -> dict[str, Any]:
        """The configuration of a run of `train`; a pretraining has no task, and is refused."""
        return self._read("settings", "reservoir", "scaling", "lengths")

    def _read(self, *parts: str) -> dict[str, Any]:
        try:
            config = read_checked(self.path / CONFIG)
            if config["format"] != FORMAT:
                raise InputError(
                    f"{self.path}: run of format {config['format']}, but this program reads format {FORMAT}; "
                    "install the version of reservoir-features that made it, or train again"
                )
            if missing := {*parts} - config.keys():
                raise KeyError(*missing)
            if not isinstance(config["settings"], dict):
                raise TypeError
        except DamagedError as error:
            raise InputError(f"{self.path / CONFIG}: damaged ({error}); train in another folder") from error
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.path}: not the folder of a run of reservoir train ({type(error).__name__})"
            ) from error
        return config

    @property
    def last(self) -> Path | None:
        """The latest checkpoint."""
        return last_checkpoint(self.path / CHECKPOINTS)

    @property
    def best(self) -> Path:
        """The checkpoint with the best validation score."""
        if not (state := self.state).step:
            raise InputError(
                f"{self.path}: the run has no checkpoint yet; continue it with reservoir train ... --resume"
            )
        return self.path / CHECKPOINTS / f"step-{state.best_step:08d}"

    @property
    def state(self) -> State:
        """State of the last checkpoint; if the best checkpoint was removed, the last one takes its place."""
        if (last := self.last) is None:
            return State()
        state = read_state(last)
        if last.with_name(f"step-{state.best_step:08d}").is_dir():
            return state
        for line in self.history:
            if line["step"] == state.step and state.best.keys() <= line.keys():
                return replace(state, best_step=state.step, best={name: line[name] for name in state.best})
        journal = self.path / METRICS
        raise InputError(f"{journal}: the validation of step {state.step:,} is missing; train in another folder")

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the journal."""
        return read_journal(self.path / METRICS)

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, or None if the run has not finished."""
        path = self.path / RESULT
        try:
            return read_checked(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); remove it, and continue with --resume") from error

    def start(self, config: Mapping[str, Any]) -> None:
        """Write the configuration to a new folder, or check that a run in it has the same settings.

        Raises `InputError` if the folder holds other files, or a run with other settings.
        """
        for folder in (self.path, self.path / CHECKPOINTS):
            remove_parts(folder)
        names = {path.name for path in self.path.iterdir()}
        if CONFIG not in names and names - {"lock"}:
            raise InputError(f"{self.path}: the folder has other files in it; name an empty or a new folder")
        old = self.config["settings"] if CONFIG in names else {}
        if self.last is None and RESULT not in names:
            write_checked(self.path / CONFIG, config)
            return
        if different := _difference(old, json.loads(json.dumps(config["settings"]))):
            name, value, new = different
            raise InputError(f"{self.path}: it has a run with {name} = {value}, not {new}; name another folder")

    def reopen(self) -> None:
        """Remove the result of a run that continues."""
        (self.path / RESULT).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        write_checked(self.path / RESULT, result)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder within the context."""
        with writing(self.path, "name another folder"):
            make_folder(self.path)
            refuse_links(self.path / CHECKPOINTS)
            file = os.fdopen(open_lock(self.path / "lock"), "rb")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"{self.path}: another process is training this run; wait for it, or stop it"
                ) from None
            yield


def _difference(old: Any, new: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the name and both values of the first setting that differs, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            found = _difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if old == new else (name, old, new)
