"""The stages that publish, small, and what a reader finds of them: for the replay of power losses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    Layout,
    Spec,
    broken_entries,
    list_entries,
    load_arrays,
    remove,
    repair,
    save_arrays,
    write_block,
    write_targets,
)

from tests.faults.power_loss import Stage, Step

SPEC = Spec(
    task={"name": "toy"},
    data={"digest": "d", "rows": {"train": 6, "test": 2}},
    backbone={"family": "gpt2", "digest": "b"},
    init={"kind": "random", "seed": 0},
    input={"kind": "orthogonal", "seed": 0, "gain": 1, "patch": 1, "stride": 1},
    padding="mask",
    compute="float32",
    store="float16",
)
BLOCK = 4


def short(*values: Any) -> str:
    """Return a few digits for arrays and other values."""
    whole = hashlib.sha256()
    for value in values:
        whole.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return whole.hexdigest()[:8]


def create(root: Path) -> Entry:
    """Make the entry, or open it."""
    return Entry.create(root, "gpt2-random", SPEC, Layout(batch_rows=2, block_rows=BLOCK), {})


def extract(root: Path, *columns: str) -> None:
    """Write what is missing of the entry, as an extract does."""
    entry = create(root)
    repair(entry)
    for split, rows in SPEC.rows.items():
        index = np.arange(rows)
        write_targets(entry, split, {"y": index.reshape(-1, 1, 1), "lengths": index + 1, "index": index})
        for block, names in entry.missing(split, columns).items():
            low, high = entry.blocks(split)[block]
            values = np.arange(low, high, dtype=np.float32).reshape(-1, 1, 1) + np.ones((1, 1, 300), np.float32)
            write_block(entry, split, block, {name: values * (1 + len(name)) for name in names})


def features(root: Path) -> Any:
    """Return what a reader finds in each entry: labels, and the columns of each block; nothing may be damaged."""
    broken = [("broken", problem.path.name) for problem in broken_entries(root)]
    return [found(entry) for entry in list_entries(root)] or broken


def found(entry: Entry) -> Any:
    """Return what a reader finds in an entry."""
    store, splits = FeatureStore(entry), {}
    for split in store.splits:
        part = store[split]
        labels = short(part.labels, part.lengths, part.index) if entry.page(split, 0).targets else None
        blocks = {}
        for column in part._manifest.columns:
            held = [block for block, columns in part._shards.items() if column in columns]
            blocks[column] = [(block, short(part._block(block, column))) for block in held]
        splits[split] = labels, blocks
    moments = load_arrays(entry, "ridge")
    return splits, moments and short(*moments[0].values(), moments[1])


def damage(root: Path) -> None:
    """Make an entry with a damaged shard and a damaged manifest."""
    extract(root, "embed/mean")
    (entry,) = list_entries(root)
    shard, page = entry.path / "train" / "00000-0.h5", entry.path / "test" / "manifest.json"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    page.write_text(page.read_text()[:-9])


def after_damage(root: Path) -> Any:
    """Return what a reader finds in an entry that may be damaged."""
    try:
        return features(root)
    except CacheError as error:
        return str(error).partition("state")[2]


def moments(number: int) -> Step:
    """Return the step that keeps some moments."""
    arrays: Mapping[str, Any] = {"xx": np.full((9, 9), number, float)}
    return Step(lambda root: save_arrays(create(root), "ridge", arrays, {"n": number}))


CACHE = (
    Stage(
        "extract: an entry, shards, manifests",
        (Step(create), Step(lambda root: extract(root, "embed/mean")), Step(lambda root: extract(root, "final/last"))),
        features,
        recovers=True,
    ),
    Stage("fit: moments", (moments(1), moments(2)), features, prepare=lambda root: extract(root, "embed/mean")),
    Stage(
        "cache remove",
        (Step(lambda root: remove(next(root.glob("features/*/*"))), durable=False),),
        features,
        prepare=lambda root: extract(root, "embed/mean", "final/last"),
    ),
    Stage(
        "cache repair",
        (Step(lambda root: repair(create(root))), Step(lambda root: extract(root, "embed/mean"))),
        after_damage,
        prepare=damage,
    ),
)
