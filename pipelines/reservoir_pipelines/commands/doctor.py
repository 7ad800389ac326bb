"""The command ``reservoir doctor``: what is wrong on this machine, and the command that fixes it."""

import fcntl
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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

MIN_FREE_BYTES = 10**9  # on the disk of the cache; with less, doctor names the command that prunes it
# A package of each extra, whose presence shows that the extra is installed.
EXTRAS = {
    "parquet": "pyarrow",
    "audio": "soundfile",
    "gguf": "gguf",
    "onnx": "onnxscript",
    "gpu": "accelerate",
    "remote": "s3fs",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str  # what was checked
    found: str  # the result
    remedy: str = ""  # what fixes the problem; empty if there is none


def doctor(options: dict[str, Any]) -> Answer:
    """Check this machine, and print what fixes each problem.

    The exit code is 1 if there is a problem.
    """
    findings = list(_findings(**options))
    table = record_table(findings, "what", "found", "remedy")
    has_problem = any(finding.remedy for finding in findings)
    return Answer([asdict(finding) for finding in findings], [table], wrong=has_problem)


def _findings(data: Path | None = None, cache: Path | None = None) -> Iterator[Finding]:
    """Yield the findings on Python, the device, the cache and its entries, the data of tasks, and extras.

    ``data`` is the folder of the files of named tasks.
    """
    import torch

    from reservoir import devices
    from reservoir.devices import choose_compute, choose_device
    from reservoir_pipelines.preparation.prepare import task_table

    device = choose_device("auto")
    name = devices.describe(device) if devices.on_gpu(device) else f"{torch.get_num_threads()} threads"
    yield Finding("python", platform.python_version())
    yield Finding("device", f"{device.type}, {name}, torch {torch.__version__}")
    yield Finding("precision", choose_compute("auto", device))
    yield from _findings_of_cache(cache_root(cache))
    yield from _findings_of_entries(cache_root(cache))
    # Missing data and extras are no problems: few users need all of them.
    tasks = task_table(data=data, cache=cache)
    without_files = [task["task"] for task in tasks if task["remedy"]]
    note = f"; without files: {', '.join(without_files)} (run reservoir tasks to see what to do)"
    available = f"{len(tasks) - len(without_files)} of {len(tasks)} tasks"
    yield Finding("data", f"{available}{note if without_files else ''}")
    missing_extras = [extra for extra, package in EXTRAS.items() if not find_spec(package)]
    note = f"; not installed: {', '.join(missing_extras)} (pip install 'reservoir-features[NAME]')"
    installed = f"{len(EXTRAS) - len(missing_extras)} of {len(EXTRAS)}"
    yield Finding("extras", f"{installed}{note if missing_extras else ''}")


def _findings_of_cache(root: Path) -> Iterator[Finding]:
    """Yield whether the cache can be written and locked, and if so, how much space is free there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=root) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "name another folder with --cache or RESERVOIR_CACHE, on a file system with POSIX locks"
        yield Finding("cache", f"{root}: {error}", remedy)
        return
    yield Finding("cache", f"{root}: can be written and locked")
    free = shutil.disk_usage(root).free
    remedy = "" if free > MIN_FREE_BYTES else "reservoir cache prune --older 30d"
    yield Finding("disk", f"{size_text(free)} free", remedy)


def _findings_of_entries(root: Path) -> Iterator[Finding]:
    """Yield the number and the size of the entries, and those that are damaged or not finished."""
    summaries = [store.summarize(entry) for entry in store.list_entries(root)]
    total_bytes = sum(summary.bytes for summary in summaries)
    yield Finding("entries", f"{len(summaries)}, {size_text(total_bytes)}")
    for problem in store.broken_entries(root):
        yield Finding("entry", f"{problem.path}: {problem.what}", problem.repair)
    for summary in summaries:
        # Named by its folder, which every cache command accepts, whatever cache it is given.
        folder = quote(str(summary.entry.path))
        if summary.fault:
            yield Finding("entry", summary.fault, f"reservoir cache repair {folder}")
        elif not summary.finished:
            state = f"{summary.entry.path.name}: {summary.blocks_done} of {summary.blocks} blocks"
            remedy = f"run the same {summary.entry.command} again to continue, or reservoir cache remove {folder}"
            yield Finding("entry", state, remedy)
