"""Pictures of and facts about one finished piece of work on the page: a fit, a training, attention maps, a backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from reservoir.options import RECIPE
from reservoir_pipelines import plots
from reservoir_pipelines.drawing import COLOURS, INK, PAGE_SIZE, page_picture, style
from reservoir_pipelines.output import percent, score_text, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 40  # of a confusion matrix on the page
WORST = 10  # classes whose recall is listed
Values = Mapping[str, Any]
Facts = list[tuple[str, str]]


def picture_of(source: str, description: str) -> Markup:
    """Return the HTML of a picture that `page_picture` made; nothing for one that could not be drawn."""
    if not source:
        return Markup("")
    return Markup('<figure><img src="{}" alt="{}"></figure>').format(source, description)


def pictures_of(stage: str, values: Values) -> list[Markup]:
    """Return the pictures of a piece of work, by its stage; none for a stage that has no pictures."""
    makers = {
        "fit": _fit_pictures,
        "train": _training_pictures,
        "attention": _attention_pictures,
        "backbone": _deviation_pictures,
    }
    return makers[stage](values) if stage in makers else []


def facts_of(stage: str, values: Values) -> Facts:
    """Return the facts about a fit or a training, by name."""
    if stage not in ("fit", "train"):
        return []
    metric = values.get("metric", "accuracy")
    name = metric.replace("_", " ")
    scores = [(f"{split} {name}", score_text(values.get(f"{split}_score"), metric)) for split in ("test", "valid")]
    return scores + (_fit_facts(values, metric) if stage == "fit" else _training_facts(values, metric))


def cost_facts(seconds: float | None, size: int | None, passes: int | None = None) -> Facts:
    """Return the time, the rows that passed through a model, and the disk space, those that are known."""
    facts = [] if seconds is None else [("time", f"{seconds:.1f} s")]
    facts += [] if passes is None else [("forward passes", f"{passes:,} rows")]
    return facts + ([] if size is None else [("disk", size_text(size))])


def curve_picture(values: Values) -> Markup:
    """Return the learning curve of a fit; nothing if none was asked for."""
    curve, metric = values.get("curve"), values["metric"]
    if not curve:
        return Markup("")
    rows, valid, test = ([point[name] for point in curve] for name in ("rows", "valid_score", "test_score"))
    listed = "; ".join(f"{n:,} rows {score_text(score, metric)}" for n, score in zip(rows, test, strict=True))
    source = page_picture(PAGE_SIZE, plots.draw_curve, rows, valid, test, metric)
    return picture_of(source, f"test {metric} over training rows: {listed}")


def _fit_facts(values: Values, metric: str) -> Facts:
    facts = []
    if interval := values.get("test_interval"):
        facts.append(("95% interval", f"{percent(interval[0])} to {percent(interval[1])}"))
    facts += [("chosen", values["readout"]), ("tried", f"{values['tried']:,} readouts")]
    facts.append(("raw input, test", score_text(values.get("raw_score"), metric)))
    if bins := values["reliability"]:
        gap = sum(n * abs(probability - right) for n, probability, right in bins) / sum(n for n, *_ in bins)
        facts.append(("calibration error", f"{100 * gap:.1f} points between probability and share of right labels"))
    worst = sorted(values["recall"].items(), key=lambda item: item[1])[:WORST]
    recalls = ", ".join(f"{name} {percent(share)}" for name, share in worst)
    return facts + ([("recall by class, lowest first", recalls)] if recalls else [])


def _training_facts(values: Values, metric: str) -> Facts:
    facts = [("steps", f"{values['steps']:,}"), ("best step", f"{values['best_step'] or 0:,}")]
    facts.append(("trained", f"{', '.join(values['groups'])}: {values['trained']:,} parameters"))
    for run in values["swept"]:
        recipe = ", ".join(f"{name} {run[name]:g}" for name in RECIPE if name in run)
        facts.append(("swept", f"{recipe}: valid {score_text(run['valid_score'], metric)}"))
    if values.get("diverged_step") is not None:
        facts.append(("diverged", f"at step {values['diverged_step']:,}"))
    return facts


def _fit_pictures(values: Values) -> list[Markup]:
    sweep, metric = values["sweep"], values["metric"]
    columns, best = sweep["columns"], tuple(sweep["best"])
    scores = np.array(sweep["scores"], float)
    pictures = []
    if len(columns) > 1:
        source = page_picture(PAGE_SIZE, plots.draw_layers, columns, scores, best[0], None, metric)
        pictures.append(picture_of(source, f"best validation {metric} of every layer, a line for each pooling"))
    if scores.size > 1:
        source = page_picture(PAGE_SIZE, plots.draw_settings, columns, sweep["settings"], scores, best, metric)
        pictures.append(picture_of(source, f"validation {metric} of every layer under every setting"))
    pictures.append(curve_picture(values))
    counts, classes = values["confusion"], values["classes"]
    if counts and len(counts) <= MOST_CLASSES:
        side = 0.75 * plots.confusion_side(classes)
        source = page_picture((side + 1, side), plots.draw_confusion, np.array(counts), classes)
        pictures.append(
            picture_of(source, "confusion matrix: how many rows of each class were predicted as each class")
        )
    if bins := values["reliability"]:
        listed = "; ".join(f"{n} labels of {100 * p:.0f}%: {100 * right:.0f}% right" for n, p, right in bins)
        pictures.append(
            picture_of(page_picture(PAGE_SIZE, _draw_calibration, bins), f"calibration on the test rows: {listed}")
        )
    return pictures


def _training_pictures(values: Values) -> list[Markup]:
    factor, unit = plots.in_unit(values["metric"])
    none = np.zeros((0, 2))
    scores = np.array(values["validations"], float).reshape(-1, 2) * (1, factor)
    losses = page_picture(PAGE_SIZE, _draw_course, np.array(values["losses"], float).reshape(-1, 2), none, "loss")
    validations = page_picture(PAGE_SIZE, _draw_course, none, scores, unit)
    steps = f"over {values['steps']:,} steps"
    return [
        picture_of(losses, f"training loss {steps}"),
        picture_of(validations, f"validation {values['metric']} {steps}"),
    ]


def _draw_course(axes: Axes, train: np.ndarray, valid: np.ndarray, y: str) -> None:
    plots.draw_course(axes, train, valid)
    style(axes, "step", y)


def _attention_pictures(values: Values) -> list[Markup]:
    shown = np.array(values["map"], float)
    diagonals = {int(back): what for back, what in values["lines"].items()}
    lines = ", ".join(f"{back} back ({what})" for back, what in diagonals.items())
    description = f"attention of block {values['layer']}, mean over heads and {values['rows']} rows"
    labels = [str(number + 1) for number in range(len(shown))]
    source = page_picture(PAGE_SIZE, plots.draw_map, shown, labels, diagonals, plots.attention_top(shown))
    return [picture_of(source, description + (f"; diagonals at {lines}" if lines else ""))]


def _deviation_pictures(values: Values) -> list[Markup]:
    return [
        picture_of(
            page_picture(PAGE_SIZE, plots.draw_deviations, values["deviations"], kind),
            f"standard deviation of each {kind} over the blocks",
        )
        for kind in ("weight", "bias")
    ]


def _draw_calibration(axes: Axes, bins: Sequence[tuple[int, float, float]]) -> None:
    """Draw the share of right labels over their mean probability, for bins of (labels, probability, share)."""
    values = 100 * np.array([each[1:] for each in bins], float).T
    axes.plot([0, 100], [0, 100], "--", color=INK, linewidth=1, label="calibrated")
    axes.plot(*values, "o-", color=COLOURS[0], markersize=4, label="found")
    style(axes, "probability (%)", "right (%)")
