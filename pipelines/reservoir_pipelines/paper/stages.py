"""Run a cell in this process, or estimate its cost from a short trial on this machine."""

import inspect
import io
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import CacheError, folder_bytes, refuse_links, untracked

from reservoir import options as opt
from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.devices import choose_device, on_gpu
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.paper import paper_counts
from reservoir.plan import TRAIN_STEPS
from reservoir_pipelines import attention, extract, fit, plan, prepare, pretrain, train
from reservoir_pipelines.card import card
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.paper.recipe import groups
from reservoir_pipelines.paper.reproduction_folder import Cell
from reservoir_pipelines.reports.views import fit_values, train_values
from reservoir_pipelines.training.run_folder import OtherSettingsError
from reservoir_pipelines.workers import map_pieces

TRIAL_STEPS = 8
TRIAL_ROWS = 32
FORWARD = 1 / 3  # time of a forward pass, as in validation, relative to a training step
# settings that determine the cost of a cell
COSTLY = (
    *("backbone", "depth", "input", "patch", "stride", "layers", "pool"),
    *("parameters", "limit", "train", "batch", "steps", "sweep"),
)
# inits of every model, with which it takes the same time; None is the default
SHARED_INITS = (None, "pretrained", "statistics", "random", "random-scaled", "random-flat")
COUNTED_TASK = "cifar10"  # trained parameters are counted for this task, as in the paper
MAX_TOKENS = 120  # largest side of a saved attention map, in tokens; larger maps are averaged over squares


@dataclass(frozen=True)
class CellRun:
    """What running a cell has given."""

    commands: list[str]  # command lines that repeat it
    path: Path  # folder of a fit, a run or a model, or the file of a plot
    bytes: int  # disk space
    values: dict[str, Any]  # what tables and plots show, by name


def run_cell(
    cell: Cell, folder: Path, folders: Mapping[str, str], place_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a cell and return its result as JSON values.

    ``folder`` is for files that do not belong in the cache. ``folders`` has the folders of the cells that this cell
    needs, by key, and ``place_settings`` the user's cache, data and device.
    """
    # Some stages write a folder of this name, which must not be a link to another one.
    path = folder / cell.key
    refuse_links(path)
    # A setting that is a cell becomes the folder of that cell.
    settings = {
        name: folders[value.key] if isinstance(value, Cell) else value
        for name, value in cell.settings.items()
    }
    run_stage = _RUNNERS[cell.stage]
    run = run_stage(cell.task or "", {**settings, **place_settings}, path)
    device = place_settings.get("device") or str(choose_device("auto"))  # absent if the user chose none
    made_with = versions("torch", "transformers", "numpy") | {"device": device}
    return {
        "commands": run.commands,
        "folder": str(run.path),
        "bytes": run.bytes,
        "values": run.values,
        "made_with": made_with,
    }


def _keywords(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a public function has a keyword for."""
    # A cell of the stage fit has the settings of two functions, and a reproduction adds its cache, data folder and
    # device, which not every function uses.
    names = inspect.signature(function).parameters
    return {name: value for name, value in settings.items() if name in names}


# Each of the next functions runs the cells of one stage, see `_RUNNERS`. It gets the task ("" for stages that have
# none), the settings with the user's cache, data and device, and a path for a file or folder of the cell.


def _fit(task: str, settings: dict[str, Any], _: Path) -> CellRun:
    """Extract the features of a task, fit readouts to them, and return the scores and the cost of the best one."""
    # The entry does not become the last one of its task, which other commands read by default.
    with untracked():
        features = extract(task, **_keywords(extract, settings))
    result = fit(features, **_keywords(fit, settings))
    # If the saved readout reads the raw input or a statistic of it, the features have no part in its cost.
    is_baseline = result.best.columns in {baseline.columns for baseline in result.baselines}
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
        "cost": result.seconds + (0 if is_baseline else features.seconds),
    }
    return CellRun(commands, result.saved.parent, 0 if is_baseline else features.bytes, values)


def _train(task: str, settings: dict[str, Any], _: Path) -> CellRun:
    """Train a model on a task, and return its scores and its cost."""
    result = train(task, **_keywords(train, settings))
    options = as_group(settings, opt.TrainOptions)
    # A sweep costs the time and the rows of all its runs; a single run has no trials.
    cost = sum(trial["seconds"] for trial in result.trials) or result.seconds
    # The scored run is the first trial. Each trial may have its own batch.
    rows_of_step = [
        trial.get("batch", options.batch) * trial.get("accumulate", options.accumulate)
        for trial in result.trials or ({},)
    ]
    values = train_values(result) | {
        "cost": cost,
        "passes": result.steps * sum(rows_of_step),
        "scored_passes": result.steps * rows_of_step[0],
    }
    commands = [typed("train", [task], *groups("train", settings))]
    return CellRun(commands, result.path, folder_bytes(result.path), values)


