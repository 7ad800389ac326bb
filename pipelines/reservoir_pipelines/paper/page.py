"""The page's part about a reproduction: tables with the paper's numbers, plots, and the command of each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines import plots
from reservoir_pipelines.output import size_text
from reservoir_pipelines.paper.claims import NOT_CHECKED, NOT_MEASURED
from reservoir_pipelines.paper.reproduction_folder import CELL, Cell, ReproductionFolder, is_reproduction
from reservoir_pipelines.plots import COLOURS, PagePlot, shorten, style
from reservoir_pipelines.reports import views
from reservoir_pipelines.reports.report import FolderKind
from reservoir_pipelines.reports.views import Values, curve_plots, facts_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARRAYS = views.ARRAYS | {"attention": ("map", "lines"), "backbone": ("deviations",)}
"""For each stage, the large values of a cell that only plots read; a cell without them has no plots."""

SCALES = {
    "smoke": "Smoke scale: small shapes, few rows, few steps. It only tests that all cells run.",
    "hour": "Hour scale: a small backbone, thousands of rows and hundreds of steps.",
    "day": "Day scale: a small backbone, all training rows, thousands of steps.",
    "full": "Full scale: all training rows through the first blocks of GPT-2 small.",
    "paper": "Paper scale: the sizes of the paper.",
}


def reproduction_part(folder: ReproductionFolder, number: int) -> dict[str, Any]:
    """Return the page's part about a reproduction."""
    tables = folder.tables()
    if not tables:
        raise InputError(
            f"{folder.path}: no table of this version of reservoir", "run the same reproduce command again"
        )
    # The results of all cells, each of which may serve several tables.
    keys = dict.fromkeys(key for table in tables for key in table["keys"])
    results = {key: result for key in keys if (result := folder.result(key))}
    failed = sum(bool(folder.failure(key)) for key in keys if key not in results)
    waiting = len(keys) - len(results) - failed
    prefix = f"p{number}-"
    # What they have cost altogether.
    versions = sorted(
        {f"{name} {value}" for r in results.values() for name, value in r["made_with"].items()}
    )
    passes = sum(r["values"].get("passes") or 0 for r in results.values())
    seconds = sum(r["seconds"] for r in results.values()) / 60
    cpu = sum(r["cpu_seconds"] for r in results.values()) / 60
    facts = [
        ("scale", " ".join(dict.fromkeys(SCALES[table["scale"]] for table in tables))),
        ("cells", f"{len(results)} finished, {failed} failed, {waiting} not run yet"),
        ("time", f"{seconds:.1f} minutes of wall time, {cpu:.1f} minutes of processor time"),
        ("forward passes", f"{passes:,} rows, without validations"),
        ("disk", size_text(sum(r["bytes"] for r in results.values()))),
        ("versions", ", ".join(versions)),
    ]
    return {
        "id": f"{prefix}reproduction",
        "name": f"Reproduction: {folder.path.name}",
        "facts": facts,
        "plots": [plot for table in tables if table["drawn"] == "costs" for plot in _costs(table, results)],
        "plots_title": "Accuracy over cost",
        "tables": [table_part(table, results, prefix) for table in tables],
        "cells": [_cell(key, results, prefix) for key in results],
    }


