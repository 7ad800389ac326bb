"""Values, facts and plots of one result: a fit, a training run, attention maps, or a backbone."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from reservoir.errors import InputError
from reservoir.options import RECIPE
from reservoir_pipelines import plots
from reservoir_pipelines.files import read_checked
from reservoir_pipelines.fitting.results import SUMMARY, Result, score_matrix
from reservoir_pipelines.output import percent, score_text
from reservoir_pipelines.plots import COLOURS, INK, PAGE_SIZE, page_plot, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reservoir_pipelines.training.run_folder import Training

MAX_POINTS = 60  # points of a stored curve
MAX_CLASSES = 40  # largest number of classes of a confusion matrix on the page
WORST = 10  # classes whose recall is listed
Values = Mapping[str, Any]
Facts = list[tuple[str, Any]]


def fit_values(found: Values, results: Path) -> dict[str, Any]:
    """Return the values of a fit for the page, from its summary and the table of its readouts."""
    best, evaluation = found["best"], found["evaluation"]
    return {
        **{name: evaluation[name] for name in ("recall", "classes", "confusion", "reliability")},
        **{name: best[name] for name in ("metric", "test_score", "test_interval", "valid_score")},
        "test_rows": evaluation.get("rows"),
        **({"test_groups": evaluation["groups"]} if "groups" in evaluation else {}),
        "layers": found.get("layers", {}),
        "baselines": {baseline["name"]: baseline["test_score"] for baseline in found["baselines"]},
        "readout": f"{found['title']}, {best['readout']} {best['alpha'] or 0:.3g}",
        **{name: found[name] for name in ("curve", "adds_nothing_to", "tried")},
        "sweep": _read_sweep(results),
    }


def _read_sweep(results: Path) -> dict[str, Any]:
    """Return the validation scores (columns, settings) of the table that a fit wrote, and the chosen indices."""
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    tried = [line for line in lines if line["columns"] != "raw"] or lines
    found = [
        Result(
            columns=tuple(line["columns"].split("+")),
            readout=line["readout"],
            alpha=float(line["alpha"]) if line["alpha"] else None,
            valid_score=float(line["valid_score"]),
        )
        for line in tried
    ]
    columns, settings, scores = score_matrix(found)
    chosen = next((one for one, line in zip(found, tried, strict=True) if line["chosen"] == "1"), found[0])
    values = [[None if np.isnan(score) else score for score in row] for row in scores.tolist()]
    best = [columns.index(chosen.title), settings.index(chosen.setting)]
    return {"columns": columns, "settings": settings, "scores": values, "best": best}


def train_values(done: Training) -> dict[str, Any]:
    """Return the values of a training run for the page, with thinned curves."""
    names = "metric steps best_step valid_score test_score train_score converged_step diverged_step trained groups"
    found = done.evaluation
    return {name: getattr(done, name) for name in names.split()} | {
        "test_interval": found and found.interval,
        "test_rows": found and found.rows,
        "train_seconds": done.seconds,
        "swept": [{name: run[name] for name in run if name != "run"} for run in done.swept],
        "losses": _thinned(done.history, "loss"),
        "validations": _thinned(done.history, "valid_score"),
    }


def _thinned(history: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Return at most `MAX_POINTS` points of a curve, each the mean over an interval."""
    points = plots.curve_points(history, name)
    parts = np.array_split(points, min(len(points), MAX_POINTS)) if len(points) else []
    return [[float(part[-1, 0]), round(float(part[:, 1].mean()), 5)] for part in parts]


