"""Make the golden files of the formats that this version writes: ``python -m tests.golden.make ARCHIVE``.

Run it once when a format gets a new version, into a new ``.tar``. Existing archives never change:
`tests/golden/test_golden.py` opens all of them, so that no later version stops reading what an earlier one wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from reservoir_cache import FeatureStore

MODEL = ("--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2,n_positions=32", "--init", "random", "--device", "cpu")
MODEL += ("--compute", "float32", "--patch", "3")


def sequences(rows: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(rows) % 2
    noise = np.random.default_rng(0).normal(0, 0.3, (rows, 12))
    return (np.sin(np.arange(12) * (1 + y[:, None])) + noise).astype(np.float32), y


def features(store: FeatureStore) -> dict[str, str]:
    columns = [(split, column) for split in store.splits for column in store[split].columns]
    return {f"{a}/{b}": hashlib.sha256(store[a][b].tobytes()).hexdigest() for a, b in columns}


def main(archive: Path) -> None:
    """Write an archive of an entry, a readout and a run, with the values that this version reads from them."""
    from reservoir_pipelines.cli import run

    work = Path(tempfile.gettempdir()) / "golden"  # the entry records this path
    work.mkdir()
    out = work / "golden"
    os.chdir(work)  # so that all other recorded paths are relative
    x, y = sequences(60)
    np.savez("waves.npz", x=x, y=y, split=np.repeat(["train", "valid", "test"], 20))
    np.savez("new.npz", x=x[:4])
    fit = ("--columns", "final/mean", "--select", "valid", "--out", "readout", "--device", "cpu")
    for command in (
        ("extract", "waves.npz", "--cache", "cache", "--layers", "embed,final", "--pool", "mean", *MODEL),
        ("fit", "waves.npz", "--cache", "cache", *fit),
        ("train", "waves.npz", "--cache", "cache", "--steps", "4", "--batch", "4", "--run", "run", *MODEL),
        ("predict", "readout", "new.npz", "--out", "readout.jsonl", "--device", "cpu"),
        ("predict", "run", "new.npz", "--out", "run.jsonl", "--device", "cpu"),
    ):
        if run(list(command)):
            raise SystemExit(f"failed: {' '.join(command)}")
    (entry,) = Path("cache").glob("features/*/*")
    shutil.copytree(entry, out / "features" / entry.parent.name / entry.name, ignore=shutil.ignore_patterns("runs"))
    for name in ("readout", "run"):
        shutil.copytree(name, out / name, ignore=shutil.ignore_patterns("*.png"))
    store = FeatureStore(entry)
    expected = {
        "key": store.entry.key,
        "features": features(store),
        "labels": {split: store[split].y.tolist() for split in store.splits},
        **{
            name: [json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()]
            for name in ("readout", "run")
        },
    }
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    with tarfile.open(archive, "x") as files:
        files.add(out, ".")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
