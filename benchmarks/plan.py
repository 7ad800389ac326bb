"""The estimate of ``reservoir plan`` compared with the time that the extraction of other rows takes.

    python benchmarks/plan.py               # on an idle machine
    python benchmarks/plan.py --processor   # while other work runs: processor seconds of one thread

For each case a sample of rows is written, ``plan --rows`` estimates the time for the number of rows of a second file,
and that file is then extracted. Each is a separate command. The goal is a ratio within 20% of 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CASES = (  # backbone, tokens, rows
    ("mini", 64, 2000),
    ("gpt2:n_layer=2", 256, 160),
    ("gpt2:n_layer=6", 64, 400),
)
SAMPLE = 100
RUN = "import sys; from reservoir_pipelines.cli import run; sys.exit(run(sys.argv[1:]))"
PROCESSOR = "import time; time.perf_counter = time.monotonic = time.process_time; "


def write_rows(path: Path, rows: int, tokens: int, seed: int) -> str:
    """Write random sequences with labels, and return the path."""
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.standard_normal((rows, tokens, 8), np.float32), y=rng.integers(0, 4, rows))
    return str(path)


def ask(command: list[str], folder: Path, *, processor: bool) -> dict[str, Any]:
    """Run a command on an empty cache and return what it prints as JSON."""
    code = [sys.executable, "-c", (PROCESSOR if processor else "") + RUN]
    environment = (
        os.environ | {"RESERVOIR_CACHE": str(folder)} | ({"OMP_NUM_THREADS": "1"} if processor else {})
    )
    process = subprocess.run(
        [*code, *command, "--json"], check=True, stdout=subprocess.PIPE, env=environment
    )
    return json.loads(process.stdout)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processor", action="store_true", help="measure processor seconds")
    parser.add_argument("--case", type=int, action="append", help="only this case; may be repeated")
    options = parser.parse_args()
    cases = []
    for number in options.case or range(len(CASES)):
        backbone, tokens, rows = CASES[number]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            settings = [
                "--backbone",
                backbone,
                "--init",
                "random",
                "--layers",
                "all",
                "--pool",
                "last,mean",
            ]
            settings += ["--device", "cpu"]
            sample, whole = (
                write_rows(folder / f"{n}.npz", count, tokens, n) for n, count in enumerate((SAMPLE, rows))
            )
            said = ask(
                ["plan", sample, "--rows", str(rows), *settings], folder, processor=options.processor
            )
            took = ask(["extract", whole, *settings], folder, processor=options.processor)
        case = {"backbone": backbone, "tokens": tokens, "rows": rows, "compute": said["compute"]}
        times = {"planned": round(said["seconds"], 2), "taken": round(took["seconds"], 2)}
        sizes = {"bytes_planned": said["bytes"], "bytes_taken": took["bytes"]}
        cases.append(case | times | {"ratio": round(said["seconds"] / took["seconds"], 3)} | sizes)
        print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"load": os.getloadavg()[0], "cases": cases}, indent=2))


if __name__ == "__main__":
    main()
