"""The folder of a training: what was asked, what happened step by step, checkpoints, and the result."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir import InputError
from reservoir_pipelines.preparation.prepared import scaling_to_json
from reservoir_pipelines.training.checkpoint import State, last_checkpoint, read_state
from reservoir_pipelines.workspace import replace_file

if TYPE_CHECKING:
    from reservoir.reservoir import LoadedModel
    from reservoir.tasks.task import Scaling
    from reservoir.training.target_scale import TargetScale

FORMAT = 1
CONFIG, METRICS, RESULT, CURVE, CHECKPOINTS = "config.json", "metrics.jsonl", "run.json", "curve.png", "checkpoints"


def make_config(
    *,
    spec: Mapping[str, Any],
    train: Sequence[str],
    recipe: Mapping[str, Any],
    processes: int,
    rows: str,
    model: LoadedModel,
    scaling: Scaling | None,
    targets: TargetScale | None,
) -> dict[str, Any]:
    """Return what a run keeps of how it was asked for.

    ``settings`` holds everything that changes a number of the run, and ``key`` is their SHA-256; the rest says where
    the model comes from and what the run was made with.
    """
    import numpy
    import torch
    import transformers

    settings = {"spec": spec, "train": sorted(train), "recipe": recipe, "processes": processes, "rows": rows}
    if targets:
        settings["targets"] = targets.to_json()
    return {
        "format": FORMAT,
        "key": hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest(),
        "settings": settings,
        "reservoir": model.settings.to_dict(),
        "scaling": scaling_to_json(scaling),
        "made_with": {
            "device": str(model.device),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": numpy.__version__,
        },
    }


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a training."""
    return (path / CONFIG).is_file() and (path / METRICS).is_file()


class Run:
    """The folder of one training.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> dict[str, Any]:
        """What was asked, resolved.

        Raises
        ------
        InputError
            If the folder is not that of a training, or is of another format.
        """
        return self._read("settings")

    @property
    def model_config(self) -> dict[str, Any]:
        """What was asked of `train`: of a pretraining there is no task to use its model on.

        Raises
        ------
        InputError
            If the folder is not that of a run of `train`, or is of another format.
        """
        return self._read("settings", "reservoir", "scaling")

    def _read(self, *parts: str) -> dict[str, Any]:
        try:
            config = json.loads((self.path / CONFIG).read_text())
            if config["format"] != FORMAT:
                raise InputError(f"{self.path}: run of format {config['format']}, not {FORMAT}; train again")
            if missing := {*parts} - config.keys():
                raise KeyError(*missing)
            if not isinstance(config["settings"], dict):
                raise TypeError
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: no run of reservoir train there ({type(error).__name__})") from error
        return config

    @property
    def last(self) -> Path | None:
        """The latest checkpoint."""
        return last_checkpoint(self.path / CHECKPOINTS)

    @property
    def best(self) -> Path:
        """The checkpoint that did best on the validation split.

        Raises
        ------
        InputError
            If there is none yet.
        """
        last, state = self.last, self.state
        if last is None or state is None:
            raise InputError(f"{self.path}: the run has no checkpoint yet; go on with reservoir train ... --resume")
        return last.with_name(f"step-{state.best_step:08d}")

    @property
    def state(self) -> State | None:
        """Where the run stands; a best checkpoint that somebody removed leaves its place to the last one.

        Raises
        ------
        InputError
            If the last checkpoint is damaged, or its validation is not in the journal.
        """
        last = self.last
        if last is None:
            return None
        state = read_state(last)
        if last.with_name(f"step-{state.best_step:08d}").is_dir():
            return state
        journal = self.path / METRICS
        for line in read_journal(journal) if journal.exists() else []:
            if line["step"] == state.step and "valid_accuracy" in line:
                score, loss = line["valid_accuracy"], line["valid_loss"]
                return replace(state, best_step=state.step, best_score=score, best_loss=loss)
        raise InputError(f"{journal}: the validation of step {state.step:,} is not in it; train in another folder")

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to, if it has ended and the file is whole."""
        try:
            result = json.loads((self.path / RESULT).read_text())
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, or check that it is the folder's, where a training has left something to go on from.

        Raises
        ------
        InputError
            If the folder holds another run, whose first setting that differs is named, or anything else.
        """
        there = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        if CONFIG not in there and there - {"lock"}:
            raise InputError(f"{self.path}: the folder has other things in it; name an empty or a new one")
        old = self.config["settings"] if CONFIG in there else {}
        if self.last is None and RESULT not in there:
            replace_file(self.path / CONFIG, lambda part: part.write_text(json.dumps(config, indent=1) + "\n"))
            return
        if different := _difference(old, json.loads(json.dumps(config["settings"]))):
            name, value, asked = different
            raise InputError(f"{self.path}: a run with {name} = {value} is there, not {asked}; name another folder")

    def reopen(self) -> None:
        """Take the result away: the run goes on, and what it came to will be another."""
        (self.path / RESULT).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        replace_file(self.path / RESULT, lambda part: part.write_text(json.dumps(result, indent=1) + "\n"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for the time of the context.

        Raises
        ------
        InputError
            If another process trains there, or nothing can be written there.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("w")
        except OSError as error:
            raise InputError(
                f"{self.path}: no run can be kept there ({error.strerror}); name another folder"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path}: another process trains this run; wait for it, or stop it") from None
            yield


class Journal:
    """The lines of ``metrics.jsonl``: one per step (``loss``, ``accuracy``, ``norm``) and one per validation.

    Parameters
    ----------
    path : Path
        The file.
    step : int
        Steps that the run goes on from; lines of later ones are taken out.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        kept = [line for line in read_journal(path) if line["step"] <= step] if path.exists() else []
        replace_file(path, lambda part: part.write_text("".join(json.dumps(line) + "\n" for line in kept)))

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Append lines; what is not finite becomes null, which JSON has."""
        finite = [{name: value if math.isfinite(value) else None for name, value in line.items()} for line in lines]
        with self._path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in finite))


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal up to the first that is none, as after a kill."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


def _difference(old: Any, new: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the name and the two values of the first setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            found = _difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if old == new else (name, old, new)
