"""Processor time of training steps with dropout on a CPU, with `reservoir/training/fast.py` and without it.

    python benchmarks/dropout.py                   # about five minutes
    python benchmarks/dropout.py --pairs 1 --only mini

A step is forward, backward, clipping and Adam on the groups that an FPT trains, with the default dropout. The two
models take turns on one thread; a line has the median of each, and of the ratios of the pairs with their range.
"""

import argparse
import statistics
import time
from unittest.mock import patch

import torch
from reservoir_pipelines.training import trainable

from reservoir.loaded_model import LoadedModel
from reservoir.options import TrainOptions
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors

CASES = (("mini", 64, 8), ("mini", 512, 4), ("gpt2:n_layer=3", 64, 16), ("gpt2:n_layer=3", 1024, 2))
"""Backbone, tokens and rows of a step. The first is what `reservoir train` does by default on images of 64 patches."""

DIM, CLASSES = 16, 10
NAMES = ("fast", "plain")


def trained_model(backbone: str, tokens: int, compute: str, *, fast: bool) -> LoadedModel:
    """Return an untrained model, built as by `train`, with or without the faster equivalents."""
    task = Task(name="speed", form=Vectors(DIM), max_tokens=tokens, classes=CLASSES)
    speed_up = trainable.speed_up if fast else lambda _model: None
    with patch.object(trainable, "speed_up", speed_up):
        reservoir = Reservoir(backbone=backbone, init="random")
        model, _ = trainable.load_trainable(
            task, reservoir, None, "cpu", compute, "orthogonal", dropout=TrainOptions().dropout
        )
    model.fpt.train()
    return model


def step_seconds(model: LoadedModel, tokens: int, rows: int, steps: int) -> float:
    """Return the processor time of a step."""
    parameters = [p for p in model.fpt.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    x, y = torch.randn(rows, tokens, DIM), torch.randint(0, CLASSES, (rows,))
    lengths = torch.full((rows,), tokens)
    started = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.fpt(x, lengths)[:, 0, 0], y).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return (time.process_time() - started) / steps


def main() -> None:
    """Measure each case in both precisions and print a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of one turn")
    parser.add_argument("--only", default="", help="cases whose backbone begins with this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'backbone':<16} {'tokens':>6} {'rows':>4} {'compute':>9} {'fast ms':>8} {'plain ms':>8}  ratio (range)"
    )
    for backbone, tokens, rows in (case for case in CASES if case[0].startswith(options.only)):
        for compute in ("bfloat16", "float32"):
            models = {name: trained_model(backbone, tokens, compute, fast=name == "fast") for name in NAMES}
            for model in models.values():
                step_seconds(model, tokens, rows, 1)
            seconds: dict[str, list[float]] = {name: [] for name in NAMES}
            for number in range(options.pairs):
                # Each is first in half of the pairs, because the first one may find colder caches.
                for name in NAMES if number % 2 == 0 else NAMES[::-1]:
                    seconds[name].append(step_seconds(models[name], tokens, rows, options.steps))
            ratios = [plain / fast for fast, plain in zip(seconds["fast"], seconds["plain"], strict=True)]
            fast, plain = (1000 * statistics.median(seconds[name]) for name in NAMES)
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"{backbone:<16} {tokens:>6} {rows:>4} {compute:>9} {fast:>8.1f} {plain:>8.1f}  {spread}",
                flush=True,
            )


if __name__ == "__main__":
    main()
