"""The page's part about a reproduction: tables with the paper's numbers, plots, and the command of each cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from reservoir.errors import InputError
from reservoir_pipelines.output import size_text
from reservoir_pipelines.plots import COLOURS, shorten, style
from reservoir_pipelines.reports.views import curve_plot, facts_of, plot_of, plots_of
from reservoir_pipelines.reproduction_folder import CELL, ReproductionFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES = {
    "smoke": "Smoke scale: small shapes, few rows, few steps. It only tests that all cells run.",
    "hour": "Hour scale: a small backbone, thousands of rows and hundreds of steps, fewer than in the paper.",
    "day": "Day scale: a small backbone, all training rows, thousands of steps.",
    "full": "Full scale: all training rows through the first blocks of GPT-2 small.",
    "paper": "Paper scale: the sizes of the paper.",
}
PROGRESS = re.compile(r" of [\d,]+ \(\d+%\), ")
"""Pattern of progress lines, which are left out of the notes of a cell."""

Values = Mapping[str, Any]


def reproduction_part(folder: ReproductionFolder, number: int) -> dict[str, Any]:
    """Return the page's part about a reproduction."""
    tables = folder.tables()
    if not tables:
        what = "another version of reservoir wrote it" if any(folder.path.glob("tables/*.json")) else "it has no table"
        raise InputError(f"{folder.path}: {what}; run the same reproduce command again")
    keys = dict.fromkeys(key for table in tables for key in table["keys"])
    results = {key: found for key in keys if (found := folder.result(key))}
    failed = sum(bool(folder.failure(key)) for key in keys if key not in results)
    waiting = len(keys) - len(results) - failed
    prefix = f"p{number}-"
    passes = sum(r["values"].get("passes") or 0 for r in results.values())
    seconds, cpu = (sum(r[name] for r in results.values()) / 60 for name in ("seconds", "cpu_seconds"))
    facts = [
        ("scale", " ".join(dict.fromkeys(SCALES[table["scale"]] for table in tables))),
        ("cells", f"{len(results)} finished, {failed} failed, {waiting} not run yet"),
        ("time", f"{seconds:.1f} minutes of wall time, {cpu:.1f} minutes of processor time"),
        ("forward passes", f"{passes:,} rows, without validations"),
        ("disk", size_text(sum(r["bytes"] for r in results.values()))),
        ("versions", "; ".join(dict.fromkeys(_versions(r["made_with"]) for r in results.values()))),
    ]
    return {
        "id": f"{prefix}reproduction",
        "name": f"Reproduction: {folder.path.name}",
        "facts": facts,
        "plots": [one for table in tables if table["drawn"] == "costs" for one in _costs(table, results)],
        "plots_title": "Accuracy over cost",
        "tables": [table_part(table, results, prefix) for table in tables],
        "cells": [_cell(key, results, prefix) for key in results],
    }


