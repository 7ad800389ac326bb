"""Values, facts and plots of one result: a fit or a training run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import read_regular

from reservoir.column import names_of, parse_columns, single_column
from reservoir.options import RECIPE
from reservoir_pipelines import plots
from reservoir_pipelines.files import read_checked, require_intact
from reservoir_pipelines.fitting.results import RESULTS, SUMMARY, Result, entry_names, score_grid
from reservoir_pipelines.output import as_json, score_text
from reservoir_pipelines.plots import PagePlot, ScoreGrid
from reservoir_pipelines.tables import (
    FitScores,
    curve_table,
    evaluation_facts,
    interval_text,
    layer_table,
    operating_table,
    over_groups,
    trained_text,
    training_facts,
    training_tables,
)

if TYPE_CHECKING:
    from reservoir_pipelines.training.result import Training

MAX_POINTS = 60  # points of a stored curve
VIEW_ARRAYS = {
    "fit": ("sweep", "classes", "confusion", "recall", "reliability"),
    "train": ("losses",),
}
"""For each stage, the large values that only plots read; a result without them has no plots."""
Values = Mapping[str, Any]


def fit_values(summary: Values, results: Path) -> dict[str, Any]:
    """Return the values of a fit for the page, from its summary and the file ``results`` with all readouts.

    Raise `DamagedError` if the file is not the one that the summary describes.
    """
    require_intact(results, summary)
    best, evaluation = summary["best"], summary["evaluation"]
    # Estimators of scikit-learn and repetitions of a series have no penalty.
    penalty = "" if best["alpha"] is None else f" {best['alpha']:.3g}"
    # An evaluation names the number of groups only if the rows have groups.
    test_groups = {"test_groups": evaluation["groups"]} if "groups" in evaluation else {}
    return {
        **{name: evaluation[name] for name in ("recall", "classes", "confusion", "reliability")},
        **{name: best[name] for name in ("metric", "test_score", "test_interval", "valid_score")},
        "test_rows": evaluation["rows"],
        **test_groups,
        "layers": summary.get("layers", {}),
        "baselines": {
            _baseline_name(baseline): baseline["test_score"] for baseline in summary["baselines"]
        },
        "readout": f"{summary['title']}, {best['readout']}{penalty}",
        **{name: summary[name] for name in ("curve", "adds_nothing_to", "tried")},
        "sweep": _read_sweep(results, {baseline["name"] for baseline in summary["baselines"]}),
    }


def _baseline_name(baseline: Values) -> str:
    """Return the name of a baseline, with its rows if it was not fitted to all training rows."""
    rows = baseline["readout"].partition(" on ")[2]  # of a readout such as "ridge on 5,000 rows"
    return f"{baseline['name']} on {rows}" if rows else baseline["name"]


def _read_sweep(results: Path, baselines: Set[str]) -> dict[str, Any]:
    """Return the validation scores (columns, settings) of the table that a fit wrote, and the chosen indices.

    ``baselines`` has the columns of the baselines, which are left out, unless one is the chosen readout.
    """
    text = io.StringIO(read_regular(results).decode(), newline="")
    lines = list(csv.DictReader(text))
    chosen_line = next((line for line in lines if line["chosen"] == "1"), lines[0])
    left_out = baselines - {chosen_line["columns"]}
    lines = [line for line in lines if line["columns"] not in left_out]
    results_of_lines = [
        Result(
            columns=names_of(parse_columns(line["columns"])),
            readout=line["readout"],
            alpha=float(line["alpha"]) if line["alpha"] else None,
            valid_score=float(line["valid_score"]),
        )
        for line in lines
    ]
    grid = score_grid(results_of_lines, results_of_lines[lines.index(chosen_line)])
    return {
        "columns": grid.columns,
        "settings": grid.settings,
        "scores": as_json(grid.scores.tolist()),
        "best": list(grid.best),
    }


def train_values(run: Training) -> dict[str, Any]:
    """Return the values of a training run for the page, with thinned curves."""
    names = "metric steps best_step valid_score test_score train_score converged_step diverged_step trained groups"
    evaluation = run.evaluation  # None if the run was not scored
    return {name: getattr(run, name) for name in names.split()} | {
        "test_interval": evaluation and evaluation.interval,
        "test_rows": evaluation and evaluation.rows,
        "train_seconds": run.seconds,
        # The folders of the runs mean nothing on another machine.
        "swept": [{name: value for name, value in trial.items() if name != "run"} for trial in run.trials],
        "losses": _thinned(run.history, "loss"),
        "validations": _thinned(run.history, "valid_score"),
    }


def _thinned(history: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Return at most `MAX_POINTS` points of a curve: the last step of an interval, and the mean value over it."""
    points = plots.curve_points(history, name)  # (points, 2): step and value
    if not len(points):
        return []
    intervals = np.array_split(points, min(len(points), MAX_POINTS))
    return [[float(interval[-1, 0]), round(float(interval[:, 1].mean()), 5)] for interval in intervals]


