"""Single flipped bits in every stored file are detected, or the values read stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import CacheError, Entry, FeatureStore, load_arrays, reader, save_arrays
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.training.checkpoints import OPTIMIZER, TRAINED, read_tensors
from reservoir_pipelines.training.run_folder import Checkpoint, RunFolder

from reservoir.errors import InputError
from tests.faults.rounds import Count
from tests.helpers import flip

FOUND = "found"


def flip_some(root: Path, number: int, seed: int) -> Iterator[Count]:
    """Flip ``number`` bits below a root that has an entry with moments, prepared data, a readout and a run."""
    entry = next(root.glob("features/*/*"))
    prepared = next(root.glob("prepared/*/*/prepared.json")).parent
    run, readout = root / "run", root / "readouts" / "waves" / "one"
    save_arrays(Entry.open(entry), "ridge", {"xx": np.eye(8), "count": np.array(60)}, {"columns": ["final/mean"]})
    kinds: dict[str, tuple[list[Path], Callable[[], Any]]] = {
        "shards and labels": (sorted(entry.glob("t*/*.h5")), lambda: _features(entry)),
        "manifests": (sorted(entry.glob("*/manifest.json")), lambda: _features(entry)),
        "specifications": ([entry / "spec.json"], lambda: _features(entry)),
        "moments": (sorted(entry.glob("moments/*")), lambda: _moments(entry)),
        "prepared data": ([p for p in sorted(prepared.rglob("*")) if p.is_file()], lambda: _prepared(prepared)),
        "readouts": ([readout / "readout.json", *readout.glob("readout-*")], lambda: _readout(readout)),
        "runs": ([run / "config.json", run / "run.json", run / "metrics.jsonl"], lambda: _run(run)),
        "checkpoints": (sorted(run.glob("checkpoints/*/*")), lambda: _checkpoint(RunFolder(run).best)),
    }
    draw = random.Random(seed)
    for kind, (files, read) in kinds.items():
        count, wanted = Count(f"one bit flipped: {kind}"), read()
        if wanted == FOUND:
            raise RuntimeError(f"{kind}: nothing to read")
        for _ in range(-(-number // len(kinds))):
            path = draw.choice([file for file in files if file.stat().st_size])
            place, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
            flip(path, place, bit)
            reader._checked.clear()  # as in a new process
            try:
                found = _found(read)
            except Exception as error:
                found = repr(error)
            flip(path, place, bit)
            count.add(found in (FOUND, wanted), f"{path.relative_to(root)}, byte {place}, bit {bit}: {str(found)[:99]}")
        yield count


def _found(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (InputError, CacheError) as error:
        return FOUND if "\n" not in str(error) else str(error)


def _features(entry: Path) -> Any:
    store = FeatureStore(entry)
    made = store.entry
    return [
        (split, column, store[split][column].tobytes(), store[split].labels.tobytes(), store[split].index.tobytes())
        for split in made.splits
        for column in store[split].columns
    ]


def _moments(entry: Path) -> Any:
    made = FeatureStore(entry).entry
    names = [path.stem for path in sorted(entry.glob("moments/*.h5"))]
    kept = [load_arrays(made, name) for name in names]
    if not all(kept):
        return FOUND  # computed again
    return [(name, array.tobytes()) for part in kept if part for name, array in part[0].items()]


def _prepared(folder: Path) -> Any:
    data = Prepared.open(folder)
    splits = [(name, part.read(0, len(part))) for name, part in data.splits.items()]
    return data.digest, [(name, s.x.tobytes(), s.y.tobytes(), s.lengths.tobytes()) for name, s in splits]


def _readout(folder: Path) -> Any:
    bundle = Bundle.load(folder)
    arrays, card = bundle.readout.to_arrays()  # pyright: ignore
    return [(name, array.tobytes()) for name, array in arrays.items()], card, bundle.parts, bundle.scores


def _run(folder: Path) -> Any:
    run = RunFolder(folder)
    return run.config, run.result(dict), run.history


def _checkpoint(checkpoint: Checkpoint) -> Any:
    tensors = read_tensors(checkpoint, TRAINED, OPTIMIZER)
    arrays = [(name, key, t.numpy().tobytes()) for name, part in tensors.items() for key, t in part.items()]
    return checkpoint.state, arrays
