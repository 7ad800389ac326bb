"""What is wrong on this machine, and the command that mends it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import reservoir_cache as store

from reservoir.errors import InputError
from reservoir_pipelines.output import Record, size_text
from reservoir_pipelines.preparation.prepare import task_table
from reservoir_pipelines.workspace import cache_root, data_folder

LEAST_FREE = 10**9
EXTRAS = {"parquet": "pyarrow", "audio": "soundfile", "onnx": "onnxscript", "gpu": "accelerate"}


@dataclass(frozen=True)
class Finding(Record):
    """One thing that was looked at: what was found, and what mends it, or nothing where it is well."""

    what: str
    found: str
    remedy: str = ""


def doctor(cache: Path | None = None, data: Path | None = None) -> list[Finding]:
    """Look at Python, device, precision, cache, disk, locks, stored entries, data and extras."""
    import torch

    from reservoir.reservoir import choose_compute, choose_device

    device = choose_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    compute = choose_compute("auto", device)
    native = "native bfloat16" if compute == "bfloat16" else "no native bfloat16: other keys than where there is"
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [extra for extra, package in EXTRAS.items() if not find_spec(package)]
    note = f"; not installed: {', '.join(missing)} (pip install 'reservoir-features[NAME]')" if missing else ""
    return [
        Finding("python", version, "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"),
        Finding("device", f"{device.type}, {name}, torch {torch.__version__}"),
        Finding("precision", f"{compute} ({native})"),
        *_cache(cache),
        *_entries(cache_root(cache)),
        *_data(data, cache),
        Finding("extras", f"{len(EXTRAS) - len(missing)} of {len(EXTRAS)}{note}"),
    ]


def _cache(cache: Path | None) -> Iterator[Finding]:
    try:
        root = cache_root(cache)
        root.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        yield Finding("cache", str(error), "name another folder with --cache or RESERVOIR_CACHE")
        return
    probe = root / f".doctor-{uuid.uuid4().hex}"
    try:
        with probe.open("xb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield Finding("cache", f"{root}: can be written, and locked")
            except OSError:
                yield Finding("cache", f"{root}: can be written", "choose a cache on a file system with POSIX locks")
    except OSError as error:
        yield Finding("cache", f"{root}: {error.strerror}", "it can be read only; write to another with --cache")
    finally:
        probe.unlink(missing_ok=True)
    free = shutil.disk_usage(root).free
    remedy = "" if free > LEAST_FREE else "reservoir cache prune --older 30d"
    yield Finding("disk", f"{size_text(free)} free", remedy)


def _entries(root: Path) -> Iterator[Finding]:
    entries = [store.summarize(entry) for entry in store.list_entries(root)]
    yield Finding("entries", f"{len(entries)}, {size_text(sum(each.bytes for each in entries))}")
    for problem in store.broken_entries(root):
        yield Finding("entry", f"{problem.path}: {problem.what}", f"reservoir cache remove {problem.path}")
    for each in entries:
        key = each.entry.key[:16]
        if each.fault:
            yield Finding("entry", each.fault, f"reservoir cache repair {key}")
        elif not each.finished:
            state = f"{each.entry.path.name}: {each.blocks_done} of {each.blocks} blocks"
            yield Finding("entry", state, "run the same extract again to go on, or reservoir cache remove " + key)


def _data(data: Path | None, cache: Path | None) -> Iterator[Finding]:
    try:
        data_folder(data)
    except InputError as error:
        yield Finding("data", str(error), "name another folder with --data or RESERVOIR_DATA")
        return
    rows = task_table(data=data, cache=cache)
    missing = [row["task"] for row in rows if row["remedy"]]
    note = f"; without files: {', '.join(missing)} (reservoir tasks says what to do)" if missing else ""
    yield Finding("data", f"{len(rows) - len(missing)} of {len(rows)} tasks{note}")
    if os.environ.get("RESERVOIR_DATA") and data is None:
        yield Finding("RESERVOIR_DATA", os.environ["RESERVOIR_DATA"])