def table_part(table: Values, results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table for the page; the reasons why numbers are missing are listed below it."""
    spots = [spot for row in table["rows"] for spot in row["spots"] if spot]
    reasons = {why: n for n, why in enumerate(dict.fromkeys(s["reason"] for s in spots if s["reason"]), start=1)}
    rows = [
        {**row, "spots": [s and _spot(s, prefix, results) | {"number": reasons.get(s["reason"])} for s in row["spots"]]}
        for row in table["rows"]
    ]
    seeds = max((s["seeds"] for s in spots), default=0)
    unit = table["unit"] or "numbers as in the paper"
    drawn = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"{unit[0].upper()}{unit[1:]}. Our numbers are in bold ({drawn})."
    if any(s.get("interval") for s in spots):
        caption += " Numbers in small type are the 95% interval over test rows, and the number of test rows."
    if any(s["later"] is not None for s in spots):
        caption += " Later numbers are from Rothermel et al. 2021 (swept learning rate), as quoted by others."
    shown = {"caption": caption, "rows": rows, "reasons": list(reasons), "plots": _plots(table, results)}
    return {**table, "id": prefix + table["name"], "name": _name(table["name"]), **shown}


def _spot(spot: Values, prefix: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return our number with its standard error over seeds, the paper's number, and the number of a later paper."""
    measure, paper, mean = spot["measure"], spot["published"], spot["mean"]
    difference = ""
    if measure.endswith("_score") and isinstance(paper, int | float) and mean is not None:
        difference = f"{mean - paper:+.1f}"
    first = next((key for cells in spot["cells"] for key in cells if key in results), None)
    error = "" if spot["error"] is None else f" ± {_number_text(spot['error'], measure)}"
    low, high = spot.get("interval") or (0, 0)
    return {
        "id": f"{prefix}cell-{first}" if first else "",
        "ours": _number_text(mean, measure) + error,
        "interval": f"{low:.1f} to {high:.1f}, {spot['rows']:,} rows" if spot.get("interval") else "",
        "paper": "" if paper is None else _number_text(paper, measure),
        "difference": difference,
        "later": "" if spot["later"] is None else _number_text(spot["later"], measure),
    }


def _number_text(value: Any, measure: str) -> str:
    """Return a number as text: scores with one decimal, counts in full."""
    if value is None or isinstance(value, str):
        return value or "-"
    if measure.endswith("_score"):
        return f"{value:.1f}"
    whole = value == int(value) and abs(value) >= 1
    return f"{value:,.0f}" if whole or abs(value) >= 1000 else f"{value:.3g}"


def _plots(table: Values, results: Mapping[str, Any]) -> list[Markup]:
    """Return the plots of a table; plots of costs are at the top of the page."""
    cells = ((row["name"], k) for row in table["rows"] for s in row["spots"] if s for c in s["cells"][:1] for k in c)
    found = {key: (name, results[key]) for name, key in cells if key in results}
    if table["drawn"] in ("attention", "deviations"):
        return [
            _named(name, plot)
            for name, result in found.values()
            for plot in plots_of(result["stage"], result["values"])
        ]
    if table["drawn"] == "curve":
        curves = {result["task"]: curve_plot(result["values"]) for _, result in found.values()}
        return [_named(task, plot) for task, plot in curves.items() if plot]
    if table["drawn"] != "bars":
        return []
    drawn = []
    for whose, key in (("ours", "mean"), ("the paper's", "published")):
        bars = {row["name"]: [_number(s and s[key]) for s in row["spots"]] for row in table["rows"]}
        description = f"{table['title']}, {whose}, in percent"
        drawn.append(plot_of(description, _draw_bars, table["columns"], bars, f"accuracy (%), {whose}"))
    return drawn


def _costs(table: Values, results: Mapping[str, Any]) -> list[Markup]:
    """Return the plots of accuracy against cost, one for each task."""
    drawn = []
    for number, task in enumerate(table["columns"]):
        rows: dict[str, tuple[float, float, float]] = {}
        for row in table["rows"]:
            spot = row["spots"][number] or {"cells": [], "mean": None, "published": None}
            costs = [results[key]["values"].get("cost") for cells in spot["cells"] for key in cells if key in results]
            cost = fmean(costs) if costs and None not in costs and spot["mean"] is not None else np.nan
            rows[row["name"]] = cost, _number(spot["mean"]), _number(spot["published"])
        known = [f"{name} {mean:.1f}% in {cost:.3g} s" for name, (cost, mean, _) in rows.items() if cost >= 0]
        if known:
            text = f"{task}, accuracy over cost: {'; '.join(known)}; dashed lines: the paper's accuracies"
            drawn.append(_named(task, plot_of(text, _draw_costs, rows)))
    return drawn


def _named(name: str, plot: Markup) -> Markup:
    return Markup("<div><h4>{}</h4>{}</div>").format(name, plot)


def _draw_bars(axes: Axes, groups: Sequence[str], bars: Mapping[str, Sequence[float]], y: str) -> None:
    """Draw the bars of each group side by side, one per name; NaN leaves a gap."""
    width = 0.8 / max(1, len(bars))
    for number, (name, heights) in enumerate(bars.items()):
        places = np.arange(len(groups)) + (number + 0.5) * width - 0.4
        axes.bar(places, heights, 0.92 * width, color=COLOURS[number % len(COLOURS)], label=name)
    axes.set_xticks(range(len(groups)), [shorten(name) for name in groups], fontsize=8)
    style(axes, "", y)


def _draw_costs(axes: Axes, rows: Mapping[str, tuple[float, float, float]]) -> None:
    """Draw the test accuracy in percent against the seconds of each row, and the paper's as a dashed line."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    for number, (name, (cost, mean, published)) in enumerate(rows.items()):
        colour = COLOURS[number % len(COLOURS)]
        if cost >= 0:
            axes.plot(cost, mean, "o", color=colour, label=name, markersize=7)
        if published >= 0:
            axes.axhline(published, color=colour, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    style(axes, "seconds", "test accuracy (%)")


def _cell(key: str, results: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    result = results[key]
    settings, passes = result["settings"], result["values"].get("passes")
    facts = [
        ("folder", result["folder"]),
        ("seed", settings.get("seed", 0)),
        ("processor time", f"{result['cpu_seconds']:.1f} s"),
        ("time", f"{result['seconds']:.1f} s"),
        *([] if passes is None else [("forward passes", f"{passes:,} rows")]),
        ("disk", size_text(result["bytes"])),
        *facts_of(result["stage"], result["values"]),
        ("made with", _versions(result["made_with"])),
        *[("note", note) for note in result["notes"][:6] if not PROGRESS.search(note)],
    ]
    backbone, depth = str(settings.get("backbone", "")), f"depth {settings['depth']}" if settings.get("depth") else ""
    if made := results.get(backbone.removeprefix(CELL)):
        backbone = f"backbone of {made['settings'].get('corpus')}"
    shape = [backbone, depth, settings.get("init"), settings.get("train")]
    words = [result["stage"], result["task"], settings.get("corpus"), *shape, settings.get("columns")]
    return {
        "id": f"{prefix}cell-{key}",
        "title": " ".join(str(word) for word in words if word),
        "summary": f"seed {settings.get('seed', 0)}, {result['seconds']:.0f} s",
        "commands": result["commands"],
        "facts": facts,
        "plots": plots_of(result["stage"], result["values"]),
    }


def _versions(made_with: Values) -> str:
    return ", ".join(f"{name} {value}" for name, value in made_with.items())


def _name(name: str) -> str:
    found = re.fullmatch("(table|figure)-?(.+)", name)
    return f"{found[1].capitalize()} {found[2]}" if found else name


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else np.nan
