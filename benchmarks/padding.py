"""The cost of padding, counted and timed, with the batches of extract and without its sorting.

    python benchmarks/padding.py [--data DIR] [--rows 256] [--backbone mini]

For ListOps, and for homology if DIR has its files, the table shows the share of padding among the tokens of all
batches. For two other ways of batching it also shows the number of tokens, and of multiplications in ``mini``, as a
multiple of ours: rows in their original order with each batch padded to its longest row, and all rows padded to the
maximum. The number in brackets is the ratio for batches without any padding, the upper bound. With ``--rows``, this
number of rows goes through an untrained backbone on the CPU in each of the three ways, with all layers pooled as in
extract; the times are processor times. A fourth way takes 16 rows at a time in their original order, as in the
evaluation of the paper's authors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from reservoir.batches import padded_lengths, to_tokens, token_batches
from reservoir.column import Column
from reservoir.loaded_model import load_model
from reservoir.options import ReservoirOptions
from reservoir.plan.precision import BATCH_TOKENS, BLOCK_ROWS
from reservoir.plan.windows import resolve_model
from reservoir.tasks import task_named
from reservoir.tasks.task import Task

WIDTH = 256
"""Cost of ``mini``: a block takes 24 width^2 + 2 width tokens operations per token, because its attention is causal."""

AUTHORS = 16
"""Number of rows in each of the authors' batches."""

Batches = list[tuple[np.ndarray, int]]
"""Row numbers of each batch, and the number of tokens to which these rows are padded."""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--backbone", default="mini")
    arguments = parser.parse_args()
    print(
        "| task, real lengths | batches | padding | original order | all padded | original order, 16 at a time |"
    )
    print("|---|---|--:|--:|--:|--:|", flush=True)
    sources = [task_named("listops", train_rows=8192, valid_rows=1, test_rows=1)]
    sources += [task_named("homology", data=arguments.data)] if arguments.data else []
    for source in sources:
        parts = [part for piece in source.pieces() if (part := source.read(piece).get("train"))]
        lengths = np.concatenate([part.lengths for part in parts])
        for device in ("cpu", "cuda"):
            show(source.task, lengths, device)
        if arguments.rows:
            measure(
                source.task,
                parts[0].x[: arguments.rows],
                parts[0].lengths[: arguments.rows],
                arguments.backbone,
            )


def ways(lengths: np.ndarray, most: int, device: str) -> list[Batches]:
    """Return the batches of extract, batches in original order, and the latter padded to the maximum length."""
    batch, block = max(1, BATCH_TOKENS[device] // most), BLOCK_ROWS[device]
    ours: Batches = []
    for low in range(0, len(lengths), block):
        padded = padded_lengths(lengths[low : low + block])
        for rows in token_batches(lengths[low : low + block], padded, batch * most):
            ours.append((low + rows, int(padded[rows[-1]])))
    plain = [np.arange(len(lengths))[low : low + batch] for low in range(0, len(lengths), batch)]
    return [ours, [(rows, int(lengths[rows].max())) for rows in plain], [(rows, most) for rows in plain]]


def show(task: Task, lengths: np.ndarray, device: str) -> None:
    """Print the row of a task and a kind of device."""
    plans = [
        [(len(rows), tokens) for rows, tokens in way] for way in ways(lengths, task.max_tokens, device)
    ]
    plans.append([(1, int(length)) for length in lengths])
    tokens = [sum(rows * length for rows, length in plan) for plan in plans]
    work = [sum(rows * length * (24 * WIDTH + 2 * length) for rows, length in plan) for plan in plans]
    title = f"{task.name}, {len(lengths):,} rows, mean {lengths.mean():.0f} of {task.max_tokens}"
    batches = f"{device}, {BATCH_TOKENS[device]:,} tokens among {BLOCK_ROWS[device]:,} rows"
    print(
        f"| {title} | {batches} | {1 - tokens[3] / tokens[0]:.1%} | {more(work[1], work)} | {more(work[2], work)} | |",
        flush=True,
    )


def more(other: int, costs: list[int]) -> str:
    """Return another cost as a multiple of our batches' cost, and as a multiple of the cost without padding."""
    return f"{other / costs[0]:.2f} ({other / costs[3]:.2f})"


def measure(task: Task, x: np.ndarray, lengths: np.ndarray, backbone: str) -> None:
    """Print how long each way of batching takes; the ways take turns."""
    model = load_model(task, resolve_model(ReservoirOptions(backbone=backbone, init="random")), "cpu")
    columns = [
        Column(layer, pooling) for layer in model.fpt.backbone.layers for pooling in ("last", "mean")
    ]
    x, lengths = to_tokens(model, None, x, lengths)
    parts = [np.arange(low, min(low + AUTHORS, len(x))) for low in range(0, len(x), AUTHORS)]
    plans = [*ways(lengths, task.max_tokens, "cpu"), [(rows, int(lengths[rows].max())) for rows in parts]]
    seconds = np.zeros((2, len(plans)))
    for turn in range(len(seconds)):
        for number, plan in enumerate(plans):
            started = time.process_time()
            for rows, tokens in plan:
                model.fpt.features(
                    torch.from_numpy(x[rows, :tokens]), torch.from_numpy(lengths[rows]).long(), columns
                )
            seconds[turn, number] = time.process_time() - started
    best = seconds.min(axis=0)
    own, padded, authors = (f"{other / best[0]:.2f}" for other in best[1:])
    print(
        f"| timed, {len(x):,} rows of {task.name} | {backbone} in {model.compute}: {best[0]:.1f} processor seconds "
        f"| | {own} | {padded} | {authors} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
