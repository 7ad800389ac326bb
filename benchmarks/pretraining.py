"""What language pretraining adds to a frozen transformer: a picture and a table of claims, from finished cells.

``reproductions.py`` writes them. A point is the test accuracy with pretrained blocks minus that with random blocks, in
points, on one task, with a 95% interval of the difference over test rows and seeds (a single seed shows no spread over
seeds). The paper's differences are those of its Table 2 (version 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reservoir_pipelines.paper.claims import NOT_CHECKED, NOT_MEASURED, MeanEstimate
from reservoir_pipelines.plots import COLOURS, GRID, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tables = Mapping[tuple[str, str], Mapping[str, Any]]
"""Tables with their numbers, by the folder of their cells and their name."""

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
    Comparison(
        "FPT of mini (5 M parameters), 20 to 400 steps", "hour", "table2", "FPT", "Random", "s", COLOURS[5]
    ),
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
    Comparison(
        "the same of MiniLM (22 M parameters)",
        "minilm",
        "table-inits",
        "pretrained, best column",
        "random, best column",
        "v",
        COLOURS[3],
    ),
    Comparison(
        "the same of stories15M (15 M parameters)",
        "stories15M",
        "table-inits",
        "pretrained, best column",
        "random, best column",
        "P",
        COLOURS[4],
    ),
    Comparison(
        "FPT of MiniLM, 2,000 steps",
        "minilm",
        "table-inits",
        "pretrained, FPT",
        "random, FPT",
        "<",
        COLOURS[3],
    ),
    Comparison(
        "FPT of stories15M, 2,000 steps",
        "stories15M",
        "table-inits",
        "pretrained, FPT",
        "random, FPT",
        ">",
        COLOURS[4],
    ),
)


def differences(tables: Tables, comparison: Comparison) -> dict[str, MeanEstimate]:
    """Return the difference in points with its 95% interval, by task."""
    return _row_differences(
        tables[comparison.part, comparison.table], comparison.pretrained, comparison.random
    )


def _row_differences(table: Mapping[str, Any], more: str, less: str) -> dict[str, MeanEstimate]:
    """Return one row of a table minus another, with the 95% interval, for each task that both rows have."""
    rows: Mapping[str, Any] = {row["name"]: row["spots"] for row in table["rows"]}
    pairs = zip(table["columns"], rows[more], rows[less], strict=True)
    return {
        task: _estimate(first).minus(_estimate(second))
        for task, first, second in pairs
        if first and second and first["ends"] and second["ends"]
    }


def _estimate(spot: Mapping[str, Any]) -> MeanEstimate:
    return MeanEstimate(spot["mean"], *spot["ends"])


def published(tables: Tables) -> dict[str, float]:
    """Return the differences of the paper's Table 2, by task."""
    table = tables["hour", "table2"]
    rows = {row["name"]: [spot["published"] for spot in row["spots"]] for row in table["rows"]}
    return {
        task: float(pretrained) - float(random)
        for task, pretrained, random in zip(table["columns"], rows["FPT"], rows["Random"], strict=True)
    }


