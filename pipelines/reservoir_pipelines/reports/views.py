"""What the page shows of one finished piece of work: a fit, a training, attention maps, the spread of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from reservoir_pipelines.output import percent, score_text, size_text
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
        facts.append(("95% interval", f"{percent(interval[0])} to {percent(interval[1])}" if interval else "-"))
        facts += [("chosen", values["readout"]), ("tried", f"{values['tried']:,} readouts")]
        facts.append(("raw input, test", score_text(values.get("raw_score"), metric)))
        worst = sorted(values["recall"].items(), key=lambda item: item[1])[:10]
        facts.append(("recall by class, lowest first", ", ".join(f"{name} {percent(v)}" for name, v in worst)))
    elif stage == "train":
        facts += [("steps", f"{values['steps']:,}"), ("best step", f"{values['best_step'] or 0:,}")]
        facts.append(("trained", f"{', '.join(values['groups'])}: {values['trained']:,} parameters"))
        if values.get("diverged_step") is not None:
            facts.append(("diverged", f"at step {values['diverged_step']:,}"))
    else:
        return []
    return facts


def fit_charts(values: Values) -> list[Markup]:
    """Return a sweep's heat map, its best score over depth and pooling, and the confusion of the chosen readout."""
    sweep = values["sweep"]
    order = sorted(range(len(sweep["columns"])), key=lambda number: _depth(sweep["columns"][number]))
    scores = np.array(sweep["scores"], float)[order]
    columns = [sweep["columns"][number] for number in order]
    names = [_place(name) for name in columns]
    factor = 100 if values["metric"] == "accuracy" else 1
    charts = []
    if scores.size > 1:
        says = f"validation {values['metric']} of every column under every penalty"
        penalties = [_power(name) for name in sweep["penalties"]]
        charts.append(heat_map(factor * scores, columns, penalties, says, "penalty"))
    layers = list(dict.fromkeys(layer for layer, _ in names))
    lines: dict[str, list[tuple[float, float]]] = {}
    for (layer, pooling), best in zip(names, factor * np.nanmax(scores, axis=1), strict=True):
        lines.setdefault(pooling, []).append((float(layers.index(layer)), float(best)))
    if len(layers) > 1:
        says = (
            f"best validation {values['metric']} over depth, from {layers[0]} to {layers[-1]}, a line for each pooling"
        )
        charts.append(line_chart(lines, f"depth, 0 is {layers[0]}", f"validation {values['metric']}", says))
    counts = values.get("confusion")
    if counts and len(counts) <= MOST_CLASSES:
        shares = np.array(counts, float)
        shares = 100 * shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)
        says = "confusion: of each class, in percent, how many rows were given each label"
        charts.append(heat_map(shares, values["classes"], values["classes"], says, "given", "class"))
    return charts


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
    return [heat_map(shown, [], [], says, "attends to token", "token")]


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


def cost_facts(seconds: float | None, size: int | None) -> list[tuple[str, str]]:
    """Return time and disk for a person."""
    time = [] if seconds is None else [("time", f"{seconds:.1f} s")]
    return time if size is None else [*time, ("disk", size_text(size))]


def _place(column: str) -> tuple[str, str]:
    layer, _, pooling = column.partition("/")
    return (layer, pooling) if pooling and "+" not in column else (layer.partition(" ")[0].partition("+")[0], "joined")


def _depth(column: str) -> tuple[bool, int, str]:
    """Sort key that puts layers in the order in which they are computed, joined columns last."""
    return "+" in column, {"embed": 0, "final": 2}.get(column.partition("/")[0], 1), column


def _power(text: str) -> str:
    """Return a penalty as plain text, of which a fit keeps a power of ten for its picture."""
    return f"{10 ** float(text[5:-2]):.2g}" if text.startswith("$10^{") else text
