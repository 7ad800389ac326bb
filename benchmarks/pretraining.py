"""Draw what language pretraining adds to a frozen transformer, from the committed cells.

    python benchmarks/pretraining.py            # writes docs/pictures/pretraining.png

A point is the test accuracy with pretrained blocks minus that with random blocks, in points, on one task, with a 95%
interval as for independent test rows. Intervals do not contain the spread over seeds. The paper's differences are those
of its Table 2 (version 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from reservoir_pipelines.plots import COLOURS, GRID, INK
from reservoir_pipelines.reproduction_folder import ReproductionFolder

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "pretraining.png"
PARTS = ROOT / "benchmarks" / "reproductions"
TASKS = ("bit-memory", "bit-xor", "listops", "mnist", "cifar10", "cifar10-lra", "homology")


@dataclass(frozen=True)
class Comparison:
    """Two rows of a committed table: the same model with pretrained and with random blocks."""

    label: str
    part: str
    table: str
    pretrained: str
    random: str
    marker: str
    colour: str


COMPARISONS = (
    Comparison("FPT of mini (5 M parameters), 20 to 400 steps", "hour", "table2", "FPT", "Random", "s", COLOURS[5]),
    Comparison("FPT of mini, 1,000 to 4,000 steps", "day", "table2", "FPT", "Random", "o", COLOURS[0]),
    Comparison(
        "linear readout of MPNet base (109 M parameters), best column",
        "mpnet",
        "table-inits",
        "pretrained, best column",
        "random, best column",
        "D",
        COLOURS[2],
    ),
)


def differences(comparison: Comparison) -> dict[str, tuple[float, float]]:
    """Return the difference in points and the half-width of its 95% interval, by task."""
    tables = ReproductionFolder(PARTS / comparison.part).tables()
    table = next(table for table in tables if table["name"] == comparison.table)
    rows: Mapping[str, Any] = {row["name"]: row["spots"] for row in table["rows"]}
    by_task = {}
    for task, pretrained, random in zip(
        table["columns"], rows[comparison.pretrained], rows[comparison.random], strict=True
    ):
        if pretrained["mean"] is not None and random["mean"] is not None:
            half_widths = [(spot["interval"][1] - spot["interval"][0]) / 2 for spot in (pretrained, random)]
            by_task[task] = pretrained["mean"] - random["mean"], hypot(*half_widths)
    return by_task


def published() -> dict[str, float]:
    """Return the differences of the paper's Table 2, by task."""
    table = next(t for t in ReproductionFolder(PARTS / "hour").tables() if t["name"] == "table2")
    rows = {row["name"]: [spot["published"] for spot in row["spots"]] for row in table["rows"]}
    return {
        task: float(pretrained) - float(random)
        for task, pretrained, random in zip(table["columns"], rows["FPT"], rows["Random"], strict=True)
    }


def main() -> None:
    """Draw one band per task, with the paper's difference above ours."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    axes.axvline(0, color=INK, linewidth=1)
    axes.hlines([place + 0.5 for place in range(len(TASKS) - 1)], -16, 30, color=GRID, linewidth=1)
    places = {task: len(TASKS) - 1 - number for number, task in enumerate(TASKS)}
    paper = published()
    axes.plot(
        [paper[task] for task in TASKS],
        [places[task] + 0.3 for task in TASKS],
        "^",
        color=COLOURS[1],
        markersize=9,
        markeredgecolor=INK,
        label="paper: FPT of GPT-2 small (124 M parameters), until convergence; no interval published",
    )
    for number, comparison in enumerate(COMPARISONS):
        by_task = differences(comparison)
        axes.errorbar(
            [difference for difference, _ in by_task.values()],
            [places[task] + 0.1 - 0.2 * number for task in by_task],
            xerr=[half_width for _, half_width in by_task.values()],
            fmt=comparison.marker,
            color=comparison.colour,
            markeredgecolor=INK,
            markersize=7,
            capsize=3,
            label=comparison.label,
        )
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(-0.5, len(TASKS) - 0.5)
    axes.set_xlabel("test accuracy with pretrained blocks minus random blocks, in points (95% interval over test rows)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params("y", length=0)
    figure.legend(loc="outside lower center", ncols=1, frameon=False)
    figure.savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
