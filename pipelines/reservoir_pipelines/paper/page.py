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

ARRAYS = views.VIEW_ARRAYS | {"attention": ("map", "lines"), "backbone": ("deviations",)}
"""For each stage, the large values of a cell that only plots read; a cell without them has no plots."""

SCALES = {
    "smoke": "Smoke scale: small shapes, few rows, few steps. It only tests that all cells run.",
    "hour": "Hour scale: a small backbone, thousands of rows and hundreds of steps.",
    "day": "Day scale: a small backbone, all training rows, thousands of steps.",
    "full": "Full scale: all training rows through the first blocks of GPT-2 small.",
    "paper": "Paper scale: the sizes of the paper.",
}


def reproduction_part(folder: ReproductionFolder, number: int) -> dict[str, Any]:
    """Return the page's part about a reproduction; ``number`` keeps its HTML ids apart from those of other parts."""
    tables = folder.tables()
    if not tables:
        raise InputError(
            f"{folder.path}: no table of this version of reservoir", "run the same reproduce command again"
        )
    # The results of all cells, each of which may serve several tables.
    keys = dict.fromkeys(key for table in tables for key in table["keys"])
    results = {key: result for key in keys if (result := folder.current_result(key))}
    failed = sum(bool(folder.failure(key)) for key in keys if key not in results)
    waiting = len(keys) - len(results) - failed
    facts = [
        ("scale", " ".join(dict.fromkeys(SCALES[table["scale"]] for table in tables))),
        ("cells", f"{len(results)} finished, {failed} failed, {waiting} not run yet"),
        *_cost_facts(list(results.values())),
    ]
    prefix = f"p{number}-"
    return {
        "id": f"{prefix}reproduction",
        "name": f"Reproduction: {folder.path.name}",
        "facts": facts,
        "plots": [plot for table in tables if table["drawn"] == "costs" for plot in _costs(table, results)],
        "plots_title": "Accuracy over cost",
        "tables": [table_part(table, results, prefix) for table in tables],
        "cells": [_cell_part(key, results, prefix) for key in results],
    }


