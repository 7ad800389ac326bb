"""The folder of a training run: where its files lie, who may write in it, and how they are read back."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from reservoir_cache import locked, make_folder, refuse_links, remove_leftovers

from reservoir.errors import InputError, as_input_error
from reservoir.training.trainer import State
from reservoir_pipelines.files import read_checked, write_checked, writing
from reservoir_pipelines.training.checkpoints import checkpoint_path, read_state
from reservoir_pipelines.training.journal import read_journal
from reservoir_pipelines.training.run_config import CONFIG, differences, read_config

METRICS, RESULT, CHECKPOINTS, LOCK = "metrics.jsonl", "run.json", "checkpoints", "lock"
CURVE, CONFUSION = "curve.png", "confusion.png"
R = TypeVar("R")


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
