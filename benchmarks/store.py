"""What the store costs beside the forward pass: listing, opening and adding to an entry of many blocks.

    python benchmarks/store.py [--rows 10000000] [--columns 10] [--dir DIR]

An entry of so many rows in blocks of 256 is simulated: every shard is listed and there with its size, of width 1, but
holds no features, as nothing here reads any. Then, each in seconds: `cache list`, opening the split for reading, what
is missing, the sizes of all files, and what one block more costs, claimed, written, synced and listed, at its end and
in an empty entry.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    Entry,
    FeatureStore,
    Layout,
    ShardWriter,
    Spec,
    list_entries,
    publish_json,
    read_json,
    summarize,
    verify,
    write_targets,
)

PAGE_BLOCKS = 128  # see FORMAT.md
FREE = 20  # blocks that are left out, to be written


def make(root: Path, rows: int, names: list[str], *, simulated: bool) -> Entry:
    """Create an entry, with all its shards but the last few."""
    spec = Spec(
        task={"name": "store"},
        data={"digest": f"{rows} {simulated}", "rows": {"train": rows}},
        backbone={"family": "none", "digest": "none"},
        init={"kind": "random", "seed": 0},
        input={"kind": "orthogonal", "seed": 0, "gain": 1.0, "patch": 1, "stride": 1},
        padding="none",
        compute="float32",
        store="float16",
    )
    entry = Entry.create(root, "benchmark", spec, Layout(batch_rows=32), {})
    write_targets(
        entry, "train", {"y": np.zeros((rows, 1, 1)), "lengths": np.ones(rows, np.int32), "index": np.arange(rows)}
    )
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
    first = read_json(folder / "manifest.json") | {"columns": {name: {"tokens": 1, "width": 1} for name in names}}
    for page in range(-(-count // PAGE_BLOCKS)):
        listed = lines[page * PAGE_BLOCKS : (page + 1) * PAGE_BLOCKS]
        more = {"targets": None} if page else {}
        publish_json(folder / (f"manifest-{page}.json" if page else "manifest.json"), first | more | {"shards": listed})
    return entry


def timed(title: str, work: Callable[[], Any]) -> Any:
    """Run something and tell how long it took."""
    started = time.perf_counter()
    result = work()
    print(f"{title:52} {time.perf_counter() - started:8.3f} s", flush=True)
    return result


def add(entry: Entry, names: list[str], blocks: range) -> None:
    """Write blocks as extract does."""
    with ShardWriter(entry) as writer:
        for block in blocks:
            low, high = entry.layout.block(entry.spec.rows["train"], block)
            values = np.random.default_rng(block).standard_normal((high - low, 1, 1)).astype(np.float32)
            with entry.claim("train", block):
                writer.put("train", block, dict.fromkeys(entry.lacking("train", block, names), values))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--dir", type=Path)
    asked = parser.parse_args()
    names = [f"block{number:02d}/mean" for number in range(1, asked.columns + 1)]
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        root = Path(folder)
        entry = timed("(simulating the entry)", lambda: make(root, asked.rows, names, simulated=True))
        blocks = entry.block_count("train")
        print(f"{asked.rows:,} rows, {asked.columns} columns, {blocks:,} blocks")
        timed("list: size, columns, progress", lambda: [summarize(each) for each in list_entries(root)])
        timed("open: manifest and the size of every file", lambda: FeatureStore(entry)["train"].columns)
        timed("what is missing", lambda: entry.missing("train", names))
        timed("sizes of all, as a new extract checks them", lambda: verify(entry, contents=False))
        empty = make(root, 10_000, names, simulated=False)
        timed("20 blocks of an empty entry", lambda: add(empty, names, range(20)))
        timed("20 blocks at the end of this one", lambda: add(entry, names, range(blocks - FREE, blocks)))


if __name__ == "__main__":
    main()
