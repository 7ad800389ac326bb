"""The command ``reservoir doctor``: what is wrong on this machine, and the command that fixes it."""

import fcntl
import platform
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile
from typing import Any

import reservoir_cache as store

from reservoir_pipelines.command import Answer
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import size_text
from reservoir_pipelines.tables import record_table

MIN_FREE_BYTES = 10**9
EXTRAS = {"parquet": "pyarrow", "audio": "soundfile", "onnx": "onnxscript", "gpu": "accelerate"}

Finding = tuple[str, str, str]
"""What was checked, the result, and the command that fixes a problem, empty if there is none."""


def doctor(options: dict[str, Any]) -> Answer:
    """Check this machine, and print what fixes each problem.

    The exit code is 1 if there is a problem.
    """
    names = ("what", "found", "remedy")
    checks = [dict(zip(names, finding, strict=True)) for finding in _findings(**options)]
    return Answer(checks, [record_table(checks, *names)], wrong=any(check["remedy"] for check in checks))


def _findings(data: Path | None = None, cache: Path | None = None) -> Iterator[Finding]:
    import torch

    from reservoir import devices
    from reservoir.reservoir import choose_compute, choose_device
    from reservoir_pipelines.preparation.prepare import task_table

    device = choose_device("auto")
    name = devices.describe(device) if devices.on_gpu(device) else f"{torch.get_num_threads()} threads"
    yield "python", platform.python_version(), ""
    yield "device", f"{device.type}, {name}, torch {torch.__version__}", ""
    yield "precision", choose_compute("auto", device), ""
    yield from _cache(cache_root(cache))
    yield from _entries(cache_root(cache))
    rows = task_table(data=data, cache=cache)
    without = [row["task"] for row in rows if row["remedy"]]
    note = (
        f"; without files: {', '.join(without)} (run reservoir tasks to see what to do)" if without else ""
    )
    yield "data", f"{len(rows) - len(without)} of {len(rows)} tasks{note}", ""
    missing = [extra for extra, package in EXTRAS.items() if not find_spec(package)]
    lacking = (
        f"; not installed: {', '.join(missing)} (pip install 'reservoir-features[NAME]')" if missing else ""
    )
    yield "extras", f"{len(EXTRAS) - len(missing)} of {len(EXTRAS)}{lacking}", ""


def _cache(root: Path) -> Iterator[Finding]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=root) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "name another folder with --cache or RESERVOIR_CACHE, on a file system with POSIX locks"
        yield "cache", f"{root}: {error}", remedy
        return
    yield "cache", f"{root}: can be written and locked", ""
    free = shutil.disk_usage(root).free
    remedy = "" if free > MIN_FREE_BYTES else "reservoir cache prune --older 30d"
    yield "disk", f"{size_text(free)} free", remedy


def _entries(root: Path) -> Iterator[Finding]:
    entries = [store.summarize(entry) for entry in store.list_entries(root)]
    yield "entries", f"{len(entries)}, {size_text(sum(entry.bytes for entry in entries))}", ""
    for problem in store.broken_entries(root):
        remedy = f"reservoir cache remove {quote(str(problem.path))}"
        yield "entry", f"{problem.path}: {problem.what}", remedy
    for summary in entries:
        key = summary.entry.key[:16]
        if summary.fault:
            yield "entry", summary.fault, f"reservoir cache repair {key}"
        elif not summary.finished:
            state = f"{summary.entry.path.name}: {summary.blocks_done} of {summary.blocks} blocks"
            yield "entry", state, "run the same extract again to continue, or reservoir cache remove " + key
