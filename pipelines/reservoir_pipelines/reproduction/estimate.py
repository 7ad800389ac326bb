"""What a reproduction will cost: a short trial of each kind of cell on this machine, multiplied up to its size."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.options import ExtractOptions
from reservoir_pipelines.files import folder_bytes
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.reproduction.cell import Cell, group, groups
from reservoir_pipelines.reproduction.reproduce import title

STEPS, ROWS = 8, 32
"""Steps and rows of a trial."""

FORWARD = 1 / 3
"""Share of a step's time that its forward pass takes, as a validation does."""


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes of a kind of cell, or why it cannot run here."""

    seconds: float = 0.0
    bytes: float = 0.0
    reason: str = ""


def estimate(cells: Sequence[Cell], places: Mapping[str, Any]) -> dict[str, Cost]:
    """Try one cell of each kind for some steps or rows, and say what all will cost; return the cost of each by key."""
    tried: dict[tuple[Any, ...], Cost] = {}
    costs: dict[str, Cost] = {}
    for cell in cells:
        kind = _kind(cell)
        if kind not in tried:
            notify(f"trying {title(cell)}")
            tried[kind] = _try(cell, places)
        costs[cell.key] = tried[kind]
    seconds, size = (sum(getattr(cost, name) for cost in costs.values()) for name in ("seconds", "bytes"))
    if costs:
        notify(f"{len(costs)} cells to run: about {time_text(seconds)} on this machine, {size_text(int(size))}")
    if away := [cost.reason for cost in costs.values() if cost.reason]:
        notify(f"{len(away)} of them cannot run here: {'; '.join(dict.fromkeys(away))}")
    return costs


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Return what decides the cost of a cell: its stage, task, model, and whether most, or the output alone, learns."""
    settings = cell.settings
    shape, train = settings.get("backbone"), settings.get("train", "")
    most = any(group in train for group in ("all", "attention", "feedforward"))
    model = "" if isinstance(shape, Cell) else shape, settings.get("depth"), settings.get("init")
    return (cell.stage, cell.task, *model, most, train == "output")


def _try(cell: Cell, places: Mapping[str, Any]) -> Cost:
    from reservoir_cache import CacheError

    trials = {"train": _try_train, "fit": _try_fit}
    if cell.stage not in trials:
        return Cost()
    try:
        with redirect_stderr(io.StringIO()):
            return trials[cell.stage](cell, places)
    except (InputError, CacheError, OSError, RuntimeError) as error:
        return Cost(reason=str(error).partition("\n")[0])


def _try_train(cell: Cell, places: Mapping[str, Any]) -> Cost:
    from reservoir_pipelines.preparation.prepare import prepare
    from reservoir_pipelines.training.train import train

    settings = {n: v for n, v in cell.settings.items() if not isinstance(v, Cell)}
    if len(settings) < len(cell.settings):  # what is made first has the scale's own shape
        settings["init"] = "random"
    settings |= places
    rows = prepare(cell.task, *groups("train", settings)).rows
    steps, every = settings["steps"], settings["eval_every"]
    short = {"steps": STEPS, "eval_every": STEPS, "limit": ROWS, "resume": False, "from_cache": False}
    with tempfile.TemporaryDirectory() as folder:
        done = train(cell.task, *groups("train", settings | short | {"run": Path(folder) / "run"}))
        size = folder_bytes(Path(folder))
    step = done.seconds / done.steps
    scored = min(rows["valid"], settings.get("limit") or rows["valid"]) * steps / every
    return Cost(step * steps + FORWARD * step / settings["batch"] * scored, size)


def _try_fit(cell: Cell, places: Mapping[str, Any]) -> Cost:
    from reservoir_pipelines.extraction.forecast import plan

    found = plan(cell.task, group(ExtractOptions, {**cell.settings, **places}))
    return Cost(found.seconds, found.bytes)
