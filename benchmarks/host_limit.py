"""Rows per second of everything in `extract` except the model: reading, windows, batches, encoding and writing.

    python benchmarks/host_limit.py [--rows 98304] [--patch 4] [--dir DIR]

The model is a fake that returns at once: 16 columns of width 256, kept as float16. Blocks and batches have the sizes
that a GPU gets, so the table shows the speed above which a GPU would wait for the host. The goal is 50,000 rows per
second on two cores, or the speed of the disk, whichever is lower. The disk's speed is measured with plain files of the
same sizes, which are written, synced and renamed right after each extraction. On a busy machine wall time is
unreliable. The third column is computed from the processor time of a row: it is the speed of two idle cores if the
threads share the work evenly.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from reservoir_pipelines import prepare
from reservoir_pipelines.extraction.extractor import load_extractor
from reservoir_pipelines.output import silenced

from reservoir.fpt import FPT
from reservoir.options import ExtractOptions
from reservoir.plan import precision

COLUMNS, WIDTH, TOKENS = 16, 256, 64
GOAL = 50_000  # rows per second
TURNS = 3


def at_once(width: int = WIDTH, most: int = 2**16):
    """Return a stand-in for `FPT.features` that computes nothing."""
    values = torch.randn(most, 1, width, generator=torch.Generator().manual_seed(0))

    def features(
        _: FPT, x: torch.Tensor, lengths: torch.Tensor, columns: list[str]
    ) -> dict[str, torch.Tensor]:
        return {column: values[number : number + len(x)] for number, column in enumerate(columns)}

    return features


def extracted(root: Path, file: Path, patch_size: int) -> tuple[float, float, list[int]]:
    """Extract all rows; return the wall time, the processor time, and the sizes of the shards."""
    backbone = f"gpt2:n_layer={COLUMNS},n_embd={WIDTH},n_head=4"
    layers = ",".join(f"block{number:02d}" for number in range(1, COLUMNS + 1))
    options = ExtractOptions(
        backbone=backbone,
        init="random",
        input="orthogonal",
        patch=patch_size,
        layers=layers,
        pool="mean",
        store="float16",
        compute="float32",
        device="cpu",
        cache=root,
    )
    run = load_extractor(options, prepare(str(file), cache=root.parent), root)
    entry, _ = run.open({})
    clock, processor = time.perf_counter(), time.process_time()
    run.compute(entry, lambda rows, written: None)
    seconds = time.perf_counter() - clock, time.process_time() - processor
    return *seconds, [shard.stat().st_size for shard in sorted(entry.path.rglob("0*.h5"))]


def written(root: Path, sizes: list[int]) -> float:
    """Return the seconds in which plain files of these sizes are written and synced."""
    content = np.random.default_rng(0).bytes(max(sizes))
    root.mkdir()
    started = time.perf_counter()
    for number, size in enumerate(sizes):
        file = root / str(number)
        with file.open("xb") as disk:
            disk.write(memoryview(content)[:size])
            disk.flush()
            os.fsync(disk.fileno())
        file.replace(root / f"{number}.bin")
    return time.perf_counter() - started


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=98_304)
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--dir", type=Path)
    arguments = parser.parse_args()
    # the fake device's own work, which a GPU would do, must not occupy the second core
    torch.set_num_threads(1)
    speeds = []
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder, ExitStack() as stack, silenced():
        stack.enter_context(patch.object(FPT, "features", at_once()))
        stack.enter_context(patch.dict(precision.BATCH_TOKENS, cpu=precision.BATCH_TOKENS["cuda"]))
        stack.enter_context(patch.dict(precision.BLOCK_ROWS, cpu=precision.BLOCK_ROWS["cuda"]))
        draw, rows, file = np.random.default_rng(0), arguments.rows, Path(folder) / "random.npz"
        split = np.array(["valid", "test", *["train"] * (rows - 2)])
        x = draw.normal(size=(rows, TOKENS, 1)).astype(np.float32)
        np.savez(file, x=x, y=np.arange(rows) % 2, split=split)
        extracted(Path(folder) / "warm", file, arguments.patch)
        for turn in range(TURNS):
            clock, processor, sizes = extracted(Path(folder) / f"cache{turn}", file, arguments.patch)
            disk = written(Path(folder) / f"plain{turn}", sizes)
            speeds.append((rows / clock, rows / disk, 2 * rows / processor))
    print(
        f"| turn | rows/s of `extract` | rows/s of the disk alone | rows/s of two idle cores |\n|{'--:|' * 4}"
    )
    for turn, speed in enumerate(speeds, 1):
        print(f"| {turn} | {' | '.join(f'{value:,.0f}' for value in speed)} |")


if __name__ == "__main__":
    main()
