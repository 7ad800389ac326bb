"""Draw the first plot of the README: an untrained GPT-2 small on all training rows, next to published results.

    python benchmarks/headline.py        # writes docs/pictures/headline.png

The accuracies of this project come from the table `full-size` of RESULTS.md, and the published ones from the recipe
`headline`. If a task has several rows, the most accurate one is drawn.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import reservoir_pipelines
from reservoir_pipelines.plots import COLOURS, GRID, INK
from results import block, parsed

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "headline.png"
RECIPE = Path(reservoir_pipelines.__file__).parent / "recipes" / "headline.toml"
# the order of the recipe
TASKS = ("bit-memory", "bit-xor", "listops", "mnist", "cifar10", "cifar10-lra", "homology")
OURS, BASELINE = "untrained GPT-2 small, exact readout", "best baseline without a transformer"
# Marker, colour and size of each series. The published rows have the recipe's names.
STYLES = {
    BASELINE: ("|", INK, 15),
    "paper: output only, random GPT-2": ("o", "white", 7),
    "paper: FPT, random GPT-2": ("^", COLOURS[1], 8),
    "Rothermel et al. 2021: frozen random, rate swept": ("D", COLOURS[4], 7),
    OURS: ("o", COLOURS[0], 11),
}


def accuracies() -> dict[str, dict[str, float]]:
    """Return the accuracies in percent of each series, by task."""
    rows = parsed(block("full-size"))
    best: dict[str, dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: float(row["test"])):
        best[row["task"].partition(",")[0]] = row
    found = {
        OURS: {task: float(row["test"]) for task, row in best.items()},
        BASELINE: {task: float(row["best baseline"].split()[0]) for task, row in best.items()},
    }
    for row in tomllib.loads(RECIPE.read_text())["rows"]:
        if row["name"] in STYLES and row["name"] != OURS:
            published = zip(TASKS, row["published"], strict=True)
            found[row["name"]] = {task: value for task, value in published if value != ""}
    return found


def main() -> None:
    """Draw one line per task, the most accurate first."""
    found = accuracies()
    order = sorted(TASKS, key=lambda task: found[OURS][task])
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    axes.hlines(range(len(order)), 0, 100, color=GRID, linewidth=1, zorder=0)
    for name, (marker, colour, size) in STYLES.items():
        points = [(found[name][task], place) for place, task in enumerate(order) if task in found[name]]
        edge = {"markeredgewidth": 3 if marker == "|" else 1, "markeredgecolor": INK}
        axes.plot(
            *zip(*points, strict=True),
            marker,
            color=colour,
            markersize=size,
            label=name,
            linestyle="",
            **edge,
        )
    for place, task in enumerate(order):
        axes.annotate(
            f"{found[OURS][task]:.1f}", (104, place), va="center", color=COLOURS[0], weight="bold"
        )
    axes.set_yticks(range(len(order)), order)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("test accuracy, %")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params("y", length=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(OUT, dpi=130)


if __name__ == "__main__":
    main()
