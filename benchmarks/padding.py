"""The cost of padding, counted and timed, with the batches of extract and without its sorting.

    python benchmarks/padding.py [--data DIR] [--rows 256] [--backbone mini]
    python benchmarks/padding.py --strings 20000                    # long strings of letters, and of words, instead
    python benchmarks/padding.py --strings 100000 --kinds letters

For ListOps, and for homology if DIR has its files, the table shows the share of padding among the tokens of all
batches. For two other ways of batching it also shows the number of tokens, and of multiplications in ``mini``, as a
multiple of ours: rows in their original order with each batch padded to its longest row, and all rows padded to the
maximum. The number in brackets is the ratio for batches without any padding, the upper bound. With ``--rows``, this
number of rows goes through an untrained backbone on the CPU in each of the three ways, with all layers pooled as in
extract; the times are processor times. A fourth way takes 16 rows at a time in their original order, as in the
evaluation of the paper's authors.

With ``--strings`` `prepare` and `extract` run in processes of their own on strings of 20 to 2,000 letters, with lengths
that are drawn uniformly, and the table has their memory, too. Padding is the share of tokens given to the model that
are not real tokens. Letters reach the first block of mini through adjacent windows of five letters; words reach one
block of width 16 through a tokenizer, in up to 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir.batches import padded_lengths, to_tokens, token_batches
from reservoir.column import Column
from reservoir.loaded_model import load_model
from reservoir.options import ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.plan.precision import BATCH_TOKENS, BLOCK_ROWS
from reservoir.tasks import task_named
from reservoir.tasks.task import Task

WIDTH = 256
"""Cost of ``mini``: a block takes 24 width^2 + 2 width tokens operations per token, because its attention is causal."""

AUTHORS = 16
"""Number of rows in each of the authors' batches."""

Batches = list[tuple[np.ndarray, int]]
"""Row numbers of each batch, and the number of tokens to which these rows are padded."""

SHORTEST, LONGEST = 20, 2000
WINDOWS = {"input": "kernels", "patch": 5, "stride": 5, "layers": "block01", "pool": "last,mean"}
WORDS = ("one", "two", "frozen", "map", "of", "any", "sequence", "reads", "strings")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--strings", type=int, metavar="ROWS", help="Measure long strings instead.")
    parser.add_argument("--kinds", nargs="+", default=["letters", "words"], choices=["letters", "words"])
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        print(json.dumps(stage(arguments.stage[0], json.loads(arguments.stage[1]))))
        return
    if arguments.strings:
        print_strings(arguments.strings, arguments.kinds)
        return
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


def write_strings(path: Path, rows: int, *, words: bool) -> None:
    """Write a table of strings, each with a label."""
    draw = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("text,label\n")
        for length in draw.integers(SHORTEST, LONGEST, rows, endpoint=True):
            if words:
                text = " ".join(draw.choice(WORDS, length // 4 + 1))[:length].strip()
            else:
                text = "".join(draw.choice(list("ACGT"), length))
            file.write(f"{text},{'ab'[length % 2]}\n")


def save_model(folder: Path) -> Path:
    """Write a BERT of one block, and a tokenizer of its words and their beginnings."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pieces = sorted({word[:end] for word in WORDS for end in range(1, len(word) + 1)})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(folder)
    size: Any = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertModel(BertConfig(vocab_size=len(names), max_position_embeddings=1024, **size)).save_pretrained(
        folder
    )
    return folder


def stage(name: str, arguments: dict[str, Any]) -> dict[str, float]:
    """Run prepare or extract here, and return its time, the memory it took, and its padding."""
    import reservoir_pipelines

    from reservoir import batches

    counts, model_batches = np.zeros(2), batches.model_batches

    def counted(model: Any, lengths: np.ndarray, batch_rows: int) -> Iterator[tuple[np.ndarray, int]]:
        for rows, tokens in model_batches(model, lengths, batch_rows):
            counts[:] += lengths[rows].sum(), len(rows) * tokens
            yield rows, tokens

    batches.model_batches = counted
    start = time.perf_counter()
    getattr(reservoir_pipelines, name)(**arguments)
    measured = {
        "seconds": time.perf_counter() - start,
        "megabytes": peak_megabytes(),
    }
    return measured | ({"padding": 1 - counts[0] / counts[1]} if counts[1] else {})


def peak_megabytes() -> float:
    """Return the peak memory of this program; `resource` would also count the program that started it."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else float("nan")


def print_strings(rows: int, kinds: list[str]) -> None:
    """Print the memory, padding and time of each stage on strings of each kind."""
    print("| stage | rows | MB | padding | seconds |\n|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models: dict[str, dict[str, Any]] = {
            "letters": WINDOWS,
            "words": {"backbone": str(save_model(folder / "model"))},
        }
        for kind in kinds:
            path = folder / f"{kind}.csv"
            write_strings(path, rows, words=kind == "words")
            for name, settings in (("prepare", {}), ("extract", models[kind])):
                call = json.dumps({"task": str(path), "cache": str(folder / "cache"), **settings})
                process = subprocess.run(
                    [sys.executable, __file__, "--stage", name, call],
                    stdout=subprocess.PIPE,
                    check=True,
                    env=os.environ,
                )
                measured = json.loads(process.stdout.splitlines()[-1])
                padding = f"{100 * measured['padding']:.1f}%" if "padding" in measured else ""
                size = f"{rows:,} ({path.stat().st_size / 1e6:.0f} MB)"
                cells = (
                    f"{name} {kind}",
                    size,
                    f"{measured['megabytes']:,.0f}",
                    padding,
                    f"{measured['seconds']:,.0f}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
