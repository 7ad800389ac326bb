"""Run a cell in this process, or estimate its cost from a short trial on this machine."""

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
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.reservoir import choose_device
from reservoir_pipelines.attention_maps import attention
from reservoir_pipelines.card import card
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.extraction.forecast import plan
from reservoir_pipelines.files import versions
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.pretraining.pretrain import pretrain
from reservoir_pipelines.reports.views import fit_values, train_values
from reservoir_pipelines.reproduction.recipe import groups
from reservoir_pipelines.reproduction_folder import Cell
from reservoir_pipelines.training.train import STEPS, train

TRIAL_STEPS, ROWS = 8, 32  # steps and rows of a trial
FORWARD = 1 / 3  # time of a forward pass, as in validation, relative to a training step
# settings that determine the cost of a cell
COSTLY = "backbone", "depth", "init", "train", "pool", "layers", "parameters", "limit", "batch", "steps"
COUNTED = "cifar10"  # trained parameters are counted for this task, as in the paper
MAX_TOKENS = 120  # largest side of a saved attention map, in tokens; larger maps are averaged over squares


def run_cell(
    cell: Cell, folder: Path, folders: Mapping[str, str], places: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a cell and return its result; ``folders`` has the folders of the cells that it needs, by key."""
    refuse_links(folder / cell.key)
    settings = {n: folders[v.key] if isinstance(v, Cell) else v for n, v in cell.settings.items()}
    run = _RUNNERS[cell.stage]
    commands, made, size, values = run(cell.task or "", {**settings, **places}, folder / cell.key)
    made_with = versions("torch", "transformers", "numpy") | {"device": str(choose_device("auto"))}
    return {
        "commands": commands,
        "folder": str(made),
        "bytes": size,
        "values": values,
        "made_with": made_with,
    }


Ran = tuple[list[str], Path, int, dict[str, Any]]
"""The result of a cell: commands that reproduce it, its folder or file, its size in bytes, and its values."""


def _fit(task: str, settings: dict[str, Any], _: Path) -> Ran:
    asked, of_fit, place = groups("fit", settings)
    with untracked():
        features = extract(task, asked)
    done = fit(features, of_fit, place)
    no_model = done.best.columns in {baseline.columns for baseline in done.baselines}
    commands = [
        typed("extract", [task], asked),
        typed("fit", [features.store.entry.key[:16]], of_fit, place),
    ]
    values = fit_values(done.to_dict() | {"title": done.best.title}, done.results) | {
        "fit_seconds": done.seconds,
        "extract_seconds": features.seconds,
        "reused": features.reused,
        "passes": features.computed_rows,
        "cost": done.seconds + (0 if no_model else features.seconds),
    }
    return commands, done.saved.parent, 0 if no_model else features.bytes, values


def _train(task: str, settings: dict[str, Any], _: Path) -> Ran:
    given = groups("train", settings)
    done, recipe = train(task, *given), as_group(settings, opt.TrainOptions)
    cost = sum(run["seconds"] for run in done.swept) or done.seconds
    passes = done.steps * recipe.batch * recipe.accumulate * max(1, len(done.swept))
    values = train_values(done) | {"cost": cost, "passes": passes}
    return [typed("train", [task], *given)], done.path, folder_bytes(done.path), values


def _attention(task: str, settings: dict[str, Any], place: Path) -> Ran:
    plot = place.with_suffix(".png")
    given = groups("attention", settings | {"out": plot})
    done = attention(task, *given)
    shown = np.nan_to_num(done.mean.mean(axis=0))
    factor = -(-len(shown) // MAX_TOKENS)
    side = len(shown) // factor
    whole = side * factor
    shown = shown[:whole, :whole].reshape(side, factor, side, factor).mean(axis=(1, 3))
    values = {
        "diagonals": done.diagonal_strength,
        "strongest_distance": done.strongest_distance,
        "map": shown.round(5).tolist(),
        "layer": done.layer,
        "rows": done.rows,
        "passes": done.rows,
        "lines": {str(back): what for back, what in done.diagonals.items()},
    }
    size = sum(path.stat().st_size for path in (plot, done.arrays) if path.exists())
    return [typed("attention", [task], *given)], plot, size, values


def _pretrain(_: str, settings: dict[str, Any], out: Path) -> Ran:
    corpus = settings.get("corpus")
    if corpus is None:
        raise InputError(
            "this package contains no text corpus", "pass --override corpus=TEXT, a file or a folder"
        )
    _, shape, recipe, place = groups("pretrain", settings)
    done = pretrain(corpus, shape, recipe, place, out=out)
    values = {"test_score": done.test_accuracy, "test_bits": done.test_bits, "steps": done.steps}
    values |= {"train_seconds": done.seconds, "cost": done.seconds}
    command = typed("pretrain", [corpus], shape, recipe, place, opt.OutOptions(out=out))
    return [command], out, folder_bytes(out), values


def _backbone(_: str, settings: dict[str, Any], place: Path) -> Ran:
    name, plot = settings.pop("backbone", DEFAULT_BACKBONE), place.with_suffix(".png")
    settings.pop("device", None)  # `card` has no device
    model, root = as_group(settings, opt.ModelOptions), as_group(settings, opt.CacheOptions)
    out = opt.OutOptions(out=plot)
    done = card(name, model, as_group({}, opt.TaskOptions), root, out, COUNTED)
    values = {
        name: done[name] for name in ("width", "heads", "weight_deviation", "bias_deviation", "deviations")
    }
    values |= {"blocks": done["depth"], "parameters": done["whole"], "paper_share": done.get("paper_share")}
    command = typed("backbone", [name, "--task", COUNTED], model, root, out)
    return [command], plot, plot.stat().st_size if plot.exists() else 0, values


_RUNNERS: dict[str, Callable[[str, dict[str, Any], Path], Ran]] = {
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


def estimate(cells: Sequence[Cell], places: Mapping[str, Any]) -> dict[str, Cost]:
    """Try one cell of each kind, print the total cost, and return the cost of each cell by its key."""
    tried: dict[tuple[Any, ...], Cost] = {}
    costs: dict[str, Cost] = {}
    for cell in cells:
        kind = cell.stage, cell.task, *(str(cell.settings.get(name)) for name in COSTLY)
        if kind not in tried:
            notify(f"trying {cell.title}")
            tried[kind] = _try(cell, places)
        costs[cell.key] = tried[kind]
    if costs:
        seconds, size = (
            sum(cost.seconds for cost in costs.values()),
            sum(cost.bytes for cost in costs.values()),
        )
        untried = sum(not cost.seconds and not cost.reason for cost in costs.values())
        rest = f"; {untried} without an estimate" if untried else ""
        time = f"{time_text(seconds)} without fitting readouts"
        notify(f"{len(costs)} cells to run: about {time}, {size_text(int(size))}{rest}")
    if reasons := [cost.reason for cost in costs.values() if cost.reason]:
        notify(f"{len(reasons)} of the cells cannot run here: {'; '.join(dict.fromkeys(reasons))}")
    return costs


def _try(cell: Cell, places: Mapping[str, Any]) -> Cost:
    # The backbone of another cell does not exist yet; random weights cost the same.
    settings = {n: v for n, v in cell.settings.items() if not isinstance(v, Cell)} | dict(places)
    if cell.needs:
        settings["init"] = "random"
    task = cell.task or ""
    try:
        with redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
            if cell.stage == "fit":
                found = plan(task, as_group(settings, opt.ExtractOptions))
                return Cost(found.seconds, found.bytes)
            # Attention maps and cards take seconds, and the final scores of a pretraining run are too slow for a trial.
            if cell.stage != "train":
                return Cost()
            rows = prepare(task, as_group(settings, opt.RowOptions), cache=settings.get("cache")).rows
            recipe = as_group(settings, opt.TrainOptions)
            steps, every = recipe.steps or STEPS, recipe.eval_every
            short = {
                "steps": TRIAL_STEPS,
                "eval_every": TRIAL_STEPS,
                "limit": ROWS,
                "resume": False,
                "from_cache": False,
            }
            done = train(task, *groups("train", settings | short | {"run": Path(folder) / "run"}))
            step = done.seconds / done.steps
            validated = min(rows["valid"], settings.get("limit") or rows["valid"]) * steps / every
            seconds = step * steps + FORWARD * step / recipe.batch * validated
            return Cost(seconds, folder_bytes(Path(folder)))
    except (InputError, CacheError, OSError, RuntimeError) as error:
        return Cost(reason=str(error).partition("\n")[0])
