"""Rows per second of `prepare` compared with a plain Python loop, and the number of rows above which processes pay off.

    python benchmarks/prepare.py --data DIR [--rows 20000] [--workers 2]

For cifar10-lra (the binary batches under DIR) and listops (expressions of 500 to 2,000 symbols), a table compares:

* a plain loop, one row after the other, in plain Python with NumPy for the pixels (on a sample, ``--sample``);
* `prepare` in this process, and with ``--workers`` processes, including writing files and reading them for the digest.

Then listops is prepared with more and more rows, in this process and with processes. The crossover is the first number
of rows at which processes are faster; ``reservoir_pipelines.workers.PAYS_OFF`` is the time of that work in seconds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from reservoir_pipelines import prepare
from reservoir_pipelines import workers as processes


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


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--rows", type=int, default=20_000, help="expressions of listops")
    options.add_argument("--sample", type=int, default=500, help="rows of the plain loops")
    options.add_argument("--workers", type=int, default=2)
    arguments = options.parse_args()
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


if __name__ == "__main__":
    main()
