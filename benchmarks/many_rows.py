"""What the default costs and reaches as the rows of a data set become many: processor seconds and test accuracy.

    OMP_NUM_THREADS=1 python benchmarks/many_rows.py 10000 100000 1000000

Each row is a waveform of 32 values: 2 to 4 periods of one of five shapes, with a random phase, and noise. Only the
shape tells the class, so that a linear readout of the values stays at chance. The seconds are those of whole commands,
each on an empty cache of prepared data and features.

Goals: a million rows reach at least the accuracy of ten thousand minus one point, their extraction takes at most 80
processor seconds, and `plan` predicts it within a factor of 1.5. `predict` takes at most 1.2 times as long.
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

VALUES, NOISE = 32, 0.7


def write_waveforms(path: Path, rows: int, seed: int = 0) -> Path:
    """Write rows with labels 0 to 4: sine, square, triangle, and two sawtooth waves, all of variance 1."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 5, rows)
    periods, phase = draw.uniform(2, 4, (rows, 1)), draw.uniform(0, 1, (rows, 1))
    t = (np.arange(VALUES) / VALUES * periods + phase) % 1
    sine, square = np.sqrt(2) * np.sin(2 * np.pi * t), np.sign(t - 0.5)
    triangle, saw = np.sqrt(3) * (4 * np.abs(t - 0.5) - 1), np.sqrt(3) * (2 * t - 1)
    clean = np.stack([sine, square, triangle, saw, -saw])[y, np.arange(rows)]
    x = clean + NOISE * draw.standard_normal((rows, VALUES))
    np.savez(path, x=x[:, :, None].astype(np.float32), y=y)
    return path


def run(*command: str) -> tuple[dict[str, Any], float, int]:
    """Run a command of `reservoir`; return its JSON, its processor seconds, and its memory in bytes."""
    child = subprocess.Popen(
        [sys.executable, "-m", "reservoir_pipelines", *command], stdout=subprocess.PIPE
    )
    assert child.stdout
    printed = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return json.loads(printed or "null"), used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    print(
        "| rows | columns | planned | extract | fit | predict | memory of extract | of predict | test accuracy |"
    )
    print("|--:|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            data, cache = write_waveforms(Path(folder) / "waves.npz", rows), ("--cache", folder, "--json")
            run("prepare", str(data), *cache)
            plan, _, _ = run("plan", str(data), *cache)
            entry, extracting, memory = run("extract", str(data), *cache)
            fitted, fitting, _ = run("fit", str(data), *cache)
            out = ("--out", str(Path(folder) / "labels.csv"), "--json")
            _, predicting, in_predict = run("predict", str(Path(fitted["readout"]).parent), str(data), *out)
        cells = [f"{rows:,}", ", ".join(entry["columns"]), f"{plan['processor_seconds']:.0f} s"]
        cells += [f"{seconds:.0f} s" for seconds in (extracting, fitting, predicting)]
        cells += [f"{size / 1e6:,.0f} MB" for size in (memory, in_predict)]
        print(f"| {' | '.join(cells)} | {fitted['best']['test_score']:.1%} |", flush=True)


if __name__ == "__main__":
    main()
