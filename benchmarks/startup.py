"""Seconds until a command answers: usage mistakes, help, cached features, and predictions for five rows.

    python benchmarks/startup.py [--repeats 5]

Each command runs in its own process. The table shows the shortest of the repeats, because the machine is shared, and
which heavy modules were imported. The bare imports at the end are the lower bound for everything that runs a model.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EXTRACT = ["extract", "digits", "--limit", "100", "--layers", "final"]
COMMAND = """
import sys
from reservoir_pipelines.cli import run
run(sys.argv[1:])
print(*[name for name in ("torch", "transformers") if name in sys.modules], file=sys.stderr)
"""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RESERVOIR_CACHE"] = folder
        five = Path(folder) / "five.npz"
        np.savez(five, x=np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.float32))
        for command in (
            EXTRACT,
            ["fit", "digits", "--columns", "final/mean", "--out", f"{folder}/readout"],
        ):
            subprocess.run([sys.executable, "-c", COMMAND, *command], check=True, capture_output=True)
        print("| command | wall time | processor time | imports |\n|---|--:|--:|---|", flush=True)
        for arguments in (
            ["--help"],
            ["--version"],
            ["extract", "digits", "--depht", "3"],
            ["extract", "mnnist"],
            ["extract", "digits", "--backbone", "gtp2"],
            ["extract", "missing.csv"],
            EXTRACT,
            ["predict", f"{folder}/readout", str(five)],
        ):
            shown = " ".join(Path(word).name for word in arguments)
            show(f"reservoir {shown}", [sys.executable, "-c", COMMAND, *arguments], repeats)
        for code in ("import torch", "from transformers import GPT2Model"):
            show(code, [sys.executable, "-c", code], repeats)


def show(title: str, command: list[str], repeats: int) -> None:
    """Measure the wall time and the processor time of a command; other programs disturb the latter less."""
    clock, processor, errors = [], [], ""
    for _ in range(repeats):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        errors = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        clock.append(time.perf_counter() - started)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    imported = errors.splitlines()[-1] if errors.splitlines() else ""
    print(f"| `{title}` | {min(clock):.2f} s | {min(processor):.2f} s | {imported} |", flush=True)


if __name__ == "__main__":
    main()
