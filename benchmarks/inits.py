"""What pretraining gives a frozen backbone: pretrained, statistics only and random, output only, on several tasks.

    python benchmarks/inits.py --data DIR                          # mini on digits, mnist and bit-memory
    python benchmarks/inits.py --backbone gpt2 --seeds 3 --tasks digits

Every readout is the best on validation among all layers x `last`, `mean` and `segments8` x 25 penalties; the test
accuracy in percent is that of the chosen one, with mean and deviation over seeds of the input layer (and of drawn
weights). Beside it the same sweep on the raw input.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from reservoir_pipelines import extract, fit

TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"limit": 3000},
    "bit-memory": {"parameters": {"train_rows": 1000}},
}
"""What is run of each task: how many rows of each split at most."""

INITS = ("pretrained", "statistics", "random")


def accuracies(task: str, init: str, seed: int, asked: argparse.Namespace, cache: Path) -> tuple[float, float]:
    """Return the test accuracy in percent of the chosen readout and of the raw input."""
    # A label of every token has no use for means over tokens.
    pool = "last" if task.startswith("bit-") else asked.pool
    more = {"backbone": asked.backbone, "init": init, "seed": seed, "pool": pool, "data": asked.data, "cache": cache}
    found = fit(extract(task, **more, **TASKS.get(task, {})))
    return 100 * (found.best.test_score or 0.0), 100 * ((found.raw and found.raw.test_score) or 0.0)


def main() -> None:
    """Print one row per task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--pool", default="last,mean,segments8")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    print("| " + " | ".join(("task", *INITS, "raw input")) + " |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as cache:
        for task in asked.tasks.split(","):
            cells, raw = [], 0.0
            for init in INITS:
                values, raws = zip(
                    *(accuracies(task, init, seed, asked, Path(cache)) for seed in range(asked.seeds)), strict=True
                )
                spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.1f}{spread}")
                raw = raws[0]
            print("| " + " | ".join((task, *cells, f"{raw:.1f}")) + " |", flush=True)


if __name__ == "__main__":
    main()