def table_part(table: Values, results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table for the page; the reasons why numbers are missing are listed below it."""
    spots = [spot for row in table["rows"] for spot in row["spots"] if spot]
    reasons = list(dict.fromkeys(spot["reason"] for spot in spots if spot["reason"]))
    rows = [
        {**row, "spots": [s and _spot(s, reasons, results, prefix) for s in row["spots"]]}
        for row in table["rows"]
    ]
    seeds = max((s["seeds"] for s in spots), default=0)
    drawn = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"Numbers are {table['unit'] or 'as in the paper'}. Ours are in bold ({drawn})."
    if any(s.get("interval") for s in spots):
        caption += " Numbers in small type are the 95% interval over test rows, and their number."
    if any(s["later"] is not None for s in spots):
        caption += (
            " Later numbers are validation accuracies of Rothermel et al. 2021 (swept learning rate),"
            " as quoted by others."
        )
    shown = {"caption": caption, "rows": rows, "reasons": reasons, "plots": _plots(table, results)}
    return {**table, "id": prefix + table["name"], **shown}


def _spot(spot: Values, reasons: list[str], results: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the texts of one position of a table."""
    measure = spot["measure"]
    paper, mean = spot["published"], spot["mean"]
    difference = ""
    if measure.endswith("_score") and isinstance(paper, int | float) and mean is not None:
        difference = f"{mean - paper:+.1f}"
    first = next((key for cells in spot["cells"] for key in cells if key in results), None)
    error = "" if spot["error"] is None else f" ± {number_text(spot['error'], measure)}"
    low, high = spot.get("interval") or (0, 0)
    return {
        "id": f"{prefix}cell-{first}" if first else "",
        "ours": number_text(mean, measure) + error,
        "interval": f"{low:.1f} to {high:.1f}, {spot['rows']:,} rows" if spot.get("interval") else "",
        "paper": "" if paper is None else number_text(paper, measure),
        "difference": difference,
        "number": spot["reason"] and reasons.index(spot["reason"]) + 1,
        "later": "" if spot["later"] is None else number_text(spot["later"], measure),
    }


def number_text(value: Any, measure: str) -> str:
    """Return a number as text: scores with one decimal, counts in full."""
    if value is None or isinstance(value, str):
        return value or "-"
    if measure.endswith("_score"):
        return f"{value:.1f}"
    whole = value == int(value) and abs(value) >= 1
    return f"{value:,.0f}" if whole or abs(value) >= 1000 else f"{value:.3g}"


def _plots(table: Values, results: Mapping[str, Any]) -> list[PagePlot]:
    """Return the plots of a table; plots of costs are at the top of the page."""
    # The finished cells of the first seed, each with the name of its row.
    cells: dict[str, tuple[str, Any]] = {}
    for row in table["rows"]:
        for spot in filter(None, row["spots"]):
            keys = spot["cells"][0] if spot["cells"] else []
            cells |= {key: (row["name"], results[key]) for key in keys if key in results}
    named_plots: list[tuple[str, list[PagePlot]]] = []
    if table["drawn"] in ("attention", "deviations"):
        named_plots = [
            (name, _plots_of(result["stage"], result["values"])) for name, result in cells.values()
        ]
    if table["drawn"] == "curve":  # one curve for each task
        curves = {result["task"]: curve_plots(result["values"]) for _, result in cells.values()}
        named_plots = list(curves.items())
    return [replace(plot, name=name) for name, plots in named_plots for plot in plots]


def _plots_of(stage: str, values: Values) -> list[PagePlot]:
    """Return the plots of a cell; an empty list for a cell without the arrays that they draw."""
    if values.keys().isdisjoint(ARRAYS.get(stage, ())):
        return []
    if stage == "attention":
        return [_attention_plot(values)]
    if stage == "backbone":
        deviations = values["deviations"]
        return [
            PagePlot(f"deviation of each {kind} in every block", plots.draw_deviations, (deviations, kind))
            for kind in ("weight", "bias")
        ]
    return views.plots_of(stage, values)


def _attention_plot(values: Values) -> PagePlot:
    """Return the plot of a mean attention map, with the diagonals that the paper names."""
    mean_map = np.array(values["map"], float)
    diagonals = {int(back): name for back, name in values["lines"].items()}
    lines = ", ".join(f"{back} back ({name})" for back, name in diagonals.items())
    text = f"attention of block {values['layer']}, mean over heads and {values['rows']} rows"
    text += f"; diagonals at {lines}" if lines else ""
    labels = [str(number + 1) for number in range(len(mean_map))]
    return PagePlot(text, plots.draw_map, (mean_map, labels, diagonals, plots.attention_top(mean_map)))


def _costs(table: Values, results: Mapping[str, Any]) -> list[PagePlot]:
    """Return the plots of accuracy against cost, one for each task."""
    cost_plots = []
    for number, task in enumerate(table["columns"]):
        points = {}  # cost in seconds, mean and published accuracy in percent, of each row
        for row in table["rows"]:
            # A spot is a number of the table, with the keys of its cells: for each seed, a list.
            spot = row["spots"][number] or {"cells": [], "mean": None}
            keys = [key for cells in spot["cells"] for key in cells if key in results]
            costs = [results[key]["values"].get("cost") for key in keys]
            # A point needs the cost of every cell.
            if costs and None not in costs and spot["mean"] is not None:
                points[row["name"]] = fmean(costs), spot["mean"], spot["published"]
        if points:
            listed = "; ".join(
                f"{name} {mean:.1f}% in {cost:.3g} s" for name, (cost, mean, _) in points.items()
            )
            text = f"{task}, accuracy over cost: {listed}; dashed lines: the paper's accuracies"
            cost_plots.append(PagePlot(text, _draw_costs, (points,), name=task))
    return cost_plots


def _draw_costs(axes: Axes, points: Mapping[str, tuple[float, float, Any]]) -> None:
    """Draw the test accuracy in percent against the seconds of each row, and the paper's as a dashed line."""
    from matplotlib.ticker import LogLocator

    for number, (name, (cost, mean, published)) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(cost, mean, "o", color=colour, label=shorten(name), markersize=7)
        if isinstance(published, int | float):
            axes.axhline(published, color=colour, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    # The default writes powers as formulas, which these plots would show as their source.
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    style(axes, "seconds", "test accuracy (%)")


def _cell(key: str, results: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the page's part about a cell: its command, its cost, its values and its plots."""
    result = results[key]
    stage, values = result["stage"], result["values"]
    settings = dict(result["settings"])
    # A backbone that another cell has pretrained is titled by the settings of that cell.
    if pretraining := results.get(str(settings.get("backbone")).removeprefix(CELL)):
        settings["backbone"] = Cell("pretrain", None, pretraining["settings"])
    facts = [
        ("folder", result["folder"]),
        ("processor time", f"{result['cpu_seconds']:.1f} s"),
        *([("forward passes", f"{values['passes']:,} rows")] if "passes" in values else []),
        ("disk", size_text(result["bytes"])),
        *facts_of(stage, values),
        *result["made_with"].items(),
        *[("note", note) for note in result["notes"][:6] if "%), " not in note],  # no progress lines
    ]
    return {
        "id": f"{prefix}cell-{key}",
        "title": Cell(stage, result["task"], settings).title,
        "summary": f"{result['seconds']:.1f} s",
        "commands": result["commands"],
        "facts": facts,
        "plots": _plots_of(stage, values),
    }


def leave_out_answered_claims(parts: Sequence[Mapping[str, Any]]) -> None:
    """Leave out each claim without a number for which the same table of another reproduction has one."""
    tables = [table for part in parts for table in part.get("tables", ())]
    measured = {(t["name"], c["says"]) for t in tables for c in t["claims"] if not _has_no_number(c)}
    for table in tables:
        table["claims"] = [
            claim
            for claim in table["claims"]
            if not _has_no_number(claim) or (table["name"], claim["says"]) not in measured
        ]


def _has_no_number(claim: Mapping[str, Any]) -> bool:
    return claim["verdict"] in (NOT_CHECKED, NOT_MEASURED)


def _folders_of_cells(path: Path) -> set[str]:
    """Return the folders of the fits and runs of a reproduction."""
    return {result["folder"] for result in ReproductionFolder(path).results()}


REPRODUCTIONS = FolderKind(
    place="reproductions",
    matches=is_reproduction,
    part=lambda path, number: reproduction_part(ReproductionFolder(path), number),
    shown_folders=_folders_of_cells,
    finish=leave_out_answered_claims,
)
"""How the page of `report` shows the folders of `reproduce`."""
