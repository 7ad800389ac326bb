"""The folder of a training: what was asked, what happened step by step, checkpoints, and the result."""

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
    """Return what a run keeps: ``settings`` is all that changes a number, ``key`` its SHA-256; ``more`` is kept too."""
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


class Run:
    """The folder of one training; what is damaged in it is refused when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> dict[str, Any]:
        """What was asked, resolved."""
        return self._read("settings")

    @property
    def model_config(self) -> dict[str, Any]:
        """What was asked of `train`: of a pretraining there is no task to use its model on."""
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
            raise InputError(f"{self.path}: no run of reservoir train there ({type(error).__name__})") from error
        return config

    @property
    def last(self) -> Path | None:
        """The latest checkpoint."""
        return last_checkpoint(self.path / CHECKPOINTS)

    @property
    def best(self) -> Path:
        """The checkpoint that did best on the validation split."""
        if not (state := self.state).step:
            raise InputError(f"{self.path}: the run has no checkpoint yet; go on with reservoir train ... --resume")
        return self.path / CHECKPOINTS / f"step-{state.best_step:08d}"

    @property
    def state(self) -> State:
        """Where the run stands; a best checkpoint that somebody removed leaves its place to the last one."""
        if (last := self.last) is None:
            return State()
        state = read_state(last)
        if last.with_name(f"step-{state.best_step:08d}").is_dir():
            return state
        for line in self.history:
            if line["step"] == state.step and state.best.keys() <= line.keys():
                return replace(state, best_step=state.step, best={name: line[name] for name in state.best})
        journal = self.path / METRICS
        raise InputError(f"{journal}: the validation of step {state.step:,} is not in it; train in another folder")

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the journal."""
        return read_journal(self.path / METRICS)

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to, if it has ended."""
        path = self.path / RESULT
        try:
            return read_checked(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); remove it, and train on with --resume") from error

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, or check that it is the folder's, where a training has left something to go on from.

        A folder that holds another run, whose first setting that differs is named, or anything else, is refused.
        """
        for folder in (self.path, self.path / CHECKPOINTS):
            remove_parts(folder)
        there = {path.name for path in self.path.iterdir()}
        if CONFIG not in there and there - {"lock"}:
            raise InputError(f"{self.path}: the folder has other things in it; name an empty or a new one")
        old = self.config["settings"] if CONFIG in there else {}
        if self.last is None and RESULT not in there:
            write_checked(self.path / CONFIG, config)
            return
        if different := _difference(old, json.loads(json.dumps(config["settings"]))):
            name, value, new = different
            raise InputError(f"{self.path}: a run with {name} = {value} is there, not {new}; name another folder")

    def reopen(self) -> None:
        """Take the result away: the run goes on, and what it came to will be another."""
        (self.path / RESULT).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        write_checked(self.path / RESULT, result)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for the time of the context."""
        with writing(self.path, "name another folder"):
            make_folder(self.path)
            refuse_links(self.path / CHECKPOINTS)
            file = os.fdopen(open_lock(self.path / "lock"), "rb")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path}: another process trains this run; wait for it, or stop it") from None
            yield


def _difference(old: Any, new: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the name and the two values of the first setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            found = _difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if old == new else (name, old, new)
