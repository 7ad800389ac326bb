"""Rows per second of what the host does: `prepare`, and everything in `extract` except the model.

    python benchmarks/host.py extract [--rows 98304] [--patch 4] [--dir DIR]
    python benchmarks/host.py prepare --data DIR [--rows 20000] [--workers 2]

*Extract*: reading, windows, batches, encoding and writing. The model is a fake that returns at once: 16 columns of
width 256, kept as float16. Blocks and batches have the sizes that a GPU gets, so the table shows the speed above which
a GPU would wait for the host. The goal is 50,000 rows per second on two cores, or the speed of the disk, whichever is
lower. The disk's speed is measured with plain files of the same sizes, which are written, synced and renamed right
after each extraction. On a busy machine wall time is unreliable. The third column is computed from the processor time
of a row: it is the speed of two idle cores if the threads share the work evenly.

*Prepare*: compared with a plain Python loop, and the number of rows above which processes pay off. For cifar10-lra (the
binary batches under DIR) and listops (expressions of 500 to 2,000 symbols), a table compares:

* a plain loop, one row after the other, in plain Python with NumPy for the pixels (on a sample, ``--sample``);
* `prepare` in this process, and with ``--workers`` processes, including writing files and reading them for the digest.

Then listops is prepared with more and more rows, in this process and with processes. The crossover is the first number
of rows at which processes are faster; ``reservoir_pipelines.workers.PAYS_OFF`` is the time of that work in seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from reservoir_pipelines import prepare
from reservoir_pipelines import workers as processes
from reservoir_pipelines.extraction.extractor import load_extractor
from reservoir_pipelines.output import silenced

from reservoir.fpt import FPT
from reservoir.options import ExtractOptions
from reservoir.plan import precision

COLUMNS, WIDTH, TOKENS = 16, 256, 64
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
    wall_and_processor = time.perf_counter() - clock, time.process_time() - processor
    return *wall_and_processor, [shard.stat().st_size for shard in sorted(entry.path.rglob("0*.h5"))]


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


def measure_extract(arguments: argparse.Namespace) -> None:
    """Print a table of the speed of `extract` without a model."""
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


def plain_cifar(data: Path, rows: int) -> None:
    """Convert the rows of a batch to grey one by one."""
    batch = (data / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes()
    images, labels = [], []
    for row in range(rows):
        record = batch[row * 3073 : (row + 1) * 3073]
        red, green, blue = np.frombuffer(record, np.uint8, offset=1).reshape(3, 1024).astype(np.float64)
        images.append(np.rint(0.299 * red + 0.587 * green + 0.114 * blue).astype(np.uint8)[:, None])
        labels.append(record[0])


def plain_listops(data: Path, rows: int) -> None:
    """Generate, write and evaluate expressions one by one, by recursion."""

    def grow(level: int) -> tuple[list[str], int]:
        if level == 10 or random.random() > 0.25:
            digit = random.randrange(10)
            return [str(digit)], digit
        words, values = [random.choice(("[MIN", "[MAX", "[MED", "[SM"))], []
        for _ in range(random.randint(2, 10)):
            inner, value = grow(level + 1)
            words += inner
            values.append(value)
        work = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(median(v)), "[SM": lambda v: sum(v) % 10}
        return [*words, "]"], work[words[0]](values)

    number = {w: i + 1 for i, w in enumerate((*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"))}
    count = 0
    while count < rows:
        words, _ = grow(1)
        if 500 <= len(words) <= 2000:
            np.array([number[word] for word in words], np.uint8)
            count += 1


def seconds(work: Callable[[], Any]) -> float:
    """Return the time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def prepared(task: str, data: Path, workers: int, **parameters: Any) -> tuple[int, float]:
    """Return the rows and the seconds of one `prepare` into an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        data_set = prepare(task, data=data, cache=Path(cache), workers=workers, parameters=parameters)
        return sum(data_set.rows.values()), time.perf_counter() - started


def measure_prepare(arguments: argparse.Namespace) -> None:
    """Print a table of the speed of `prepare`, and when processes pay off."""
    # The processes themselves are measured, so they are used even for little work.
    processes.PAYS_OFF = 0
    prepared("digits", arguments.data, 0)
    length = {"min_length": 500, "max_length": 2000, "valid_rows": 1, "test_rows": 1, "source": "generated"}
    tasks: dict[str, tuple[Callable[[Path, int], None], dict[str, Any]]] = {
        "cifar10-lra": (plain_cifar, {}),
        "listops": (plain_listops, {**length, "train_rows": arguments.rows}),
    }
    print(f"{'task':12} {'how':14} {'rows':>8} {'seconds':>8} {'rows/s':>9}")
    for task, (plain, parameters) in tasks.items():
        results = {
            "plain loop": (
                arguments.sample,
                seconds(lambda plain=plain: plain(arguments.data, arguments.sample)),
            )
        }
        for workers in (0, arguments.workers):
            results[f"{workers} workers" if workers else "this process"] = prepared(
                task, arguments.data, workers, **parameters
            )
        for how, (rows, taken) in results.items():
            print(f"{task:12} {how:14} {rows:8} {taken:8.2f} {rows / taken:9.0f}")
    print(f"\nlistops: seconds in this process and with {arguments.workers} workers")
    for rows in (4096, 8192, 16_384, 32_768, 65_536):
        here, there = (
            prepared("listops", arguments.data, w, **length, train_rows=rows)[1]
            for w in (0, arguments.workers)
        )
        print(f"{rows:8} rows {here:8.2f} {there:8.2f}")
        if there < here:
            print(f"processes pay off from {rows} rows, {here:.1f} s of work")
            break
    else:
        print("processes do not pay off on this machine")


def main() -> None:
    """Run the measurement that the first argument names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements = parser.add_subparsers(required=True)
    of_extract = measurements.add_parser("extract")
    of_extract.set_defaults(measure=measure_extract)
    of_extract.add_argument("--rows", type=int, default=98_304)
    of_extract.add_argument("--patch", type=int, default=4)
    of_extract.add_argument("--dir", type=Path)
    of_prepare = measurements.add_parser("prepare")
    of_prepare.set_defaults(measure=measure_prepare)
    of_prepare.add_argument("--data", type=Path, required=True)
    of_prepare.add_argument("--rows", type=int, default=20_000, help="expressions of listops")
    of_prepare.add_argument("--sample", type=int, default=500, help="rows of the plain loops")
    of_prepare.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.measure(arguments)


if __name__ == "__main__":
    main()