def fit_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a fit; ``number`` identifies the part on the page."""
    summary = read_checked(path / SUMMARY)
    values = fit_values(summary, path / RESULTS)
    # The summaries of older fits have only the first entry.
    entries = [*map(Path, summary.get("entries", [summary["entry"]]))]
    scores = FitScores.from_summary(summary, title=f"{entries[0].parent.name}, {entry_names(entries)}")
    facts = [
        *(
            (f"entry {number}" if len(entries) > 1 else "entry", entry)
            for number, entry in enumerate(entries, 1)
        ),
        ("label", summary.get("label")),
        *evaluation_facts(scores.evaluation, scores.best.metric),
        ("tried", f"{values['tried']:,} readouts"),
        ("best on validation, by layer", scores_by_name(values["layers"], scores.best.metric) or None),
        *((f"against {stored['name']}", stored["sentence"]) for stored in summary.get("against", ())),
        ("time", f"{summary['seconds']:.1f} s"),
        ("folder", path),
    ]
    tables = [scores.readouts()]
    if scores.layer_scores:
        tables.append(layer_table(scores.layer_scores, scores.evaluation.groups))
    if scores.operating_points:
        tables.append(operating_table(scores.operating_points, scores.evaluation))
    if scores.curve:
        tables.append(curve_table(scores.reservoir, scores.curve))
    return {
        "id": f"p{number}",
        "name": f"Fit: {entries[0].parent.name}, {path.name}",
        "facts": facts,
        "commands": summary["commands"],
        "results": tables,
        "plots": plots_of("fit", values),
    }


def run_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a finished training run; ``number`` identifies the part on the page."""
    from reservoir_pipelines.training.result import Training
    from reservoir_pipelines.training.run_folder import RunFolder

    run = RunFolder(path)
    result = run.result(partial(Training.from_folder, path))
    assert result  # the caller has checked that the run has a result
    config = run.config
    task = config["settings"]["spec"]["task"]
    facts = [
        *training_facts(result).pairs,
        ("label", task["parameters"].get("label")),
        ("seed", config["settings"]["recipe"]["seed"]),
        *config.get("made_with", {}).items(),
    ]
    return {
        "id": f"p{number}",
        "name": f"Training: {task['name']}, {path.name}",
        "facts": facts,
        "commands": [config["command"]],
        "results": training_tables(result),
        "plots": plots_of("train", train_values(result)),
    }


def facts_of(stage: str, values: Values) -> list[tuple[str, Any]]:
    """Return the facts about a fit or a training run from the values that a reproduction stores of it.

    Facts without a text are left out. The other stages have no facts.
    """
    if stage not in ("fit", "train"):
        return []
    metric = values.get("metric", "accuracy")
    facts = [
        (f"{split} {metric.replace('_', ' ')}", score_text(values.get(f"{split}_score"), metric))
        for split in ("test", "valid")
    ]
    facts += _fit_facts(values, metric) if stage == "fit" else _training_facts(values, metric)
    return [(name, text) for name, text in facts if text]


def _fit_facts(values: Values, metric: str) -> list[tuple[str, str]]:
    """Return the names and texts of the facts about a fit, besides its scores."""
    groups = values.get("test_groups") or 0
    return [
        (f"95% interval{over_groups(groups)}", interval_text(values.get("test_interval"), metric)),
        ("chosen", values["readout"]),
        ("tried", f"{values['tried']:,} readouts"),
        ("best on validation, by layer", scores_by_name(values["layers"], metric)),
        ("baselines on test", scores_by_name(values["baselines"], metric)),
        ("this reservoir adds nothing to", ", ".join(values["adds_nothing_to"] or ())),
    ]