def fit_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a fit."""
    try:
        found = read_checked(path / SUMMARY)
        values = fit_values(found, path / "results.csv")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); run reservoir fit again") from error
    entry, chosen_by = Path(found["entry"]), found["best"]["metric"]
    facts = [("entry", entry), *facts_of("fit", values)]
    for name, value in found["evaluation"].items():  # all metrics but the one that chose the readout
        if isinstance(value, int | float) and name != chosen_by:
            facts.append((name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.3f}"))
    if found["p_value"] is not None:
        facts.append(("against raw", f"p = {found['p_value']:.2g}"))
    facts += [("time", f"{found['seconds']:.1f} s"), ("folder", path)]
    shown = {"plots": plots_of("fit", values), "commands": found["commands"]}
    return {"id": f"p{number}", "name": _heading("Fit", entry, found.get("label")), "facts": facts, **shown}


def run_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a training run."""
    from reservoir_pipelines.training.run_folder import RunFolder, Training

    run = RunFolder(path)
    done = Training.from_dict({**(run.result or {}), "run": str(path)})
    values, config = train_values(done), run.config
    facts = [*facts_of("train", values), ("time", f"{done.seconds:.1f} s"), ("folder", path)]
    facts += [("seed", config["settings"]["recipe"]["seed"]), *config.get("made_with", {}).items()]
    shown = {"plots": plots_of("train", values), "commands": [config["command"]]}
    label = config["settings"]["spec"]["task"]["parameters"].get("label")
    return {"id": f"p{number}", "name": _heading("Training", path, label), "facts": facts, **shown}


def _heading(stage: str, folder: Path, label: str | None) -> str:
    return ", ".join([f"{stage}: {folder.parent.name}", *([f"label {label}"] if label else []), folder.name])


def facts_of(stage: str, values: Values) -> Facts:
    """Return the facts about a fit or a training run, by name."""
    if stage not in ("fit", "train"):
        return []
    metric = values.get("metric", "accuracy")
    name = metric.replace("_", " ")
    scores = [(f"{split} {name}", score_text(values.get(f"{split}_score"), metric)) for split in ("test", "valid")]
    return scores + (_fit_facts(values, metric) if stage == "fit" else _training_facts(values, metric))


def _fit_facts(values: Values, metric: str) -> Facts:
    facts: Facts = []
    if interval := values.get("test_interval"):
        over = f" over {values['test_groups']} groups" if values.get("test_groups") else ""
        facts.append((f"95% interval{over}", " to ".join(score_text(end, metric) for end in interval)))
    facts += [("chosen", values["readout"]), ("tried", f"{values['tried']:,} readouts")]
    if layers := values.get("layers"):
        listed = ", ".join(f"{name} {score_text(score, metric)}" for name, score in layers.items())
        facts.append(("best on validation, by layer", listed))
    facts += [
        (f"baseline {name}, test", score_text(score, metric)) for name, score in values.get("baselines", {}).items()
    ]
    if level := values.get("adds_nothing_to"):
        facts.append(("this reservoir adds nothing to", ", ".join(level)))
    if bins := values["reliability"]:
        gap = sum(n * abs(probability - right) for n, probability, right in bins) / sum(n for n, *_ in bins)
        facts.append(("calibration error", f"{100 * gap:.1f} points between probability and share of correct labels"))
    worst = sorted(values["recall"].items(), key=lambda item: item[1])[:WORST]
    recalls = ", ".join(f"{name} {percent(share)}" for name, share in worst)
    return facts + ([("recall by class, lowest first", recalls)] if recalls else [])


def _training_facts(values: Values, metric: str) -> Facts:
    facts: Facts = [("steps", f"{values['steps']:,}"), ("best step", f"{values['best_step'] or 0:,}")]
    facts.append(("trained", f"{', '.join(values['groups'])}: {values['trained']:,} parameters"))
    for run in values["swept"]:
        recipe = ", ".join(f"{name} {run[name]:g}" for name in RECIPE if name in run)
        facts.append(("swept", f"{recipe}: valid {score_text(run['valid_score'], metric)}"))
    if values.get("diverged_step") is not None:
        facts.append(("diverged", f"at step {values['diverged_step']:,}"))
    return facts


