"""Run a cell in this process, or estimate its cost from a short trial on this machine."""

import inspect
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import CacheError, folder_bytes, refuse_links, untracked

from reservoir import options as opt
from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.devices import choose_device
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.paper.families import paper_counts
from reservoir.plan.rates import TRAIN_STEPS
from reservoir_pipelines import attention, extract, fit, plan, prepare, pretrain, train
from reservoir_pipelines.card import card
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.paper.recipe import groups
from reservoir_pipelines.paper.reproduction_folder import Cell
from reservoir_pipelines.reports.views import fit_values, train_values

TRIAL_STEPS, TRIAL_ROWS = 8, 32  # steps and rows of a trial
FORWARD = 1 / 3  # time of a forward pass, as in validation, relative to a training step
# settings that determine the cost of a cell
COSTLY = "backbone", "depth", "init", "train", "pool", "layers", "parameters", "limit", "batch", "steps"
COUNTED = "cifar10"  # trained parameters are counted for this task, as in the paper
MAX_TOKENS = 120  # largest side of a saved attention map, in tokens; larger maps are averaged over squares


@dataclass(frozen=True)
class CellRun:
    """What a cell gave: the commands that reproduce it, its folder or file with its size in bytes, and its values."""

    commands: list[str]
    path: Path
    bytes: int
    values: dict[str, Any]


