"""What the page shows of one finished piece of work: a fit, a training, attention maps, the spread of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from reservoir.options import RECIPE
from reservoir_pipelines.output import percent, score_text, size_text
from reservoir_pipelines.plots import layer_order
from reservoir_pipelines.reports.charts import heat_map, line_chart

MOST_CLASSES = 40
Values = Mapping[str, Any]


def charts_of(stage: str, values: Values) -> list[Markup]:
    """Return the charts of a piece of work, by its stage."""
    charts = {"fit": fit_charts, "train": train_charts, "attention": attention_charts, "backbone": spread_charts}
    return [chart for chart in charts.get(stage, lambda _: [])(values) if chart]


def facts_of(stage: str, values: Values) -> list[tuple[str, str]]:
    """Return what there is to say of a fit or a training, by name."""
    metric = values.get("metric", "accuracy")
    facts = [(f"{split} {metric}", score_text(values.get(f"{split}_score"), metric)) for split in ("test", "valid")]
    if stage == "fit":
        interval = values.get("test_interval")
        facts += [("95% interval", f"{percent(interval[0])} to {percent(interval[1])}")] if interval else []
        facts += [("chosen", values["readout"]), ("tried", f"{values['tried']:,} readouts")]
        facts.append(("raw input, test", score_text(values.get("raw_score"), metric)))
        worst = sorted(values["recall"].items(), key=lambda item: item[1])[:10]
        if bins := values["reliability"]:
            apart = sum(n * abs(sure - right) for n, sure, right in bins) / sum(n for n, *_ in bins)
            facts.append(("calibration error", f"{100 * apart:.1f} points between probability and share right"))
        recalls = ", ".join(f"{name} {percent(share)}" for name, share in worst)
        facts += [("recall by class, lowest first", recalls)] if recalls else []
    elif stage == "train":
        facts += [("steps", f"{values['steps']:,}"), ("best step", f"{values['best_step'] or 0:,}")]
        facts.append(("trained", f"{', '.join(values['groups'])}: {values['trained']:,} parameters"))
        for run in values["swept"]:
            said = ", ".join(f"{name} {run[name]:g}" for name in RECIPE if name in run)
            facts.append(("swept", f"{said}: valid {score_text(run['valid_score'], metric)}"))
        if values.get("diverged_step") is not None:
            facts.append(("diverged", f"at step {values['diverged_step']:,}"))
    else:
        return []
    return facts


def fit_charts(values: Values) -> list[Markup]:
    """Return a sweep's heat map, its best score over depth and pooling, and the confusion of the chosen readout."""
    sweep = values["sweep"]
    factor = 100 if values["metric"] == "accuracy" else 1
    scores = factor * np.array(sweep["scores"], float)
    names = [_place(name) for name in sweep["columns"]]
    single = [i for i, (_, pooling) in enumerate(names) if pooling != "joined"] or list(range(len(names)))
    single.sort(key=lambda i: (names[i][1], layer_order(names[i][0])))
    charts = []
    if scores.size > 1:
        says = f"validation {values['metric']} of every column under every penalty"
        penalties = [_penalty(name) for name in sweep["penalties"]]
        # Where a grid was carried on for a few columns alone there is nothing to compare.
        most = (~np.isnan(scores[single])).sum(axis=0)
        kept = sorted(np.flatnonzero(2 * most >= most.max()).tolist(), key=lambda j: penalties[j][0])
        shown = scores[single][:, kept]
        shown = np.maximum(shown, np.nanmedian(shown) - 2 * (np.nanmax(shown) - np.nanmedian(shown)))
        columns = [sweep["columns"][i] for i in single]
        charts.append(heat_map(shown, columns, [penalties[j][1] for j in kept], says, "penalty"))
    layers = sorted({names[i][0] for i in single}, key=layer_order)
    lines: dict[str, list[tuple[float, float]]] = {}
    for i in single:
        lines.setdefault(names[i][1], []).append((float(layers.index(names[i][0])), float(np.nanmax(scores[i]))))
    if len(layers) > 1:
        if len(single) < len(names):
            top = float(np.nanmax(np.delete(scores, single, axis=0)))
            lines["best joined"] = [(0.0, top), (len(layers) - 1.0, top)]
        says = (
            f"best validation {values['metric']} over depth, from {layers[0]} to {layers[-1]}, a line for each pooling"
        )
        charts.append(line_chart(lines, f"depth, 0 is {layers[0]}", f"validation {values['metric']}", says))
    charts.append(curve_chart(values))
    counts = values.get("confusion")
    if counts and len(counts) <= MOST_CLASSES:
        shares = np.array(counts, float)
        shares = 100 * shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)
        says = "confusion: of each class, in percent, how many rows were given each label"
        charts.append(heat_map(shares, values["classes"], values["classes"], says, "given", "class"))
    if bins := values["reliability"]:
        found = [(100 * sure, 100 * right) for _, sure, right in bins]
        told = "; ".join(f"{n} labels of {100 * sure:.0f}%: {100 * right:.0f}% right" for n, sure, right in bins)
        even = [(0.0, 0.0), (100.0, 100.0)]
        says = f"calibration on the test rows: {told}"
        charts.append(line_chart({"found": found, "calibrated": even}, "probability (%)", "right (%)", says))
    return charts


