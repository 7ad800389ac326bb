"""Long work: memory and open files stay what they were."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import count as counted
from pathlib import Path

import numpy as np
from reservoir_cache import Entry, FeatureStore, Layout, Spec, write_block, write_targets
from reservoir_pipelines import fit

from tests.faults.rounds import Count, ended, forked

GROWTH = 24 * 2**20
"""Bytes that memory may grow by after the first fifth of the work: what allocators keep."""


def soak(folder: Path, entry: Path, blocks: int, readouts: int) -> Iterator[Count]:
    """Write so many blocks, and fit so many readouts of an entry, each in one process."""
    log = folder / "log"
    for name, number, work in (
        ("blocks", blocks, lambda: _flat(_blocks(folder / "soak", blocks), blocks)),
        ("readouts", readouts, lambda: _flat(_readouts(entry, folder / "fitted"), readouts)),
    ):
        count = Count(f"soak of {name}")
        done = ended(forked(work, log), log, 0)
        count.tried, said = number, done.said.strip().splitlines()
        print(f"soak of {name}: {said[-1] if said else ''}")
        if not done.whole:
            count.lost.append(done.said[-300:])
        yield count


def _flat(done: Iterator[int], number: int) -> int:
    """Work until so much is done; return 1 if memory or open files have grown since a fifth of it was."""
    before: tuple[int, int] | None = None
    for each in done:
        if before is None and each >= number / 5:
            before = _held()
        if each >= number:
            break
    after, first = _held(), before or (0, 0)
    print(f"{(after[0] - first[0]) / 2**20:+.1f} MB, {after[1] - first[1]:+d} open files")
    return int(after[0] - first[0] > GROWTH or after[1] > first[1])


def _held() -> tuple[int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize(), len(list(Path("/proc/self/fd").iterdir()))


def _blocks(root: Path, number: int) -> Iterator[int]:
    rows = 4 * number
    spec = Spec(
        task={"name": "soak"},
        data={"digest": "d", "rows": {"train": rows}},
        backbone={"family": "gpt2", "digest": "b"},
        init={"kind": "random", "seed": 0},
        input={"kind": "orthogonal", "seed": 0, "gain": 1, "patch": 1, "stride": 1},
        padding="mask",
        compute="float32",
        store="float16",
    )
    entry = Entry.create(root, "soak", spec, Layout(batch_rows=4, block_rows=4), {})
    index = np.arange(rows)
    write_targets(entry, "train", {"y": index.reshape(-1, 1, 1), "lengths": index, "index": index})
    for block in range(number):
        with entry.claim("train", block):
            write_block(entry, "train", block, {"final/mean": np.full((4, 1, 16), block % 99, np.float32)})
        yield block + 1


def _readouts(entry: Path, out: Path) -> Iterator[int]:
    tried = 0
    for _ in counted():
        tried += len(fit(FeatureStore(entry), out=out, device="cpu").table)
        yield tried
