"""Mutated small files through every reader, in batches in forked processes with limits of memory and time."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from reservoir_cache import CacheError, Entry, FeatureStore, reader
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.training.run_folder import RunFolder

from reservoir.errors import InputError
from reservoir.tasks import task_named
from reservoir.tasks.own import hdf5
from tests.faults.rounds import Count

BATCH = 250
MEMORY, SECONDS = 3 * 2**30, 20


@dataclass(frozen=True)
class Reader:
    """A file that is mutated, and how it is read; ``isolated`` where the product does it in a process of its own."""

    name: str
    file: Path
    read: Callable[[], object]
    isolated: bool = False


def fuzz(readers: list[Reader], number: int, seed: int) -> Iterator[Count]:
    """Read so many mutated files, dealt among the readers: all are read, or refused in one line."""
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
    """Return a copy with bytes changed, a bit flipped, a stretch repeated, lost or taken from elsewhere, or cut off."""
    copy = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        place, other = (int(rng.integers(len(copy) or 1)) for _ in range(2))
        size = int(rng.integers(1, 17))
        match int(rng.integers(6)):
            case 0:
                copy[place : place + size] = rng.bytes(size)
            case 1:
                copy[place : place + 1] = bytes([copy[place] ^ (1 << int(rng.integers(8)))]) if copy else b""
            case 2:
                copy[place:place] = copy[place : place + size] * int(rng.integers(1, 9))
            case 3:
                del copy[place : place + size]
            case 4:
                copy[place : place + size] = copy[other : other + size]
            case _:
                del copy[max(place, len(copy) // 2) :]
    return bytes(copy)


def _batch(one: Reader, copies: list[bytes], count: Count) -> None:
    """Read the copies in forked processes; one that dies is blamed on the copy that it was at."""
    while copies:
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(out)
            _child(one, copies, into)
        os.close(into)
        with os.fdopen(out, "rb") as pipe:
            lines = pipe.read().decode(errors="replace").splitlines()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for number, line in enumerate(lines):
            count.add(line in ("read", "refused"), f"{line} {_keep(one, copies[number]) if len(line) > 8 else ''}")
        if len(lines) < len(copies):
            count.add(one.isolated, f"died, code {code} {'' if one.isolated else _keep(one, copies[len(lines)])}")
        copies = copies[len(lines) + 1 :]


def _keep(one: Reader, copy: bytes) -> Path:
    """Keep a copy that something was lost on."""
    folder = Path(tempfile.gettempdir()) / "lost-inputs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{one.name.replace(' ', '-').replace('/', '-')}-{len(list(folder.iterdir()))}-{one.file.name}"
    path.write_bytes(copy)
    return path


def _child(one: Reader, copies: list[bytes], into: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    if one.isolated:
        hdf5._check_apart = hdf5.read_once
    for copy in copies:
        one.file.write_bytes(copy)
        reader._checked.clear()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of processor time, so that a busy machine changes nothing
        try:
            one.read()
            line = "read"
        except (InputError, CacheError) as error:
            line = "refused" if "\n" not in str(error) else f"several lines: {str(error)[:200]!r}"
        except Exception as error:
            line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        os.write(into, line.encode() + b"\n")
    os._exit(0)


def readers(folder: Path, root: Path) -> list[Reader]:
    """Write a small file of every format; ``root`` has an entry, prepared data, a readout and a run."""
    return [*_tables(folder), *_published(folder), *_kept(folder, root)]


def _all_rows(name: str, **parameters: Any) -> None:
    source = task_named(name, **parameters)
    for piece in source.pieces():
        source.read(piece)
    source.scaling()
    source.notes()


def _tables(folder: Path) -> list[Reader]:
    folder = folder / "own"
    folder.mkdir()
    x, y, split = np.arange(48.0).reshape(12, 4), np.arange(12) % 2, np.array(["train", "valid", "test"] * 4)
    rows = [f"r{n},{y[n]},{','.join(map(str, x[n]))}" for n in range(12)]
    files = {name: folder / f"mine.{name}" for name in ("csv", "tsv", "jsonl", "fasta", "npz", "parquet", "h5")}
    files["csv"].write_text("\n".join(["id,label,a,b,c,d", *rows]))
    files["tsv"].write_text("\n".join(f"{'ACGT' * (n % 3 + 1)}\t{'ab'[n % 2]}" for n in range(12)))
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
        Reader(f".{name}", path, lambda path=path: _all_rows(str(path)), isolated=name == "h5")
        for name, path in files.items()
    ] + _folders(folder, x, y)


def _folders(folder: Path, x: np.ndarray, y: np.ndarray) -> list[Reader]:
    """Write a series as the archives publish them, and folders of sounds and of pictures by class."""
    from PIL import Image
    from scipy.io import wavfile

    series = folder / "archive.ts"
    rows = [f"{','.join(map(str, values))}:{label}" for values, label in zip(x, y, strict=True)]
    series.write_text("\n".join(["@univariate true", "@classLabel true 0 1", "@data", *rows]) + "\n")
    sounds, pictures = folder / "sounds", folder / "pictures"
    for n, label in enumerate(y):
        for kind in (sounds, pictures):
            (kind / f"class{label}").mkdir(parents=True, exist_ok=True)
        wavfile.write(sounds / f"class{label}" / f"{n}.wav", 8000, np.arange(800, dtype=np.int16) * (n + 1))
        Image.fromarray(np.full((12, 12, 3), 20 * n, np.uint8)).save(pictures / f"class{label}" / f"{n}.png")
    return [
        Reader(".ts", series, lambda: _all_rows(str(series))),
        Reader(".wav", sounds / "class0" / "0.wav", lambda: _all_rows(str(sounds))),
        Reader(".png", pictures / "class0" / "0.png", lambda: _all_rows(str(pictures))),
    ]


def _published(folder: Path) -> list[Reader]:
    folder = folder / "published"
    folder.mkdir()
    draw, found = np.random.default_rng(0), list[Reader]()
    for part, rows in (("train", 20), ("t10k", 8)):
        shape = (rows, 28, 28)
        images, labels = draw.integers(0, 256, shape, dtype=np.uint8), (np.arange(rows) % 10).astype(np.uint8)
        header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in shape)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1]) + rows.to_bytes(4, "big") + labels.tobytes()
        )
    mnist = lambda: _all_rows("mnist", data=folder)  # noqa: E731
    found += [
        Reader("idx.gz", folder / "train-images-idx3-ubyte.gz", mnist),
        Reader("idx", folder / "t10k-labels-idx1-ubyte", mnist),
    ]
    for form in ("binary", "pickles", "tar"):
        found.append(_cifar(folder / form, form))
    parts = {"train": 6, "valid": 3, "test_fold_holdout": 3, "test_superfamily_holdout": 3, "test_family_holdout": 3}
    for part, rows in parts.items():
        records = [{"primary": "ACDE" * (n + 1), "fold_label": n % 3} for n in range(rows)]
        (folder / f"remote_homology_{part}.json").write_text(json.dumps(records))
    homology = lambda: _all_rows("homology", data=folder)  # noqa: E731
    found.append(Reader("homology json", folder / "remote_homology_valid.json", homology))
    for part in ("train", "val", "test"):
        text = "".join(f"( ( ( [MAX {n} ) 3 ) ] )\t{max(n, 3)}\n" for n in range(8))
        (folder / f"basic_{part}.tsv").write_text("Source\tTarget\n" + text)
    found.append(Reader("listops tsv", folder / "basic_train.tsv", lambda: _all_rows("listops", data=folder)))
    return found


def _cifar(folder: Path, form: str) -> Reader:
    draw = np.random.default_rng(1)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    images, labels = draw.integers(0, 256, (10, 3072), dtype=np.uint8), np.arange(10, dtype=np.uint8)
    packed = pickle.dumps({b"data": images, b"labels": labels.tolist(), b"batch_label": b"x"}, protocol=2)
    below = folder / ("cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py")
    below.mkdir(parents=True)
    flat = np.concatenate([labels[:, None], images], axis=1).tobytes()
    for name in names:
        (below / (f"{name}.bin" if form == "binary" else name)).write_bytes(flat if form == "binary" else packed)
    file = below / ("test_batch.bin" if form == "binary" else "test_batch")
    if form == "tar":
        file = folder / "cifar-10-python.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            for name in names:
                info = tarfile.TarInfo(f"{below.name}/{name}")
                info.size = len(packed)
                archive.addfile(info, io.BytesIO(packed))
        shutil.rmtree(below)
    return Reader(f"cifar {form}", file, lambda: _all_rows("cifar10", data=folder))


def _kept(folder: Path, root: Path) -> list[Reader]:
    """Return the readers of what the product itself keeps."""
    root = shutil.copytree(root, folder / "kept")
    entry, prepared = next(root.glob("features/*/*")), next(root.glob("prepared/*/*/prepared.json"))

    def features() -> None:
        store = FeatureStore(Entry.open(entry))
        for split in store.splits:
            _ = [store[split].read(column) for column in store[split].columns], store[split].labels

    def run() -> None:
        folder = RunFolder(root / "run")
        _ = folder.config, folder.result, folder.history, folder.state

    readout = lambda: Bundle.load(root / "readout")  # noqa: E731
    files = {
        "spec.json": (entry / "spec.json", features),
        "manifest.json": (entry / "train" / "manifest.json", features),
        "a shard": (next((entry / "train").glob("0*.h5")), features),
        "prepared.json": (prepared, lambda: Prepared.open(prepared.parent)),
        "readout.json": (root / "readout" / "readout.json", readout),
        "readout.safetensors": (next((root / "readout").glob("readout-*.safetensors")), readout),
        "config.json": (root / "run" / "config.json", run),
        "metrics.jsonl": (root / "run" / "metrics.jsonl", run),
        "state.json": (sorted((root / "run" / "checkpoints").glob("*/state.json"))[-1], run),
    }
    return [Reader(name, path, read) for name, (path, read) in files.items()]