def scores_by_name(scores: Mapping[str, float], metric: str) -> str:
    """Return names with their scores, comma-separated."""
    return ", ".join(f"{name} {score_text(score, metric)}" for name, score in scores.items())


def _training_facts(values: Values, metric: str) -> list[tuple[str, str]]:
    """Return the names and texts of the facts about a training run, besides its scores."""
    facts = [
        ("steps", f"{values['steps']:,}"),
        ("best step", f"{values['best_step'] or 0:,}"),
        ("trained", trained_text(values["groups"], values["trained"])),
    ]
    for run in values["swept"]:
        recipe = ", ".join(f"{name} {run[name]:g}" for name in RECIPE if name in run)
        facts.append(("swept", f"{recipe}: valid {score_text(run['valid_score'], metric)}"))
    if values.get("diverged_step") is not None:
        facts.append(("diverged", f"at step {values['diverged_step']:,}"))
    return facts


def plots_of(stage: str, values: Values) -> list[PagePlot]:
    """Return the plots of a result; an empty list for a stage without plots, or a result without their arrays."""
    if values.keys().isdisjoint(VIEW_ARRAYS.get(stage, ())):
        return []
    if stage == "fit":
        return _fit_plots(values)
    return _training_plots(values) if stage == "train" else []


def _training_plots(values: Values) -> list[PagePlot]:
    """Return the plots of a training run: its training loss and its validation score over the steps."""
    factor, unit = plots.in_unit(values["metric"])
    # Both are (points, 2): step and value. An empty list needs the shape.
    losses = np.array(values["losses"], float).reshape(-1, 2)
    scores = np.array(values["validations"], float).reshape(-1, 2) * (1, factor)
    # `draw_course` draws a curve of training and one of validation; each plot has one.
    no_curve = np.zeros((0, 2))
    over_steps = f"over {values['steps']:,} steps"
    loss_text = f"training loss {over_steps}"
    score_title = f"validation {values['metric']} {over_steps}"
    return [
        PagePlot(loss_text, plots.draw_course, ([losses, no_curve], "loss")),
        PagePlot(score_title, plots.draw_course, ([no_curve, scores], unit)),
    ]


def curve_plots(values: Values) -> list[PagePlot]:
    """Return the plot of the learning curve of a fit, if it has one."""
    curve, metric = values.get("curve"), values["metric"]
    if not curve:
        return []
    listed = "; ".join(
        f"{point['rows']:,} rows {score_text(point['test_score'], metric)}" for point in curve
    )
    text = f"test {metric} against the number of training rows: {listed}"
    return [PagePlot(text, plots.draw_curve, (curve, metric))]


def _fit_plots(values: Values) -> list[PagePlot]:
    """Return the plots of a fit: layers, settings, learning curve and confusion matrix, if it has them."""
    metric, sweep = values["metric"], values["sweep"]
    grid = ScoreGrid(
        sweep["columns"], sweep["settings"], np.array(sweep["scores"], float), tuple(sweep["best"])
    )
    page_plots = []
    # A plot of layers needs several columns, of which at least one is of a single layer.
    if len(grid.columns) > 1 and any(map(single_column, grid.columns)):
        text = f"best validation {metric} of every layer, a line for each pooling"
        # `fit_values` reads only the test scores of baselines, so there is no validation score of the raw input.
        raw_score = None
        page_plots.append(PagePlot(text, plots.draw_layers, (grid, raw_score, metric)))
    if grid.scores.size > 1:
        text = f"validation {metric} of every column under every setting"
        page_plots.append(PagePlot(text, plots.draw_settings, (grid, metric)))
    page_plots += curve_plots(values)
    if counts := values["confusion"]:  # empty for a regression
        classes = values["classes"]
        text = "confusion matrix: how many rows of each class were predicted as each class"
        side = 0.75 * plots.confusion_side(classes)  # inches; smaller than in the plot that fit saves
        arguments = (np.array(counts), classes)
        page_plots.append(PagePlot(text, plots.draw_confusion, arguments, (side + 1, side)))
    return page_plots
