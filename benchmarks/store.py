"""The cost of the store: writing and reading features, compared with plain files, and an entry of many blocks.

    python benchmarks/store.py [--rows 10000000] [--columns 10] [--dir DIR]

The first table has three shapes of float16 features, written with fsync and read as float32, in seconds of processor
time (user and system, the best of three).
``h5py`` is one chunked dataset per column, ``memmap`` one plain file of `numpy.memmap`; both convert from and to
float32 as the store does. The store also computes offsets and checksums; its two read times are those of the first read
in a process, which compares the checksums, and of a later one. The last line is the time to read 10,000 random rows of
the last shape.

For the second table an entry with ``--rows`` rows in blocks of 256 is simulated. Every shard is listed and exists
with its size, but holds no features, because no step reads them. Then these steps are timed: `cache list`, opening the
split for reading, finding what is missing, the sizes of all files, and claiming, writing, syncing and listing one more
block, at the end of the entry and in an empty one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch  # noqa: F401, imported as in extract, because the store then rounds with torch
from reservoir_cache import (
    BackboneSpec,
    DataSpec,
    Entry,
    FeatureStore,
    InitSpec,
    InputSpec,
    Layout,
    ShardWriter,
    Spec,
    list_entries,
    publish_json,
    read_json,
    rows_per_block,
    summarize,
    sync,
    verify,
    write_targets,
)

SHAPES = ((20_000, 16, 256), (100_000, 1, 64), (1_000_000, 1, 16))
"""Rows, columns and width of the features that are written and read."""

UNIT, PIECE = 256, 8192  # rows that share an offset, and rows that a peer writes at once
GATHERED = 10_000
REPEATS = 3
PAGE_BLOCKS = 128  # see FORMAT.md
FREE = 20  # blocks that are left out, to be written and timed


def new_entry(root: Path, rows: int, layout: Layout, digest: str = "d") -> Entry:
    """Create an entry with its labels."""
    spec = Spec(
        task={"name": "store"},
        data=DataSpec(digest=digest, rows={"train": rows}),
        backbone=BackboneSpec(family="none", digest="none"),
        init=InitSpec(kind="random", seed=0),
        input=InputSpec(kind="orthogonal", seed=0, gain=1.0, patch=1, stride=1),
        padding="none",
        compute="float32",
        store="float16",
    )
    entry = Entry.create(root, "benchmark", spec, layout, {})
    index = np.arange(rows)
    write_targets(
        entry, "train", {"y": np.zeros((rows, 1, 1)), "lengths": np.ones(rows, np.int32), "index": index}
    )
    return entry


def cost(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the shortest processor time that some work took."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def compare(root: Path, rows: int, columns: int, width: int) -> None:
    """Print a line of the first table; for the last shape, also time reading random rows."""
    x = np.random.default_rng(0).standard_normal((rows, 1, width), dtype=np.float32)
    names = [f"block{number:02d}/mean" for number in range(1, columns + 1)]
    plain, mapped, shape = root / "plain.h5", root / "mapped", (columns, rows, 1, width)
    layout = Layout(
        batch_rows=32, block_rows=rows_per_block(2 * columns * width, UNIT, rows // 8), offset_rows=UNIT
    )

    entries, stores = (
        [new_entry(root / str(number), rows, layout) for number in range(REPEATS)],
        list[FeatureStore](),
    )

    def write() -> None:
        entry = entries.pop()
        with ShardWriter(entry) as writer:
            for block, (low, high) in enumerate(entry.blocks("train")):
                writer.put("train", block, dict.fromkeys(writer.claim("train", block, names), x[low:high]))
        stores.append(FeatureStore(entry))

    def read() -> None:
        for name in names:
            stores[-1]["train"].read(name)

    def write_h5py() -> None:
        with h5py.File(plain, "w") as file:
            for name in names:
                data = file.create_dataset(name, x.shape, np.float16, chunks=(min(rows, PIECE), 1, width))
                for low in range(0, rows, PIECE):
                    data[low : low + PIECE] = x[low : low + PIECE]
        sync(plain)

    def read_h5py() -> None:
        with h5py.File(plain) as file:
            for name in names:
                file[name][()].astype(np.float32)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]

    def write_memmap() -> None:
        data = np.memmap(mapped, np.float16, "w+", shape=shape)
        for number in range(columns):
            data[number] = x
        data.flush()

    def read_memmap() -> None:
        for column in np.memmap(mapped, np.float16, "r", shape=shape):
            column.astype(np.float32)

    written = [cost(write), cost(write_h5py), cost(write_memmap)]
    seconds_by_way = [cost(read, 1), cost(read), cost(read_h5py), cost(read_memmap)]
    cells = (
        " / ".join(f"{seconds:.3f}" for seconds in written),
        " / ".join(f"{seconds:.3f}" for seconds in seconds_by_way),
    )
    print(f"{rows:9,} x {columns:2} x {width:3} | {cells[0]:>23} | {cells[1]:>31} |", end=" ")
    print(
        f"{written[0] / written[1]:.2f} x h5py, {seconds_by_way[1] / seconds_by_way[3]:.2f} x memmap",
        flush=True,
    )
    if rows == SHAPES[-1][0]:
        chosen, column = np.random.default_rng(0).integers(0, rows, GATHERED), stores[-1]["train"][names[0]]
        print(f"{GATHERED:,} random rows of these: {cost(lambda: column[chosen]):.3f} s")
    for file in (plain, mapped):
        file.unlink()


def make(root: Path, rows: int, names: list[str], *, simulated: bool) -> Entry:
    """Create an entry, with all its shards except the last few."""
    entry = new_entry(root, rows, Layout(batch_rows=32), f"{rows} {simulated}")
    if not simulated:
        return entry
    folder, count = entry.path / "train", entry.block_count("train") - FREE
    lines = [
        {
            "file": f"{b:05d}-0.h5",
            "block": b,
            "bytes": 8,
            "crc32": f"{b:08x}",
            "columns": dict.fromkeys(names, f"{b:08x}"),
        }
        for b in range(count)
    ]
    for line in lines:
        (folder / line["file"]).write_bytes(bytes(8))
    first = read_json(folder / "manifest.json") | {
        "columns": {name: {"tokens": 1, "width": 1} for name in names}
    }
    for page in range(-(-count // PAGE_BLOCKS)):
        listed = lines[page * PAGE_BLOCKS : (page + 1) * PAGE_BLOCKS]
        more = {"targets": None} if page else {}
        publish_json(
            folder / (f"manifest-{page}.json" if page else "manifest.json"),
            first | more | {"shards": listed},
        )
    return entry


def timed(title: str, work: Callable[[], Any]) -> Any:
    """Return the result of ``work`` and print how long it took."""
    started = time.perf_counter()
    result = work()
    print(f"{title:52} {time.perf_counter() - started:8.3f} s", flush=True)
    return result


def add(entry: Entry, names: list[str], blocks: range) -> None:
    """Write blocks of random features as extract does."""
    with ShardWriter(entry) as writer:
        for block in blocks:
            low, high = entry.layout.block(entry.spec.rows["train"], block)
            values = np.random.default_rng(block).standard_normal((high - low, 1, 1)).astype(np.float32)
            writer.put("train", block, dict.fromkeys(writer.claim("train", block, names), values))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    names = [f"block{number:02d}/mean" for number in range(1, options.columns + 1)]
    print(
        "rows x columns x width | write: store/h5py/memmap | read: first/later/h5py/memmap   | store, later"
    )
    for shape in SHAPES:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            compare(Path(folder), *shape)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        root = Path(folder)
        entry = timed("(simulating the entry)", lambda: make(root, options.rows, names, simulated=True))
        blocks = entry.block_count("train")
        print(f"{options.rows:,} rows, {options.columns} columns, {blocks:,} blocks")
        timed("list: size, columns, progress", lambda: [summarize(stored) for stored in list_entries(root)])
        timed("open: manifest and the size of every file", lambda: FeatureStore(entry)["train"].columns)
        timed("what is missing", lambda: entry.missing("train", names))
        timed("sizes of all files, as a resumed extract checks them", lambda: verify(entry, contents=False))
        empty = make(root, 10_000, names, simulated=False)
        timed("20 blocks of an empty entry", lambda: add(empty, names, range(20)))
        timed("20 blocks at the end of this one", lambda: add(entry, names, range(blocks - FREE, blocks)))


if __name__ == "__main__":
    main()