def draw_pretraining(figure: Figure, tables: Tables) -> None:
    """Draw one band per task, with the paper's difference above ours."""
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    axes.hlines([place + 0.5 for place in range(len(TASKS) - 1)], -16, 30, color=GRID, linewidth=1)
    places = {task: len(TASKS) - 1 - number for number, task in enumerate(TASKS)}
    paper = published(tables)
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
        by_task = differences(tables, comparison)
        axes.errorbar(
            [difference.mean for difference in by_task.values()],
            [places[task] + 0.2 - 0.1 * number for task in by_task],
            xerr=[
                [difference.mean - difference.low for difference in by_task.values()],
                [difference.high - difference.mean for difference in by_task.values()],
            ],
            fmt=comparison.marker,
            color=comparison.colour,
            markeredgecolor=INK,
            markersize=7,
            capsize=3,
            label=comparison.label,
        )
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(-0.5, len(TASKS) - 0.5)
    axes.set_xlabel("test accuracy with pretrained blocks minus random blocks, in points (95% interval)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params("y", length=0)
    figure.legend(loc="outside lower center", ncols=1, frameon=False)


# The models of table-inits from the smallest to the largest, by the folder of their cells.
MODELS = {
    "hour": "mini (5 M)",
    "stories15M": "stories15M (15 M)",
    "minilm": "MiniLM (22 M)",
    "mpnet": "MPNet base (109 M)",
}
READERS = {
    "FPT": "FPT, 2,000 steps",
    "best column": "readout, best column",
    "last layer": "readout, last layer",
}
"""What reads the blocks in table-inits: the last part of the name of a row, and how the page calls it."""


def inits_table(tables: Tables) -> str:
    """Return the differences between pretrained weights, their statistics, random and tied ones as Markdown."""
    heads = (
        "read by | task | model (parameters) | pretrained minus random | pretrained minus statistics | "
        "statistics minus random | tied minus random | seeds"
    )
    lines = [f"| {heads} |", "|---" * 3 + "|--:" * 5 + "|"]
    for reader, label in READERS.items():
        for task in TASKS:
            for folder, model in MODELS.items():
                table = tables[folder, "table-inits"]
                cells = [_difference_text(table, task, reader, *pair) for pair in PAIRS]
                if any(cells):
                    seeds = _seeds_text(table, task, reader)
                    lines.append(f"| {' | '.join([label, task, model, *cells, seeds])} |")
    return "\n".join(lines) + "\n"


PAIRS = (
    ("pretrained", "random"),
    ("pretrained", "statistics"),
    ("statistics", "random"),
    ("tied", "random"),
)


def _difference_text(table: Mapping[str, Any], task: str, reader: str, more: str, less: str) -> str:
    names = (f"{more}, {reader}", f"{less}, {reader}")
    if not {*names} <= {row["name"] for row in table["rows"]}:  # only the FPT has tied blocks
        return ""
    difference = _row_differences(table, *names).get(task)
    return f"{difference.mean:+.1f} ({difference.low:+.1f} to {difference.high:+.1f})" if difference else ""


def _seeds_text(table: Mapping[str, Any], task: str, reader: str) -> str:
    """Return the number of seeds, or the smallest and the largest if the rows differ."""
    place = table["columns"].index(task)
    seeds = {
        spot["seeds"]
        for row in table["rows"]
        if row["name"].endswith(f", {reader}") and (spot := row["spots"][place]) and spot["ends"]
    }
    return " to ".join(map(str, sorted({min(seeds), max(seeds)})))


CLAIM_TABLES = ("table1", "table2", "table3")
SCALES = ("paper", "full", "mpnet", "minilm", "stories15M", "day", "hour")
"""The folders of finished cells, from the largest runs to the smallest."""


def claims_table(tables: Tables) -> str:
    """Return the paper's claims of `CLAIM_TABLES` as Markdown, each at the largest scale at which it was judged."""
    heads = "claim | paper | here | difference (95% interval) | verdict | scale"
    lines = [f"| {heads} |", "|---" * 6 + "|"]
    for name in CLAIM_TABLES:
        judged: dict[str, list[str]] = {}
        for folder in SCALES:
            for claim in tables.get((folder, name), {"claims": ()})["claims"]:
                if claim["source"] == "ours" or claim["verdict"] in (NOT_CHECKED, NOT_MEASURED):
                    continue
                cells = [
                    claim["says"],
                    name.replace("table", "Table "),
                    claim["numbers"],
                    claim["interval"],
                    claim["verdict"],
                    claim["size"],
                ]
                judged.setdefault(claim["says"], cells)
        lines += [f"| {' | '.join(cells)} |" for cells in judged.values()]
    return "\n".join(lines) + "\n"