def run_cell(
    cell: Cell, folder: Path, folders: Mapping[str, str], places: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a cell and return its result.

    ``folders`` has the folders of the cells that it needs, by key, and ``places`` the user's cache, data and device.
    """
    refuse_links(folder / cell.key)
    # A setting that is a cell becomes the folder of that cell.
    settings = {
        name: folders[value.key] if isinstance(value, Cell) else value
        for name, value in cell.settings.items()
    }
    run = _RUNNERS[cell.stage](cell.task or "", {**settings, **places}, folder / cell.key)
    made_with = versions("torch", "transformers", "numpy") | {"device": str(choose_device("auto"))}
    return {
        "commands": run.commands,
        "folder": str(run.path),
        "bytes": run.bytes,
        "values": run.values,
        "made_with": made_with,
    }


def _keywords(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a public function has a keyword for."""
    # The settings of a cell may belong to two functions, and a reproduction adds its cache, data folder and device.
    names = inspect.signature(function).parameters
    return {name: value for name, value in settings.items() if name in names}


def _fit(task: str, settings: dict[str, Any], _: Path) -> CellRun:
    """Extract a task and fit its columns."""
    with untracked():
        features = extract(task, **_keywords(extract, settings))
    result = fit(features, **_keywords(fit, settings))
    # If the saved readout reads the raw input or a statistic of it, the features have no part in its cost.
    without_model = result.best.columns in {baseline.columns for baseline in result.baselines}
    extract_options, fit_options, place = groups("fit", settings)
    commands = [
        typed("extract", [task], extract_options),
        typed("fit", [features.store.entry.key[:16]], fit_options, place),
    ]
    values = fit_values(result.to_dict() | {"title": result.best.title}, result.results) | {
        "fit_seconds": result.seconds,
        "extract_seconds": features.seconds,
        "reused": features.reused,
        "passes": features.computed_rows,
        "cost": result.seconds + (0 if without_model else features.seconds),
    }
    return CellRun(commands, result.saved.parent, 0 if without_model else features.bytes, values)


def _train(task: str, settings: dict[str, Any], _: Path) -> CellRun:
    result = train(task, **_keywords(train, settings))
    recipe = as_group(settings, opt.TrainOptions)
    # A sweep costs the time and the rows of all its runs.
    cost = sum(trial["seconds"] for trial in result.trials) or result.seconds
    passes = result.steps * recipe.batch * recipe.accumulate * max(1, len(result.trials))
    values = train_values(result) | {"cost": cost, "passes": passes}
    commands = [typed("train", [task], *groups("train", settings))]
    return CellRun(commands, result.path, folder_bytes(result.path), values)


def _attention(task: str, settings: dict[str, Any], place: Path) -> CellRun:
    """Compute attention maps, and keep their mean in a size that can be stored."""
    plot = place.with_suffix(".png")
    settings |= {"out": plot}
    result = attention(task, **_keywords(attention, settings))

    # The mean over the heads, averaged over squares of ``factor`` tokens if it is too large to store.
    mean_map = np.nan_to_num(result.mean.mean(axis=0))
    factor = -(-len(mean_map) // MAX_TOKENS)
    side = len(mean_map) // factor
    covered = side * factor  # tokens in whole squares; the last ones, fewer than ``factor``, are left out
    squares = mean_map[:covered, :covered].reshape(side, factor, side, factor)
    values = {
        "diagonals": result.diagonal_strength,
        "strongest_distance": result.strongest_distance,
        "map": squares.mean(axis=(1, 3)).round(5).tolist(),
        "layer": result.layer,
        "rows": result.rows,
        "passes": result.rows,
        "lines": {str(back): name for back, name in result.diagonals.items()},
    }
    size = sum(path.stat().st_size for path in (plot, result.arrays) if path.exists())
    return CellRun([typed("attention", [task], *groups("attention", settings))], plot, size, values)


def _pretrain(_: str, settings: dict[str, Any], out: Path) -> CellRun:
    corpus = settings.get("corpus")
    if corpus is None:
        raise InputError(
            "this package contains no text corpus", "pass --override corpus=TEXT, a file or a folder"
        )
    keywords = _keywords(pretrain, settings)
    del keywords["corpus"]
    result = pretrain(corpus, out=out, **keywords)
    values = {"test_score": result.test_accuracy, "test_bits": result.test_bits, "steps": result.steps}
    values |= {"train_seconds": result.seconds, "cost": result.seconds}
    _, shape, recipe, place = groups("pretrain", settings)
    command = typed("pretrain", [corpus], shape, recipe, place, opt.OutOptions(out=out))
    return CellRun([command], out, folder_bytes(out), values)


def _backbone(_: str, settings: dict[str, Any], place: Path) -> CellRun:
    name, plot = settings.pop("backbone", DEFAULT_BACKBONE), place.with_suffix(".png")
    settings.pop("device", None)  # `card` has no device
    model, root = as_group(settings, opt.ModelOptions), as_group(settings, opt.CacheOptions)
    out = opt.OutOptions(out=plot)
    data = as_group({}, opt.TaskOptions)
    described = card(name, model, data, root, out, COUNTED, counts={"paper": paper_counts})
    copied = ("width", "heads", "weight_deviation", "bias_deviation", "deviations")
    values = {value: described[value] for value in copied} | {
        "blocks": described["depth"],
        "parameters": described["whole"],
        "paper_share": described.get("paper_share"),
    }
    command = typed("backbone", [name, "--task", COUNTED], model, root, out)
    return CellRun([command], plot, plot.stat().st_size if plot.exists() else 0, values)


_RUNNERS: dict[str, Callable[[str, dict[str, Any], Path], CellRun]] = {
    "fit": _fit,
    "train": _train,
    "attention": _attention,
    "pretrain": _pretrain,
    "backbone": _backbone,
}


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes of a cell, or the reason why it cannot run on this machine."""

    seconds: float = 0.0
    bytes: float = 0.0
    reason: str = ""

    @property
    def is_unknown(self) -> bool:
        """Whether there is neither an estimated time nor a reason why the cell cannot run, as in `NO_ESTIMATE`."""
        return not self.seconds and not self.reason


NO_ESTIMATE = Cost()


def estimate(cells: Sequence[Cell], places: Mapping[str, Any]) -> dict[str, Cost]:
    """Try one cell of each kind, print the total cost, and return the cost of each cell by its key.

    ``places`` has the user's cache, data and device.
    """
    cost_of_kind: dict[tuple[Any, ...], Cost] = {}
    costs: dict[str, Cost] = {}
    for cell in cells:
        # Cells that differ only in other settings, such as the seed, take the same time.
        kind = cell.stage, cell.task, *(str(cell.settings.get(name)) for name in COSTLY)
        if kind not in cost_of_kind:
            notify(f"trying {cell.title}")
            cost_of_kind[kind] = _cost_of_trial(cell, places)
        costs[cell.key] = cost_of_kind[kind]
    if costs:
        seconds = sum(cost.seconds for cost in costs.values())
        size = sum(cost.bytes for cost in costs.values())
        without_estimate = sum(cost.is_unknown for cost in costs.values())
        rest = f"; {without_estimate} without an estimate" if without_estimate else ""
        time = f"{time_text(seconds)} without fitting readouts"
        notify(f"{len(costs)} cells to run: about {time}, {size_text(int(size))}{rest}")
    if reasons := [cost.reason for cost in costs.values() if cost.reason]:
        notify(f"{len(reasons)} of the cells cannot run here: {'; '.join(dict.fromkeys(reasons))}")
    return costs


def _cost_of_trial(cell: Cell, places: Mapping[str, Any]) -> Cost:
    """Return the cost of a cell from a short trial, or the reason why it cannot run.

    ``places`` has the user's cache, data and device.
    """
    # The backbone of another cell does not exist yet; random weights cost the same.
    settings = {n: v for n, v in cell.settings.items() if not isinstance(v, Cell)} | dict(places)
    if cell.needs:
        settings["init"] = "random"
    task = cell.task or ""
    try:
        with redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
            if cell.stage == "fit":
                estimated = plan(task, **_keywords(plan, settings))
                return Cost(estimated.seconds, estimated.bytes)
            # Attention maps and cards take seconds, and the final scores of a pretraining run are too slow for a trial.
            if cell.stage != "train":
                return NO_ESTIMATE
            return _cost_of_training(task, settings, Path(folder))
    except (InputError, CacheError, OSError, RuntimeError) as error:
        return Cost(reason=str(error).partition("\n")[0])


def _cost_of_training(task: str, settings: Mapping[str, Any], folder: Path) -> Cost:
    """Return the cost of a training run, from the time of its first steps."""
    valid_rows = prepare(task, **_keywords(prepare, settings)).rows["valid"]
    trial = {
        "steps": TRIAL_STEPS,
        "eval_every": TRIAL_STEPS,
        "limit": TRIAL_ROWS,
        "resume": False,
        "from_cache": False,
        "run": folder / "run",
    }
    result = train(task, **_keywords(train, {**settings, **trial}))
    step_seconds = result.seconds / result.steps
    # Validations pass their rows forward only; there is one after every ``eval_every`` steps.
    recipe = as_group(settings, opt.TrainOptions)
    steps = recipe.steps or TRAIN_STEPS
    validated_rows = min(valid_rows, settings.get("limit") or valid_rows) * steps / recipe.eval_every
    seconds = step_seconds * steps + FORWARD * step_seconds / recipe.batch * validated_rows
    return Cost(seconds, folder_bytes(folder))