def _attention(task: str, settings: dict[str, Any], path: Path) -> CellRun:
    """Compute attention maps, and return their mean over the heads, in a size that can be stored as JSON."""
    plot = path.with_suffix(".png")
    settings |= {"out": plot}
    result = attention(task, **_keywords(attention, settings))
    mean_map = np.nan_to_num(result.mean.mean(axis=0))  # (tokens, tokens); 0 where the model overflows
    values = {
        "diagonals": result.diagonal_strength,
        "strongest_distance": result.strongest_distance,
        "map": _reduced_map(mean_map).round(5).tolist(),
        "layer": result.layer,
        "rows": result.rows,
        "passes": result.rows,
        "lines": {str(back): name for back, name in result.diagonals.items()},
    }
    size = sum(file.stat().st_size for file in (plot, result.arrays) if file.exists())
    return CellRun([typed("attention", [task], *groups("attention", settings))], plot, size, values)


def _reduced_map(mean_map: np.ndarray) -> np.ndarray:
    """Return a map (tokens, tokens) as means over squares, so that it has at most `MAX_TOKENS` on a side."""
    factor = -(-len(mean_map) // MAX_TOKENS)  # tokens on the side of a square, rounded up
    side = len(mean_map) // factor
    covered = side * factor  # tokens in whole squares; the last ones, fewer than ``factor``, are left out
    squares = mean_map[:covered, :covered].reshape(side, factor, side, factor)
    return squares.mean(axis=(1, 3))


def _pretrain(_: str, settings: dict[str, Any], out: Path) -> CellRun:
    """Pretrain a backbone in the folder ``out``, and return its accuracy or its loss, and its cost."""
    corpus = settings.get("corpus")
    if corpus is None:
        raise InputError(
            "this package contains no text corpus", "pass --override corpus=TEXT, a file or a folder"
        )
    keywords = _keywords(pretrain, settings)
    del keywords["corpus"]  # which is passed by position
    try:
        result = pretrain(corpus, out=out, **keywords)
    except OtherSettingsError as error:
        # A run on what the corpus was before no longer counts. One with another setting, such as the precision, stays.
        if not error.setting.startswith("corpus"):
            raise
        shutil.rmtree(out)
        result = pretrain(corpus, out=out, **keywords)
    values = {
        "test_score": result.test_accuracy,
        "test_bits": result.test_bits,
        "steps": result.steps,
        "train_seconds": result.seconds,
        "cost": result.seconds,
    }
    _, shape, pretrain_options, place = groups("pretrain", settings)  # the first group has the corpus alone
    command = typed("pretrain", [corpus], shape, pretrain_options, place, opt.OutOptions(out=out))
    return CellRun([command], out, folder_bytes(out), values)


def _backbone(_: str, settings: dict[str, Any], path: Path) -> CellRun:
    """Return the shape, the numbers of parameters and the deviations of the weights of a backbone."""
    name = settings.pop("backbone", DEFAULT_BACKBONE)
    settings.pop("device", None)  # `card` has no device
    model, root = as_group(settings, opt.ModelOptions), as_group(settings, opt.CacheOptions)
    plot = path.with_suffix(".png")
    out = opt.OutOptions(out=plot)
    task_options = as_group({}, opt.TaskOptions)
    described = card(name, model, task_options, root, out, COUNTED_TASK, counts={"paper": paper_counts})
    copied_names = ("width", "heads", "weight_deviation", "bias_deviation", "deviations")
    values = {value_name: described[value_name] for value_name in copied_names} | {
        "blocks": described["depth"],
        "parameters": described["whole"],
        "paper_share": described.get("paper_share"),
    }
    command = typed("backbone", [name, "--task", COUNTED_TASK], model, root, out)
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
    """The estimated cost of a cell, or the reason why it cannot run on this machine."""

    seconds: float = 0.0  # 0 if not estimated
    bytes: float = 0.0  # disk space; 0 if not estimated
    reason: str = ""  # empty if the cell can run

    @property
    def is_unknown(self) -> bool:
        """Whether there is neither an estimated time nor a reason why the cell cannot run, as in `NO_ESTIMATE`."""
        return not self.seconds and not self.reason


NO_ESTIMATE = Cost()
"""The cost of a cell of a stage that has no trial."""


def estimate(cells: Sequence[Cell], place_settings: Mapping[str, Any], workers: int = 1) -> dict[str, Cost]:
    """Try one cell of each kind, print the total cost, and return the cost of each cell by its key.

    ``place_settings`` has the user's cache, data and device; ``workers`` processes share the trials.
    """
    # Cells that differ only in other settings, such as the seed, take the same time.
    kinds: dict[tuple[Any, ...], dict[str, list[Cell]]] = {}
    for cell in cells:
        cells_of_init = kinds.setdefault(_kind(cell), {})
        cells_of_init.setdefault(str(cell.settings.get("init")), []).append(cell)
    # On busy cores a trial counts processor time. A GPU has no such time, so that its trials run one after the other.
    may_share = not on_gpu(choose_device(place_settings.get("device", "auto")))
    trials = [
        ([cells_of_init[init][0] for init in _inits_to_try(cells_of_init)], place_settings)
        for cells_of_init in kinds.values()
    ]
    costs_of_kinds = map_pieces(_costs_of_trials, trials, workers=workers if may_share else 1)
    costs = {
        cell.key: cost
        for cells_of_init, costs_of_inits in zip(kinds.values(), costs_of_kinds, strict=True)
        for init, cost in zip(_inits_to_try(cells_of_init), costs_of_inits, strict=True)
        for cell in cells_of_init[init]
    }
    if costs:
        _notify_of_total(list(costs.values()))
    return costs


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Return what the cost of a cell depends on, as far as it is known before a trial."""
    # The same model stands for those of all cells that do not exist yet, see `_cost_of_trial`.
    values = [cell.settings.get(name) for name in COSTLY]
    names = ["a cell" if isinstance(value, Cell) else str(value) for value in values]
    init = cell.settings.get("init")
    return cell.stage, cell.task, *names, "" if init in SHARED_INITS else init


def _inits_to_try(inits: Iterable[str]) -> list[str]:
    """Return the inits of a kind in the order of their trials: first those that need files with weights."""
    return sorted(inits, key=lambda init: init.startswith("random"))


def _notify_of_total(costs: Sequence[Cost]) -> None:
    """Print the total cost of cells, and why some of them cannot run."""
    seconds = sum(cost.seconds for cost in costs)
    size = sum(cost.bytes for cost in costs)
    unknown_count = sum(cost.is_unknown for cost in costs)
    unknown_text = f"; {unknown_count} without an estimate" if unknown_count else ""
    time = f"{time_text(seconds)} without fitting readouts"
    notify(f"{len(costs)} cells to run: about {time}, {size_text(int(size))}{unknown_text}")
    if reasons := [cost.reason for cost in costs if cost.reason]:
        notify(f"{len(reasons)} of the cells cannot run here: {'; '.join(dict.fromkeys(reasons))}")


def _costs_of_trials(cells: Sequence[Cell], place_settings: Mapping[str, Any]) -> list[Cost]:
    """Return the cost of each of some cells that take the same time: they are tried until one of them can run."""
    costs: list[Cost] = []
    for cell in cells:
        is_known = bool(costs) and not costs[-1].reason
        costs.append(costs[-1] if is_known else _cost_of_trial(cell, place_settings))
    return costs


def _cost_of_trial(cell: Cell, place_settings: Mapping[str, Any]) -> Cost:
    """Return the cost of a cell from a short trial, or the reason why it cannot run.

    ``place_settings`` has the user's cache, data and device.
    """
    notify(f"trying {cell.title}")
    # Attention maps and cards take seconds, and the final scores of a pretraining run are too slow for a trial.
    if cell.stage not in ("fit", "train"):
        return NO_ESTIMATE
    settings = {name: value for name, value in cell.settings.items() if not isinstance(value, Cell)}
    settings |= place_settings
    # The pretrained model of another cell may not exist yet; the default backbone with random weights stands for it.
    if cell.needs:
        settings["init"] = "random"
    task = cell.task or ""
    try:
        # The messages of a trial are not shown.
        with redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
            if cell.stage == "fit":
                estimated = plan(task, **_keywords(plan, settings))
                return Cost(estimated.seconds, estimated.bytes)
            return _cost_of_training(task, settings, Path(folder))
    except (InputError, CacheError, OSError, RuntimeError) as error:
        return Cost(reason=str(error).partition("\n")[0])


def _cost_of_training(task: str, settings: Mapping[str, Any], folder: Path) -> Cost:
    """Return the cost of a training run from the time of its first steps, which are run in ``folder``."""
    valid_rows = prepare(task, **_keywords(prepare, settings)).rows["valid"]
    trial_settings = {
        "steps": TRIAL_STEPS,
        "eval_every": TRIAL_STEPS,
        "limit": TRIAL_ROWS,
        "sweep": None,
        "resume": False,
        "from_cache": False,
        "run": folder / "run",
    }
    result = train(task, **_keywords(train, {**settings, **trial_settings}))
    step_seconds = result.seconds / result.steps
    # A validation after every ``eval_every`` steps passes its rows forward only.
    options = as_group(settings, opt.TrainOptions)
    steps = options.steps or TRAIN_STEPS
    rows_of_validation = min(valid_rows, settings.get("limit") or valid_rows)
    validated_rows = rows_of_validation * steps / options.eval_every
    seconds = step_seconds * steps + FORWARD * step_seconds / options.batch * validated_rows
    runs = prod(
        len(values) if isinstance(values, list | tuple) else 1 for values in (options.sweep or {}).values()
    )
    return Cost(runs * seconds, runs * folder_bytes(folder))
