"""A small entry, features that depend only on their position in it, and a digest of its files."""

import copy
import hashlib
import zlib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reservoir_cache import Entry, Layout, ShardWriter, Spec, write_targets

FIELDS = {
    "task": {"name": "toy", "max_tokens": 5},
    "data": {"digest": "d1", "rows": {"train": 10, "test": 4}},
    "backbone": {"family": "gpt2", "digest": "b1", "width": 3},
    "init": {"kind": "random", "seed": 0},
    "input": {"kind": "orthogonal", "seed": 0, "gain": 1.41, "patch": 1, "stride": 1},
    "padding": "mask",
    "compute": "float32",
    "store": "float16",
}
SHAPES = {"block01/mean": (1, 3), "block02/all": (5, 2), "final/last": (1, 3)}


def make_spec(**changes):
    return Spec.from_json({**copy.deepcopy(FIELDS), **changes})


def make_entry(root: Path, *, block_rows=4, **changes):
    """Create an entry in blocks of four rows: three of train, one of test."""
    return Entry.create(
        root, "gpt2-random", make_spec(**changes), Layout(batch_rows=2, block_rows=block_rows), {"n": 1}
    )


def features(entry, split, block, columns=tuple(SHAPES)):
    """Return the columns of a block, as values around a large offset; equal arguments give equal values."""
    low, high = entry.blocks(split)[block]
    out = {}
    for column in columns:
        rng = np.random.default_rng(zlib.crc32(f"{split} {block} {column}".encode()))
        out[column] = (300 + rng.standard_normal((high - low, *SHAPES[column]))).astype(np.float32)
    return out


def targets(rows):
    return {
        "y": np.arange(rows * 2).reshape(rows, 1, 2),
        "lengths": np.full(rows, 5, np.int32),
        "index": np.arange(rows)[::-1],
    }


def write_block(entry, split, block, arrays):
    with ShardWriter(entry) as writer:
        if writer.claim(split, block, arrays):
            writer.put(split, block, arrays)


def fill(entry, columns=tuple(SHAPES)):
    for split, rows in entry.spec.rows.items():
        write_targets(entry, split, targets(rows))
        for block, names in entry.missing(split, columns).items():
            write_block(entry, split, block, features(entry, split, block, names))
    return entry


@contextmanager
def claim(entry, split, block):
    """Try to claim a block as an extraction does; yield whether that succeeded."""
    with ShardWriter(entry) as writer:
        yield bool(writer.claim(split, block, ["not/written"]))


def expected(entry, split, column):
    """Return all rows of the features that a column was made from."""
    return np.concatenate([features(entry, split, b, [column])[column] for b in range(len(entry.blocks(split)))])


def digest(folder: Path):
    """Return {relative path: digest} of every file except the lock and the run records."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "lock" and path.parent.name != "runs"
    }


@pytest.fixture
def toy():
    """Return this module's functions; under pytest's importlib mode, test files cannot import this module."""
    made = {"spec": make_spec, "entry": make_entry, "features": features, "targets": targets, "fill": fill}
    return SimpleNamespace(shapes=SHAPES, expected=expected, digest=digest, claim=claim, **made)


@pytest.fixture
def entry(tmp_path):
    return make_entry(tmp_path)


@pytest.fixture
def full(entry):
    return fill(entry)
