"""The README's table, the leaderboard's table and the README's picture, from finished cells.

``reproductions.py`` writes them. The numbers are those of the recipe `headline` in ``results/full.jsonl``, as means
over the seeds with 95% intervals over test rows and seeds. ``reproductions.toml`` has the published numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import fsum
from typing import TYPE_CHECKING, Any

from reservoir_pipelines.plots import COLOURS, GRID, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder

# Names of rows of the recipe `headline`.
BLOCKS, INPUT, RAW = (
    "untrained GPT-2 small, exact readout",
    "its input layer alone, no transformer",
    "raw input, linear",
)
NO_BLOCKS, KERNEL = "no transformer, ridge readout", "no transformer, arc-cosine kernel"
TIED = "untrained attention alone, keys equal queries"
NO_LEVELS = "no levels, arc-cosine kernel of fading means"
# Tasks whose input layer has structure that another model would have to learn.
STRUCTURE_GIVEN = ("listops",)
# The entries of docs/log.md that have the settings and the command of each number of the README's table.
PATCHES = "2026-11-27-patches-of-training-pictures-and-an-infinitely-wide-layer-without-a-transformer"
INPUT_ALONE = "2026-11-26-what-carries-the-headline"
ALL_ROWS = "2026-11-23-further-seeds-with-all-training-rows"
ONE_HEAD = "2026-11-27-one-head-of-untrained-attention-recalls-999-of-bit-memory"
FADING = "2026-11-27-all-rows-of-cifar-10-fpts-of-real-weights-and-listops-by-means-that-fade"
KERNELS = {
    "mnist": ("2026-11-28-all-rows-of-mnist-and-twice-the-patches-on-cifar-10",),
    "cifar10": (FADING,),
    "listops": (PATCHES, FADING),
}
OUTPUT_ONLY, FPT_RANDOM, FPT = "paper: output only, random GPT-2", "paper: FPT, random GPT-2", "paper: FPT"
TASKS = ("bit-xor", "mnist", "cifar10", "cifar10-lra", "listops", "homology", "bit-memory")
PUBLISHED_KINDS = {
    "random": "blocks random and frozen",
    "pretrained": "blocks pretrained and frozen",
    "trained": "everything trained",
}


@dataclass(frozen=True)
class Score:
    """A mean test accuracy in percent, with its 95% interval and the number of seeds."""

    mean: float
    interval: tuple[float, float]
    seeds: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.1f}% ({low:.1f} to {high:.1f})"


@dataclass(frozen=True)
class TaskResult:
    """What the committed cells say about one task."""

    train_rows: int
    baseline: float  # best test accuracy of a baseline, in percent
    baseline_name: str
    no_blocks: Score | None  # patches of pictures or counted brackets, with a ridge readout
    kernel: Score | None  # the same with the arc-cosine kernel
    no_levels: Score | None  # means that fade, with the arc-cosine kernel: no structure is given
    input_alone: Score | None
    blocks: Score
    tied: Score | None  # one layer of attention without feed-forward, whose keys equal its queries
    published: Mapping[str, float | None]  # by row of the recipe
    minutes: float  # processor minutes of all its rows, seed 0


def headline_results(folder: ReproductionFolder) -> dict[str, TaskResult]:
    """Return the results of each task of the recipe `headline` from a folder of cells and tables."""
    table = next(table for table in folder.tables() if table["name"] == "headline")
    rows = {row["name"]: row for row in table["rows"]}
    return {task: _task_result(folder, rows, table["columns"].index(task)) for task in TASKS}


def _task_result(folder: ReproductionFolder, rows: Mapping[str, Any], place: int) -> TaskResult:
    spots = {name: row["spots"][place] for name, row in rows.items()}
    cells = {
        name: [result for keys in spots[name]["cells"] for key in keys if (result := folder.result(key))]
        for name in rows
    }
    # The best baseline on the test rows, which favours the baselines. Each stands on all training rows of its result.
    baselines: dict[str, list[float]] = {}
    for cell in [*cells[BLOCKS], *cells[INPUT], *cells[RAW]]:
        for name, score in cell["values"]["baselines"].items():
            baselines.setdefault(name, []).append(100 * score)
    best_name = max(baselines, key=lambda name: max(baselines[name]))
    rows_note = next(note for note in cells[BLOCKS][0]["notes"] if note.startswith("fit "))
    train_rows = re.search(r"on ([\d,]+) rows", rows_note)
    assert train_rows, rows_note
    seconds = [cell["cpu_seconds"] for cell in chain(*cells.values()) if cell["settings"]["seed"] == 0]
    return TaskResult(
        train_rows=int(train_rows[1].replace(",", "")),
        baseline=max(baselines[best_name]),
        baseline_name=best_name,
        no_blocks=_score(spots[NO_BLOCKS]),
        kernel=_score(spots[KERNEL]),
        no_levels=_score(spots[NO_LEVELS]),
        input_alone=_score(spots[INPUT]),
        blocks=_score(spots[BLOCKS]) or Score(float("nan"), (0, 0), 0),
        tied=_score(spots[TIED]),
        published={name: spot["published"] for name, spot in spots.items() if spot["published"]},
        # Python 3.12 and later round a plain sum in another way than 3.11.
        minutes=fsum(seconds) / 60,
    )


def _score(spot: Mapping[str, Any]) -> Score | None:
    if spot["mean"] is None:
        return None
    low, high = spot["ends"]
    return Score(spot["mean"], (low, high), spot["seeds"])


def readme_table(by_task: Mapping[str, TaskResult]) -> str:
    """Return the README's table as Markdown."""
    heads = (
        "task | train rows | best baseline | no transformer | no transformer, kernel | input layer alone | "
        "with the first block | "
        "paper, output only | paper, FPT of random blocks | paper, FPT | minutes"
    )
    lines = [f"| {heads} |", f"|---|{'--:|' * heads.count(' | ')}"]
    for task, result in by_task.items():
        published = [
            "" if (value := result.published.get(name)) is None else f"{value:g}%"
            for name in (OUTPUT_ONLY, FPT_RANDOM, FPT)
        ]
        cells = [
            task,
            f"{result.train_rows:,}",
            f"{result.baseline:.1f}%",
            _linked(_marked(task, result.no_blocks), PATCHES),
            _linked(_kernels(task, result), *KERNELS.get(task, ())),
            _linked(str(result.input_alone or ""), INPUT_ALONE),
            _linked(_with_blocks(task, result), ALL_ROWS, ONE_HEAD),
            *published,
            f"{result.minutes:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _linked(cell: str, *entries: str) -> str:
    """Return a cell of the README's table whose scores, divided by semicolons, link to these entries of the log."""
    # There may be more entries than scores, but a score without an entry would be lost.
    scores = cell.split("; ") if cell else []
    assert len(scores) <= len(entries), f"{cell}: name its entry of the log in KERNELS"
    scores = [
        re.sub(r"^([\d.]+%)", rf"[\1](docs/log.md#{entry})", score)
        for score, entry in zip(scores, entries, strict=False)
    ]
    return "; ".join(scores)


def _with_blocks(task: str, result: TaskResult) -> str:
    """Return the score with blocks, and that of attention whose keys equal its queries if it was measured."""
    every_block = ", all twelve blocks" if task == "bit-xor" else ""
    tied = f"; {result.tied}, attention alone, keys equal queries" if result.tied else ""
    return f"{result.blocks}{every_block}{tied}"


def _marked(task: str, score: Score | None) -> str:
    """Return a score without a transformer, with a mark if the input layer has structure that others learn."""
    mark = ", structure given" if task in STRUCTURE_GIVEN else ""
    return f"{score}{mark}" if score else ""


def _kernels(task: str, result: TaskResult) -> str:
    """Return the score of the kernel without a transformer, and that without given structure if it was measured."""
    without_levels = f"; {result.no_levels}, without levels" if result.no_levels else ""
    return f"{_marked(task, result.kernel)}{without_levels}"


def _linear_scores(task: str, result: TaskResult) -> str:
    """Return the scores of linear readouts of one task: without a transformer, and of the first block."""
    without = _marked(task, result.no_blocks)
    blocks = _with_blocks(task, result)
    return f"{without}, without a transformer; {blocks}" if without else blocks


def leaderboard_table(by_task: Mapping[str, TaskResult], published: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of the leaderboard as Markdown; ``published`` holds the texts of its other columns by row."""
    heads = ["task", "here: untrained, linear readout", "here: otherwise"]
    heads += [f"published: {kind}" for kind in PUBLISHED_KINDS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, entry in published.items():
        ours = by_task.get(name)
        cells = [name, _linear_scores(name, ours) if ours else "", entry.get("here", "")]
        cells += [entry.get(kind, "") for kind in PUBLISHED_KINDS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_headline(figure: Figure, by_task: Mapping[str, TaskResult]) -> None:
    """Draw one line per task, the most accurate first."""
    # Marker, colour and size of each series, with its accuracies by task.
    series: dict[str, tuple[tuple[str, str, int], dict[str, float | None]]] = {
        "best baseline: raw input or statistics, linear": (
            ("|", INK, 15),
            {task: result.baseline for task, result in by_task.items()},
        ),
        "paper: output only, random GPT-2": (
            ("o", "white", 7),
            {task: result.published.get(OUTPUT_ONLY) for task, result in by_task.items()},
        ),
        "paper: FPT, random GPT-2": (
            ("^", COLOURS[1], 8),
            {task: result.published.get(FPT_RANDOM) for task, result in by_task.items()},
        ),
        "paper: FPT, language-pretrained GPT-2": (
            ("D", COLOURS[4], 7),
            {task: result.published.get(FPT) for task, result in by_task.items()},
        ),
        "untrained input layer alone, exact readout": (
            ("s", COLOURS[5], 9),
            {task: result.input_alone and result.input_alone.mean for task, result in by_task.items()},
        ),
        "no transformer, exact readout; levels given for listops": (
            ("P", COLOURS[2], 9),
            {task: result.no_blocks and result.no_blocks.mean for task, result in by_task.items()},
        ),
        "no transformer, arc-cosine kernel": (
            ("X", COLOURS[3], 9),
            {task: result.kernel and result.kernel.mean for task, result in by_task.items()},
        ),
        "untrained attention alone, keys equal queries": (
            ("*", COLOURS[0], 13),
            {task: result.tied and result.tied.mean for task, result in by_task.items()},
        ),
        "with untrained blocks of GPT-2 small, exact readout": (
            ("o", COLOURS[0], 11),
            {task: result.blocks.mean for task, result in by_task.items()},
        ),
    }
    order = sorted(by_task, key=lambda task: by_task[task].blocks.mean)
    axes = figure.subplots()
    axes.hlines(range(len(order)), 0, 100, color=GRID, linewidth=1, zorder=0)
    for name, ((marker, colour, size), accuracies) in series.items():
        points = [(value, place) for place, task in enumerate(order) if (value := accuracies[task])]
        if not points:  # no cell has finished
            continue
        axes.plot(
            *zip(*points, strict=True),
            marker,
            color=colour,
            markersize=size,
            label=name,
            linestyle="",
            markeredgewidth=3 if marker == "|" else 1,
            markeredgecolor=INK,
        )
    for place, task in enumerate(order):
        label = f"{by_task[task].blocks.mean:.1f}"
        axes.annotate(label, (104, place), va="center", color=COLOURS[0], weight="bold")
    axes.set_yticks(range(len(order)), order)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("test accuracy, %")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params("y", length=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