def plot_of(description: str, draw: Callable[..., None], *arguments: Any, size: Any = PAGE_SIZE) -> Markup:
    """Return the HTML of the plot that ``draw(axes, ...)`` draws, or empty HTML if drawing fails."""
    source = page_plot(size, draw, *arguments)
    return Markup('<figure><img src="{}" alt="{}"></figure>' if source else "").format(source, description)


def plots_of(stage: str, values: Values) -> list[Markup]:
    """Return the plots of a result; an empty list for a stage without plots."""
    if stage == "fit":
        return _fit_plots(values)
    if stage == "train":
        factor, unit = plots.in_unit(values["metric"])
        losses, scores = (np.array(values[name], float).reshape(-1, 2) for name in ("losses", "validations"))
        none, steps = np.zeros((0, 2)), f"over {values['steps']:,} steps"
        validations = f"validation {values['metric']} {steps}"
        return [
            plot_of(f"training loss {steps}", plots.draw_course, losses, none, "loss"),
            plot_of(validations, plots.draw_course, none, scores * (1, factor), unit),
        ]
    if stage == "attention":
        shown = np.array(values["map"], float)
        diagonals = {int(back): what for back, what in values["lines"].items()}
        lines = ", ".join(f"{back} back ({what})" for back, what in diagonals.items())
        text = f"attention of block {values['layer']}, mean over heads and {values['rows']} rows"
        text += f"; diagonals at {lines}" if lines else ""
        labels = [str(number + 1) for number in range(len(shown))]
        return [plot_of(text, plots.draw_map, shown, labels, diagonals, plots.attention_top(shown))]
    if stage == "backbone":
        named = {kind: f"standard deviation of each {kind} in every block" for kind in ("weight", "bias")}
        return [plot_of(text, plots.draw_deviations, values["deviations"], kind) for kind, text in named.items()]
    return []


def curve_plot(values: Values) -> Markup:
    """Return the plot of the learning curve of a fit; empty without a curve."""
    curve, metric = values.get("curve"), values["metric"]
    if not curve:
        return Markup("")
    listed = "; ".join(f"{point['rows']:,} rows {score_text(point['test_score'], metric)}" for point in curve)
    return plot_of(f"test {metric} against the number of training rows: {listed}", plots.draw_curve, curve, metric)


def _fit_plots(values: Values) -> list[Markup]:
    sweep, metric = values["sweep"], values["metric"]
    columns, settings, best = sweep["columns"], sweep["settings"], tuple(sweep["best"])
    scores, counts, classes = np.array(sweep["scores"], float), values["confusion"], values["classes"]
    drawn = []
    if len(columns) > 1:
        text = f"best validation {metric} of every layer, a line for each pooling"
        drawn.append(plot_of(text, plots.draw_layers, columns, scores, best[0], None, metric))
    if scores.size > 1:
        text = f"validation {metric} of every layer under every setting"
        drawn.append(plot_of(text, plots.draw_settings, columns, settings, scores, best, metric))
    drawn.append(curve_plot(values))
    if counts and len(counts) <= MAX_CLASSES:
        text = "confusion matrix: how many rows of each class were predicted as each class"
        side = 0.75 * plots.confusion_side(classes)
        drawn.append(plot_of(text, plots.draw_confusion, np.array(counts), classes, size=(side + 1, side)))
    if bins := values["reliability"]:
        listed = "; ".join(f"{n} labels with probability {100 * p:.0f}%: {100 * ok:.0f}% correct" for n, p, ok in bins)
        drawn.append(plot_of(f"calibration on the test rows: {listed}", _draw_calibration, bins))
    return drawn


def _draw_calibration(axes: Axes, bins: Sequence[tuple[int, float, float]]) -> None:
    """Draw the share of correct labels against their mean probability; a bin is (labels, probability, share)."""
    values = 100 * np.array([each[1:] for each in bins], float).T
    axes.plot([0, 100], [0, 100], "--", color=INK, linewidth=1, label="calibrated")
    axes.plot(*values, "o-", color=COLOURS[0], markersize=4, label="measured")
    style(axes, "probability (%)", "correct (%)")
