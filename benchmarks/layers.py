"""Test accuracy of the final layer, and of the layer that validation chooses, by model and task.

    python benchmarks/layers.py --data DIR                                # mini, and an untrained GPT-2 small
    python benchmarks/layers.py --data DIR --model MODEL --text TEXT      # also a model folder, and words of a text
    python benchmarks/layers.py --only digits --rows 200                  # a test of half a minute

Each layer has the same poolings, each alone and all concatenated. The column and the penalty are chosen as `fit` does,
without test rows, once among the columns of ``final`` and once among those of all layers; test rows are scored with
both. The difference has a paired 95% interval over test rows. GPT-2 small is cut after four blocks, whose last output
goes through the final norm. ``motif``, ``chirp`` and ``order`` are generated: a word of seven letters or its
permutation, a rising or a falling tone in noise, and twenty words in their order or shuffled.
"""

from __future__ import annotations

import argparse
import gzip
import re
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_pipelines import extract, fit
from symbols import LETTERS, motif

from reservoir.readouts.paired import p_value_of_difference

WORDS = 20
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "bit-xor": {"parameters": {"held_out": True}, "pool": "last"},
    "bit-memory": {"parameters": {"n": 200, "token_bits": 20}, "pool": "last"},
    "listops": {"parameters": {"min_length": 20, "max_length": 60}},
    "mnist": {},
    "cifar10": {},
    "chirp": {},
    "motif": {},
    "order": {},
}


def own_data(name: str, rows: int, folder: Path, text: Path | None) -> str:
    """Write a generated set, half of it for testing, and return its path; return a named task as it is."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 2 * rows)
    path, split = folder / f"{name}.npz", np.repeat(["train", "test"], rows)
    if name == "motif":
        x = draw.integers(0, LETTERS, (2 * rows, 60))
        np.savez(path, y=motif(draw, x), x=x, split=split)
    elif name == "chirp":
        at, first = np.linspace(0, 1, 128), draw.uniform(0, 6.28, (2 * rows, 1))
        tone = np.sin(first + 2 * np.pi * (12 * at + np.where(y, 6, -6)[:, None] * at * (at - 1)))
        np.savez(
            path, x=(tone + draw.normal(0, 1, tone.shape)).astype(np.float32)[..., None], y=y, split=split
        )
    elif name == "order" and text:
        with (gzip.open if text.suffix == ".gz" else open)(text, "rt", errors="replace") as file:
            words = re.findall(r"[a-z]+", file.read(2000 * rows))
        parts = np.array(words[: 2 * rows * WORDS]).reshape(2 * rows, WORDS)
        lines = [
            " ".join(draw.permutation(part) if shuffled else part)
            for part, shuffled in zip(parts, y, strict=True)
        ]
        path = path.with_suffix(".csv")
        listed = zip(lines, y, split, strict=True)
        path.write_text(
            "text,label,split\n" + "".join(f"{line},{label},{part}\n" for line, label, part in listed)
        )
    else:
        return name
    return str(path)


def compared(task: str, settings: dict[str, Any]) -> list[str]:
    """Return final and best layer, their test accuracies, the difference with its interval, p, and raw input."""
    features = extract(task, **settings)
    layers: dict[str, list[str]] = {}
    for column in features.store["train"].columns:
        layers.setdefault(column.partition("/")[0], []).append(column)
    columns = {name: [*poolings, "+".join(poolings)] for name, poolings in layers.items()}
    final = fit(features, columns=columns["final"])
    best = fit(features, columns=[column for poolings in columns.values() for column in poolings])
    gains = best.evaluation.row_scores - final.evaluation.row_scores
    half = 1.96 * gains.std() / np.sqrt(len(gains))
    layer = best.best.columns[0].partition("/")[0]
    difference = f"{100 * gains.mean():+.1f} ± {100 * half:.1f}" if layer != "final" else "0"
    scores = [
        candidate.test_score or 0
        for candidate in (final.best, best.best, *([best.raw] if best.raw else []))
    ]
    p = p_value_of_difference(best.evaluation, final.evaluation)
    shares = [f"{100 * score:.1f}" for score in scores]
    return [f"{len(gains):,}", shares[0], layer, shares[1], difference, f"{p:.2g}", *shares[2:]]


def pairs(model: str | None) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Yield the title of a model, its options, and its tasks."""
    every = tuple(name for name in TASKS if name != "order")
    yield "mini", {}, (*every, "order")
    yield "GPT-2 small, untrained, 4 blocks", {"backbone": "gpt2", "init": "random", "depth": 4}, every
    if model:
        yield (
            Path(model).name,
            {"backbone": model},
            ("digits", "listops", "bit-xor", "mnist", "motif", "order"),
        )


def main() -> None:
    """Print a line of a Markdown table for each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000, help="largest number of rows of a split")
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, comma-separated")
    parser.add_argument("--data", type=Path, help="folder of MNIST and CIFAR-10")
    parser.add_argument("--model", help="folder of another model")
    parser.add_argument("--text", type=Path, help="text file, may be gzipped")
    arguments = parser.parse_args()
    show = partial(print, flush=True)
    show("| model | task | test rows | final | best layer | best | difference | p | raw | minutes |")
    show("|---|---|--:|--:|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for title, options, tasks in pairs(arguments.model):
            for name in (name for name in tasks if name in arguments.only.split(",")):
                if (name == "order" and not arguments.text) or (
                    name in ("mnist", "cifar10") and not arguments.data
                ):
                    continue
                started, task = (
                    time.process_time(),
                    own_data(name, arguments.rows, Path(folder), arguments.text),
                )
                places = {"data": arguments.data, "cache": folder} if task == name else {"cache": folder}
                settings = {"layers": "all", "limit": arguments.rows} | TASKS[name] | options | places
                cells = compared(task, settings)
                minutes = (time.process_time() - started) / 60
                show("|", " | ".join([title, name, *cells, f"{minutes:.1f}"]), "|")


if __name__ == "__main__":
    main()
