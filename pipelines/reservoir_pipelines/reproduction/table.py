"""A table with its numbers: mean and standard error over seeds, beside those that others published."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from reservoir_pipelines.reproduction.cell import Cell
from reservoir_pipelines.reproduction.measures import WORDS, measured
from reservoir_pipelines.reproduction.recipe import Recipe, Spot
from reservoir_pipelines.reproduction_folder import Kept


def fill(recipe: Recipe, kept: Kept) -> dict[str, Any]:
    """Return a recipe's table as JSON values, with what its finished cells came to."""
    spots = {(spot.row, spot.column): _fill(spot, kept) for spot in recipe.spots}
    measures = dict.fromkeys(WORDS[spot.measure] for spot in recipe.spots if spot.measure in WORDS)
    return {
        "name": recipe.name,
        "title": recipe.title,
        "scale": recipe.scale,
        "note": recipe.note,
        "drawn": recipe.drawn,
        "unit": "; ".join(measures),
        "columns": list(recipe.columns),
        "rows": [
            {
                "name": row,
                "note": recipe.notes.get(row, ""),
                "spots": [spots.get((row, column)) for column in recipe.columns],
            }
            for row in recipe.rows
        ],
        "claims": [found for claim in recipe.claims if (found := _claim(claim, spots))],
    }


def _fill(spot: Spot, kept: Kept) -> dict[str, Any]:
    values, reasons = [], [spot.reason] if spot.reason else []
    for cells in spot.cells:
        value, reason = _value(spot, cells, kept)
        if value is None:
            reasons.append(reason)
        else:
            values.append(value)
    return {
        "measure": spot.measure,
        "mean": fmean(values) if values else None,
        "error": stdev(values) / sqrt(len(values)) if len(values) > 1 else None,
        "seeds": len(values),
        "published": spot.published,
        "later": spot.later,
        "reason": "; ".join(dict.fromkeys(reasons)),
        "cells": [[cell.key for cell in cells] for cells in spot.cells],
    }


def _value(spot: Spot, cells: tuple[Cell, ...], kept: Kept) -> tuple[float | None, str]:
    """Return the number of one seed, or why there is none."""
    values = []
    for cell in cells:
        result = kept.result(cell.key)
        if result is None:
            return None, kept.failure(cell.key) or "not run yet"
        values.append(measured(spot.measure, result["values"]))
    if None in values:
        return None, f"no {WORDS.get(spot.measure, spot.measure)}"
    if len(values) == 1:
        return float(values[0]), ""
    return (values[0] / values[1], "") if values[1] else (None, "the second of the two is zero")


def _claim(claim: Mapping[str, Any], spots: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return a direction with whether it holds: of one spot above others, or above a number."""
    more, *others = (spots.get(tuple(place), {}).get("mean") for place in (claim["more"], *claim.get("than", ())))
    others = others or [claim["by"]]
    if more is None or None in others:
        return None
    return {"says": claim["says"], "holds": all(more > other for other in others if other is not None)}
