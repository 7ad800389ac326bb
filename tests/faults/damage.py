"""Damage to files: mutants, which every reader reads in forked processes with limits, and single flipped bits."""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from reservoir_cache import CacheError, Entry, FeatureStore, load_arrays, reader, save_arrays
from reservoir_pipelines.data import hdf5
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.preparation.prepare import open_source
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.training.checkpoints import OPTIMIZER, TRAINED, read_tensors
from reservoir_pipelines.training.run_folder import Checkpoint, RunFolder

from reservoir.errors import InputError
from tests.faults.rounds import Count
from tests.helpers import flip

BATCH = 250
MEMORY, SECONDS = 3 * 2**30, 20


@dataclass(frozen=True)
class Reader:
    """A file to mutate, and the function that reads it; ``isolated`` if the product reads it in a child process."""

    name: str
    file: Path
    read: Callable[[], object]
    isolated: bool = False


def fuzz(readers: list[Reader], number: int, seed: int) -> Iterator[Count]:
    """Read ``number`` mutated files, shared among the readers: each is read, or refused in one line."""
    for one in readers:
        count, sound = Count(f"fuzzed: {one.name}"), one.file.read_bytes()
        one.read()
        rng = np.random.default_rng([seed, len(one.name)])
        copies = [mutated(sound, rng) for _ in range(-(-number // len(readers)))]
        try:
            for first in range(0, len(copies), BATCH):
                _batch(one, copies[first : first + BATCH], count)
        finally:
            one.file.write_bytes(sound)
        yield count


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy with changed bytes, a flipped bit, a repeated, lost or copied range, or without its end."""
    mutant = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        place, other = (int(rng.integers(len(mutant) or 1)) for _ in range(2))
        size = int(rng.integers(1, 17))
        match int(rng.integers(6)):
            case 0:
                mutant[place : place + size] = rng.bytes(size)
            case 1:
                mutant[place : place + 1] = bytes([mutant[place] ^ (1 << int(rng.integers(8)))]) if mutant else b""
            case 2:
                mutant[place:place] = mutant[place : place + size] * int(rng.integers(1, 9))
            case 3:
                del mutant[place : place + size]
            case 4:
                mutant[place : place + size] = mutant[other : other + size]
            case _:
                del mutant[max(place, len(mutant) // 2) :]
    return bytes(mutant)


def _batch(one: Reader, mutants: list[bytes], count: Count) -> None:
    """Read the mutants in forked processes; if a process dies, count the one that it was reading."""
    while mutants:
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(out)
            _child(one, mutants, into)
        os.close(into)
        with os.fdopen(out, "rb") as pipe:
            lines = pipe.read().decode(errors="replace").splitlines()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for number, line in enumerate(lines):
            count.add(line in ("read", "refused"), f"{line} {_keep(one, mutants[number]) if len(line) > 8 else ''}")
        if len(lines) < len(mutants):
            count.add(one.isolated, f"died, code {code} {'' if one.isolated else _keep(one, mutants[len(lines)])}")
        mutants = mutants[len(lines) + 1 :]


def _keep(one: Reader, mutant: bytes) -> Path:
    folder = Path(tempfile.gettempdir()) / "lost-inputs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{one.name.replace(' ', '-').replace('/', '-')}-{len(list(folder.iterdir()))}-{one.file.name}"
    path.write_bytes(mutant)
    return path


def _child(one: Reader, copies: list[bytes], into: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    if one.isolated:
        hdf5._check_in_child = hdf5.read_once
    for mutant in copies:
        one.file.write_bytes(mutant)
        reader._checked.clear()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # processor time, so that other programs have no influence
        try:
            one.read()
            line = "read"
        except (InputError, CacheError) as error:
            line = "refused" if "\n" not in str(error) else f"several lines: {str(error)[:200]!r}"
        except Exception as error:
            line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        os.write(into, line.encode() + b"\n")
    os._exit(0)


def readers(folder: Path) -> list[Reader]:
    """Write a small file in each format that users' data may have."""
    return [*_tables(folder), *_folders(folder)]


def read_all(name: object, **parameters: Any) -> list[str]:
    """Read every row of a data set, and return the notes about it."""
    source = open_source(str(name), **parameters)
    for piece in source.pieces():
        source.read(piece)
    source.scaling()
    return source.notes()


def _tables(folder: Path) -> list[Reader]:
    folder = folder / "own"
    folder.mkdir()
    x, y, split = np.arange(48.0).reshape(12, 4), np.arange(12) % 2, np.array(["train", "valid", "test"] * 4)
    rows = [f"r{n},{y[n]},{','.join(map(str, x[n]))}" for n in range(12)]
    files = {name: folder / f"mine.{name}" for name in ("csv", "tsv", "jsonl", "fasta", "npz", "parquet", "h5")}
    files["csv"].write_text("\n".join(["id,label,a,b,c,d", *rows]))
    letters = (f"{'ACGT' * (n % 3 + 1)}\t{'ab'[n % 2]}" for n in range(12))
    files["tsv"].write_text("\n".join(["letters\tlabel", *letters]))
    lines = [{"x": x[n].tolist(), "y": int(y[n]), "split": str(split[n])} for n in range(12)]
    files["jsonl"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    files["fasta"].write_text("".join(f">r{n} {'ab'[n % 2]}\nACGT{'AC' * n}\n" for n in range(12)))
    np.savez_compressed(files["npz"], x=x, y=y, split=split, lengths=np.full(12, 3))
    with h5py.File(files["h5"], "w") as file:
        file.create_dataset("x", data=x, compression="gzip", chunks=True)
        file["y"], file["split"] = y, split.astype(h5py.string_dtype())
    try:
        from pyarrow import parquet, table  # pyright: ignore[reportMissingImports]

        parquet.write_table(table({"label": y, **{name: x[:, n] for n, name in enumerate("abcd")}}), files["parquet"])
    except ImportError:
        del files["parquet"]
    return [
        Reader(f".{name}", path, lambda path=path: read_all(path), isolated=name == "h5")
        for name, path in files.items()
    ]


def _folders(folder: Path) -> list[Reader]:
    """Write a series as the archives publish them, and folders of sounds and of images by class."""
    from PIL import Image
    from scipy.io import wavfile

    folder, x, y = folder / "own", np.arange(48.0).reshape(12, 4), np.arange(12) % 2
    series = folder / "archive.ts"
    rows = [f"{','.join(map(str, values))}:{label}" for values, label in zip(x, y, strict=True)]
    series.write_text("\n".join(["@univariate true", "@classLabel true 0 1", "@data", *rows]) + "\n")
    sounds, pictures = folder / "sounds", folder / "pictures"
    for n, label in enumerate(y):
        for kind in (sounds, pictures):
            (kind / f"class{label}").mkdir(parents=True, exist_ok=True)
        wavfile.write(sounds / f"class{label}" / f"{n}.wav", 8000, np.arange(800, dtype=np.int16) * (n + 1))
        Image.fromarray(np.full((12, 12, 3), 20 * n, np.uint8)).save(pictures / f"class{label}" / f"{n}.png")
    wav = Reader(".wav", sounds / "class0" / "0.wav", lambda: read_all(sounds))
    return [
        Reader(".ts", series, lambda: read_all(series)),
        *([wav] if find_spec("soundfile") else []),
        Reader(".png", pictures / "class0" / "0.png", lambda: read_all(pictures)),
    ]


# Mutants of TOML and JSON values: each value is replaced by values of other types, or removed.


Keys = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    str: (3, True, [[]], {}),
    bool: (3, "x", [[]], {}),
    int: ("x", True, [[]], {}),
    float: ("x", True, [[]], {}),
    list: (3, "x", True, {}),
    dict: (3, "x", True, [[]]),
    type(None): (3, "x", True, [[]]),
}


def paths(value: Any, path: Keys = ()) -> Iterator[Keys]:
    """Yield the path to every value inside a value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def value_at(value: Any, path: Keys) -> Any:
    return reduce(lambda inner, key: inner[key], path, value)


def replaced(value: Any, path: Keys, new: Any) -> Any:
    """Return a copy with another value at a path."""
    whole = copy.deepcopy(value)
    value_at(whole, path[:-1])[path[-1]] = new
    return whole


def removed(value: Any, path: Keys) -> Any:
    """Return a copy without the value at a path."""
    whole = copy.deepcopy(value)
    del value_at(whole, path[:-1])[path[-1]]
    return whole


def toml(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return value.isoformat() if isinstance(value, date) else json.dumps(value)


# Single flipped bits in every stored file are detected, or the values read stay the same.


NOTICED = "noticed"


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
        count = Count(f"one bit flipped: {kind}")
        intact = read()
        if intact == NOTICED:
            raise RuntimeError(f"{kind}: nothing to read")
        for _ in range(-(-number // len(kinds))):
            path = draw.choice([file for file in files if file.stat().st_size])
            place, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
            flip(path, place, bit)
            reader._checked.clear()  # as in a new process
            try:
                content = _content_or_notice(read)
            except Exception as error:
                content = repr(error)
            flip(path, place, bit)
            spot = f"{path.relative_to(root)}, byte {place}, bit {bit}"
            count.add(content in (NOTICED, intact), f"{spot}: {str(content)[:99]}")
        yield count


def _content_or_notice(read: Callable[[], Any]) -> Any:
    """Return what a reader returns, or `NOTICED` if it refuses the file in one line."""
    try:
        return read()
    except (InputError, CacheError) as error:
        return NOTICED if "\n" not in str(error) else str(error)


def _features(entry: Path) -> Any:
    store = FeatureStore(entry)
    return [
        (split, column, store[split][column].tobytes(), store[split].labels.tobytes(), store[split].index.tobytes())
        for split in store.entry.splits
        for column in store[split].columns
    ]


def _moments(entry: Path) -> Any:
    opened = FeatureStore(entry).entry
    names = [path.stem for path in sorted(entry.glob("moments/*.h5"))]
    moments = [load_arrays(opened, name) for name in names]
    if not all(moments):
        return NOTICED  # computed again
    return [(name, array.tobytes()) for part in moments if part for name, array in part[0].items()]


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
