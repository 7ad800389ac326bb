"""Paired tests between weights of one model: the fits of ``reservoir reproduce table-inits``, row by row.

    reservoir reproduce table-inits --scale hour --seeds 3 --override backbone=MODEL --data DIR --out OUT --cache cache
    python benchmarks/inits.py OUT

Each fit of the table is repeated with its chosen columns and penalty, from the cached features, to get the score of
each test row. A line compares two of the three weights (or one of them with the raw input) on one task: the mean
difference of their test scores over the seeds, and the p-value of each seed, from McNemar's mid-p or, if a row has
several labels, from sign flips of the rows. Test rows of different seeds may be the same, so the p-values are not
combined.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

from reservoir_pipelines import fit

from reservoir.readouts.evaluation import Evaluation
from reservoir.readouts.paired import p_value_of_difference

WEIGHTS = ("pretrained", "statistics", "random")


def row_of(settings: dict[str, object]) -> str:
    """Return the row of the table that a cell is in, without its weights."""
    names = {"raw": "raw", "final/last": "last layer"}
    return names.get(str(settings.get("columns")), "best column")


def repeat(folder: Path) -> Evaluation:
    """Fit the chosen readout of a finished fit again, and return its evaluation on test rows."""
    saved = json.loads((folder / "fit.json").read_text())
    best = saved["best"]
    alphas = f"{best['alpha']}:{best['alpha']}:1"
    columns = ["+".join(best["columns"])]
    return fit(saved["entry"], columns=columns, readout=best["readout"], alphas=alphas).evaluation


def evaluations(out: Path) -> dict[tuple[str, str, str, int], Evaluation]:
    """Return the evaluations of a folder's fits by task, row, weights and seed."""
    scored = {}
    for path in sorted((out / "cells").glob("*.json")):
        cell = json.loads(path.read_text())
        settings, row = cell["settings"], row_of(cell["settings"])
        weights = "raw" if row == "raw" else settings["init"]
        scored[cell["task"], row, weights, settings["seed"]] = repeat(out / cell["folder"])
    return scored


def main() -> None:
    """Print a line of a Markdown table for each comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the results, as given to reproduce --out")
    scored = evaluations(parser.parse_args().out)
    seeds = sorted({seed for *_, seed in scored})
    print("| task | readout | one | other | difference in points | p of each seed |")
    print("|---|---|---|---|--:|---|")
    for task in dict.fromkeys(task for task, *_ in scored):
        pairs = [(row, pair) for row in ("last layer", "best column") for pair in combinations(WEIGHTS, 2)]
        pairs += [("best column", (weights, "raw")) for weights in WEIGHTS]
        for row, (weights, other) in pairs:
            keys = [
                ((task, row, weights, s), (task, "raw" if other == "raw" else row, other, s)) for s in seeds
            ]
            both = [(scored[a], scored[b]) for a, b in keys if a in scored and b in scored]
            if not both:
                continue
            gains = [100 * (a.row_scores.mean() - b.row_scores.mean()) for a, b in both]
            p_values = (p_value_of_difference(a, b) for a, b in both)
            p = ", ".join("-" if value is None else f"{value:.2g}" for value in p_values)
            print(f"| {task} | {row} | {weights} | {other} | {sum(gains) / len(gains):+.1f} | {p} |")


if __name__ == "__main__":
    main()
