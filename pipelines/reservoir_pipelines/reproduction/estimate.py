"""Time and disk space of a reproduction, estimated from a short trial of each kind of cell on this machine."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache import folder_bytes

from reservoir.errors import InputError
from reservoir.options import ExtractOptions, RowOptions
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.reproduction.cell import Cell, group, groups

STEPS, ROWS = 8, 32
"""Steps and rows of a trial."""

FORWARD = 1 / 3
"""Share of the forward pass in the time of a training step; validation takes this share."""


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes of a cell, or the reason why it cannot run on this machine."""

    seconds: float = 0.0
    bytes: float = 0.0
    reason: str = ""


def estimate(cells: Sequence[Cell], places: Mapping[str, Any]) -> dict[str, Cost]:
    """Try one cell of each kind, print the total, and return the cost of each cell by its key."""
    tried: dict[tuple[Any, ...], Cost] = {}
    costs: dict[str, Cost] = {}
    for cell in cells:
        kind = _kind(cell)
        if kind not in tried:
            notify(f"trying {cell.title}")
            tried[kind] = _try(cell, places)
        costs[cell.key] = tried[kind]
    if costs:
        seconds, size = sum(cost.seconds for cost in costs.values()), sum(cost.bytes for cost in costs.values())
        notify(f"{len(costs)} cells to run: about {time_text(seconds)} on this machine, {size_text(int(size))}")
    if reasons := [cost.reason for cost in costs.values() if cost.reason]:
        notify(f"{len(reasons)} of them cannot run here: {'; '.join(dict.fromkeys(reasons))}")
    return costs


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Return what cells of about equal cost have in common."""
    settings = cell.settings
    shape, train = settings.get("backbone"), settings.get("train", "")
    most = any(group in train for group in ("all", "attention", "feedforward"))
    model = "" if isinstance(shape, Cell) else shape, settings.get("depth"), settings.get("init")
    return (cell.stage, cell.task, *model, most, train == "output", settings.get("pool"), settings.get("layers"))


def _try(cell: Cell, places: Mapping[str, Any]) -> Cost:
    from reservoir_cache import CacheError

    trials = {"train": _try_train, "fit": _try_fit}
    if cell.stage not in trials:
        return Cost()
    # A pretrained backbone does not exist yet. One with random weights costs the same.
    settings = {n: v for n, v in cell.settings.items() if not isinstance(v, Cell)}
    if len(settings) < len(cell.settings):
        settings["init"] = "random"
    try:
        with redirect_stderr(io.StringIO()):
            return trials[cell.stage](cell.task or "", {**settings, **places})
    except (InputError, CacheError, OSError, RuntimeError) as error:
        return Cost(reason=str(error).partition("\n")[0])


def _try_train(task: str, settings: dict[str, Any]) -> Cost:
    from reservoir_pipelines.preparation.prepare import prepare
    from reservoir_pipelines.training.train import train

    rows = prepare(task, group(RowOptions, settings), cache=settings.get("cache")).rows
    steps, every = settings["steps"], settings["eval_every"]
    short = {"steps": STEPS, "eval_every": STEPS, "limit": ROWS, "resume": False, "from_cache": False}
    with tempfile.TemporaryDirectory() as folder:
        done = train(task, *groups("train", settings | short | {"run": Path(folder) / "run"}))
        size = folder_bytes(Path(folder))
    step = done.seconds / done.steps
    validated = min(rows["valid"], settings.get("limit") or rows["valid"]) * steps / every
    return Cost(step * steps + FORWARD * step / settings["batch"] * validated, size)


def _try_fit(task: str, settings: dict[str, Any]) -> Cost:
    from reservoir_pipelines.extraction.forecast import plan

    found = plan(task, group(ExtractOptions, settings))
    return Cost(found.seconds, found.bytes)
