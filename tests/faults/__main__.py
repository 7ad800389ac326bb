"""Inject faults into every stage, and print how many were tried and how many were lost, by kind of fault.

    make faults                                   # everything, into benchmarks/FAULTS.md
    python -m tests.faults --scale 0.01      # a hundredth of it

A fault counts as lost if a result differs without a message, a traceback appears, the next command does not repair
the damage, or a process exceeds its limit of memory or time. The exit code is 1 if any fault was lost.
"""

from __future__ import annotations

import os

from reservoir.plan.precision import BLOCK_ROWS

# Processes are forked after the imports; other threads would not survive that.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.faults import damage, kills, power_loss
from tests.faults.power_stages import CACHE, EXTRACT, PIPELINES, fitted, run_train
from tests.faults.rounds import Count

SIZES = {"kills": 28, "rounds": 25, "failures": 4, "bits": 1000, "inputs": 100_000, "crashes": 64}
"""How often each part is tried."""

DISTURBED = ("prepare", "fit", "train", "pretrain", "cache remove", "cache repair")
"""The stages that are killed and whose disk fails, besides extract."""

PARTS = ("power", "bits", "inputs", "kills", "together", "machine")


def campaign(folder: Path, size: dict[str, int], parts: Collection[str]) -> Iterator[Count]:
    if "bits" in parts:
        root = folder / "bits"
        root.mkdir()
        fitted(root)
        run_train(root, 2)
        yield from damage.flip_some(root, size["bits"], 9)
    if "power" in parts:
        yield from power_loss.replay([*CACHE, *PIPELINES], folder / "power", size["crashes"])
    if "inputs" in parts:
        yield from damage.fuzz(damage.readers(folder), size["inputs"], 11)
    if not {"kills", "together", "machine"} & {*parts}:
        return
    BLOCK_ROWS["cpu"] = 16  # many blocks give many moments at which a fault can occur
    every = (EXTRACT, *(stage for stage in (*CACHE, *PIPELINES) if stage.name.split(":")[0] in DISTURBED))
    stages = [kills.Disturbed(stage, folder / f"stage{number}") for number, stage in enumerate(every)]
    for seed, stage in enumerate(stages):
        if "kills" in parts:
            yield from kills.kill(stage, size["kills"], seed)
        if "together" in parts and stage.name in ("prepare", "extract", "fit: a readout"):
            yield kills.together(stage, size["rounds"])
        if "machine" in parts and not stage.name.startswith(("cache", "fit: moments")):
            for error in ("ENOSPC", "EIO"):
                yield kills.failing(stage, error, size["failures"], seed)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="share of the trials of each part")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="where the table is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = {name: max(2, round(options.scale * number)) for name, number in SIZES.items()}
    size["crashes"] = max(8, size["crashes"])
    started, counts = time.perf_counter(), []
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        for count in campaign(folder, size, options.parts.split(",")):
            counts.append(count)
            seconds = time.perf_counter() - started
            print(f"{seconds:7.1f} s  {count.fault}: {count.tried:,} tried, {len(count.lost)} lost", flush=True)
            if options.out:
                options.out.write_text(_table(counts, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(any(count.lost for count in counts))


def _table(counts: list[Count], seconds: float) -> str:
    hardware = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    lines = [
        "# Faults",
        "",
        f"The table comes from `python -m tests.faults {' '.join(sys.argv[1:])}`, run on {datetime.now(UTC):%Y-%m-%d} "
        f"in {seconds / 60:.0f} minutes on {hardware}. A fault counts as lost if a result differs without a message, "
        "a traceback appears, or the next command does not repair the damage.",
        "",
        "| fault | tried | survived | lost |",
        "|---|---:|---:|---:|",
        *(f"| {c.fault} | {c.tried:,} | {c.tried - len(c.lost):,} | {len(c.lost)} |" for c in counts),
    ]
    tried, lost = sum(c.tried for c in counts), sum(len(c.lost) for c in counts)
    return "\n".join([*lines, f"| **all** | **{tried:,}** | **{tried - lost:,}** | **{lost}** |", ""])


if __name__ == "__main__":
    sys.exit(main())