def _cost_facts(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return time, forward passes and disk space of finished cells altogether, and the versions that computed them."""
    versions = {f"{name} {value}" for result in results for name, value in result["made_with"].items()}
    passes = sum(result["values"].get("passes") or 0 for result in results)
    minutes = sum(result["seconds"] for result in results) / 60
    cpu_minutes = sum(result["cpu_seconds"] for result in results) / 60
    return [
        ("time", f"{minutes:.1f} minutes of wall time, {cpu_minutes:.1f} minutes of processor time"),
        ("forward passes", f"{passes:,} rows, without validations"),
        ("disk", size_text(sum(result["bytes"] for result in results))),
        ("versions", ", ".join(sorted(versions))),
    ]


def table_part(table: Values, results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table for the page; the reasons why numbers are missing are listed below it.

    ``table`` is from `ReproductionFolder.fill`. ``results`` has the finished cells by key: numbers link to them, and
    plots are drawn of them. HTML ids begin with ``prefix``.
    """
    spots = [spot for row in table["rows"] for spot in row["spots"] if spot]
    reasons = list(dict.fromkeys(spot["reason"] for spot in spots if spot["reason"]))
    rows = [
        {**row, "spots": [spot and _spot_texts(spot, reasons, results, prefix) for spot in row["spots"]]}
        for row in table["rows"]
    ]
    seeds = max((spot["seeds"] for spot in spots), default=0)
    seeds_text = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"Numbers are {table['unit'] or 'as in the paper'}. Ours are in bold ({seeds_text})."
    if any(spot.get("interval") for spot in spots):
        caption += " Numbers in small type are the 95% interval over test rows, and their number."
    if any(spot["later"] is not None for spot in spots):
        caption += (
            " Later numbers are validation accuracies of Rothermel et al. 2021 (swept learning rate),"
            " as quoted by others."
        )
    return {
        **table,
        "id": prefix + table["name"],
        "caption": caption,
        "rows": rows,
        "reasons": reasons,
        "plots": _plots(table, results),
    }


def _spot_texts(
    spot: Values, reasons: list[str], results: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    """Return the texts of one position of a table; a text is empty if there is nothing to show.

    ``id`` is that of the spot's first finished cell on the page. ``number`` is the number of the reason why our number
    is missing in the list below the table, from 1.
    """
    measure = spot["measure"]
    published, mean = spot["published"], spot["mean"]
    difference = ""
    if measure.endswith("_score") and isinstance(published, int | float) and mean is not None:
        difference = f"{mean - published:+.1f}"
    first_key = next((key for keys in spot["cells"] for key in keys if key in results), None)
    error = "" if spot["error"] is None else f" ± {number_text(spot['error'], measure)}"
    interval = ""
    if spot.get("interval"):
        low, high = spot["interval"]
        interval = f"{low:.1f} to {high:.1f}, {spot['rows']:,} rows"
    return {
        "id": f"{prefix}cell-{first_key}" if first_key else "",
        "ours": number_text(mean, measure) + error,
        "interval": interval,
        "paper": "" if published is None else number_text(published, measure),
        "difference": difference,
        "number": spot["reason"] and reasons.index(spot["reason"]) + 1,
        "later": "" if spot["later"] is None else number_text(spot["later"], measure),
    }


def number_text(value: Any, measure: str) -> str:
    """Return a number as text: scores with one decimal, counts in full, others with three digits.

    A string, which a recipe may have instead of a published number, is returned as it is; None and "" become "-".
    """
    if value is None or isinstance(value, str):
        return value or "-"
    if measure.endswith("_score"):
        return f"{value:.1f}"
    is_count = value == int(value) and abs(value) >= 1
    return f"{value:,.0f}" if is_count or abs(value) >= 1000 else f"{value:.3g}"


def _plots(table: Values, results: Mapping[str, Any]) -> list[PagePlot]:
    """Return the plots of a table, but not those of costs, which are at the top of the page (see `_costs`)."""
    # The finished cells of the first seed, each with the name of its row.
    cells: dict[str, tuple[str, Any]] = {}
    for row in table["rows"]:
        for spot in filter(None, row["spots"]):
            keys_of_first_seed = spot["cells"][0] if spot["cells"] else []
            for key in keys_of_first_seed:
                if key in results:
                    cells[key] = row["name"], results[key]
    # Plots in groups, each with the name that the page shows above its plots.
    groups: list[tuple[str, list[PagePlot]]] = []
    if table["drawn"] in ("attention", "deviations"):
        groups = [(name, _plots_of(result["stage"], result["values"])) for name, result in cells.values()]
    if table["drawn"] == "curve":  # one curve for each task
        curves = {result["task"]: curve_plots(result["values"]) for _, result in cells.values()}
        groups = list(curves.items())
    return [replace(plot, name=name) for name, plots in groups for plot in plots]


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
    mean_map = np.array(values["map"], float)  # (tokens, tokens), or squares of tokens if there are many
    diagonals = {int(back): name for back, name in values["lines"].items()}  # by distance in tokens
    diagonals_text = ", ".join(f"{back} back ({name})" for back, name in diagonals.items())
    text = f"attention of block {values['layer']}, mean over heads and {values['rows']} rows"
    text += f"; diagonals at {diagonals_text}" if diagonals_text else ""
    labels = [str(number + 1) for number in range(len(mean_map))]
    return PagePlot(text, plots.draw_map, (mean_map, labels, diagonals, plots.attention_top(mean_map)))


def _costs(table: Values, results: Mapping[str, Any]) -> list[PagePlot]:
    """Return the plots of accuracy against cost, one for each task; each column of the table is a task."""
    cost_plots = []
    for number, task in enumerate(table["columns"]):
        # Of each row: cost in seconds, mean accuracy in percent, and the paper's number, which may be a text or None.
        points: dict[str, tuple[float, float, Any]] = {}
        for row in table["rows"]:
            spot = row["spots"][number]
            if not spot or spot["mean"] is None:
                continue
            keys = [key for keys_of_seed in spot["cells"] for key in keys_of_seed if key in results]
            costs = [results[key]["values"].get("cost") for key in keys]
            if costs and None not in costs:  # some stages have no cost
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


def _cell_part(key: str, results: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the page's part about a finished cell: its command, its cost, its values and its plots."""
    result = results[key]
    stage, values = result["stage"], result["values"]
    settings = dict(result["settings"])
    # A backbone that another cell has pretrained is titled by the settings of that cell.
    if pretraining := results.get(str(settings.get("backbone")).removeprefix(CELL)):
        settings["backbone"] = Cell("pretrain", None, pretraining["settings"])
    # The first messages of the cell, without lines about its progress, which have a share such as "(24%), ".
    notes = [note for note in result["notes"][:6] if "%), " not in note]
    facts = [
        ("folder", result["folder"]),
        ("processor time", f"{result['cpu_seconds']:.1f} s"),
        *([("forward passes", f"{values['passes']:,} rows")] if "passes" in values else []),
        ("disk", size_text(result["bytes"])),
        *facts_of(stage, values),
        *result["made_with"].items(),
        *[("note", note) for note in notes],
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
    """Remove from the parts' tables each claim without a number that the same table of another part has with one."""
    tables = [table for part in parts for table in part.get("tables", ())]
    measured = {
        (table["name"], claim["says"])
        for table in tables
        for claim in table["claims"]
        if not _has_no_number(claim)
    }
    for table in tables:
        table["claims"] = [
            claim
            for claim in table["claims"]
            if not _has_no_number(claim) or (table["name"], claim["says"]) not in measured
        ]


def _has_no_number(claim: Mapping[str, Any]) -> bool:
    """Return whether the numbers of a claim are missing, or are not compared."""
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