def curve_chart(values: Values) -> Markup:
    """Return a fit's score over training rows, if it was asked for."""
    curve, metric = values.get("curve", ()), values["metric"]
    factor = 100 if metric == "accuracy" else 1
    grown = {n: [(point["rows"], factor * point[f"{n}_score"]) for point in curve] for n in ("valid", "test")}
    told = "; ".join(f"{point['rows']:,} rows {score_text(point['test_score'], metric)}" for point in curve)
    return line_chart(grown, "training rows", metric, f"test {metric} over training rows: {told}", log=True)


def train_charts(values: Values) -> list[Markup]:
    """Return the course of a training: its loss, and its validation score."""
    factor = 100 if values["metric"] == "accuracy" else 1
    scores = [(step, factor * score) for step, score in values["validations"]]
    loss = line_chart({"loss": values["losses"]}, "step", "loss", f"training loss over {values['steps']:,} steps")
    says = f"validation {values['metric']} over {values['steps']:,} steps"
    return [loss, line_chart({"validation": scores}, "step", f"validation {values['metric']}", says)]


def attention_charts(values: Values) -> list[Markup]:
    """Return the mean attention map."""
    lines = ", ".join(f"{back} back ({what})" for back, what in values["lines"].items())
    says = (
        f"attention of block {values['layer']}, mean over heads and {values['rows']} rows: token across, attending down"
    )
    says += f"; diagonals at {lines}" if lines else ""
    shown = np.array(values["map"], float)
    # A causal model's first tokens have few others to attend to, and would outshine all that is worth seeing.
    shown = np.minimum(shown, np.quantile(shown[shown > 0], 0.9))
    return [heat_map(shown, [], [], says, "attends to token", "token", [int(back) for back in values["lines"]])]


def spread_charts(values: Values) -> list[Markup]:
    """Return the standard deviation of each kind of tensor over the blocks."""
    charts = []
    for kind in ("weight", "bias"):
        found = {n: v for n, v in values["deviations"].items() if ("bias" in n) == (kind == "bias")}
        lines = {
            name: [(float(block), value) for block, value in enumerate(spread, 1) if value is not None]
            for name, spread in found.items()
        }
        says = f"standard deviation of each {kind} over the blocks"
        charts.append(line_chart(lines, "block", f"{kind}: deviation", says))
    return charts


def cost_facts(seconds: float | None, size: int | None, passes: int | None = None) -> list[tuple[str, str]]:
    """Return time, rows that passed through a model, and disk, for a person."""
    time = [] if seconds is None else [("time", f"{seconds:.1f} s")]
    rows = [] if passes is None else [("forward passes", f"{passes:,} rows")]
    return [*time, *rows, *([] if size is None else [("disk", size_text(size))])]


def _place(column: str) -> tuple[str, str]:
    layer, _, pooling = column.partition("/")
    return (layer, pooling) if pooling and "+" not in column else (layer.partition(" ")[0].partition("+")[0], "joined")


def _penalty(text: str) -> tuple[float, str]:
    """Return a penalty, and its short text; parameters of other estimators are no numbers, and stay in their order."""
    try:
        return float(text), f"{float(text):.2g}"
    except ValueError:
        return 0.0, text
