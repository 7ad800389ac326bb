"""The stage ``plan``: the time, disk space and memory that an extraction will take, estimated from a short trial."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from reservoir_cache import required_bytes

from reservoir import devices
from reservoir.errors import InputError
from reservoir.features import Loaded, load
from reservoir.options import ExtractOptions
from reservoir_pipelines.extraction.run import Run, compute_blocks, make_spec, start_run
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.preparation.prepare import prepare

clock = time.perf_counter

SECONDS, REPEATS = 2.0, 3  # minimum seconds of a trial, and the number of trials, whose median is used
BLOCKS = 4  # maximum blocks of a trial: one is read, one computed, one encoded and one written at a time
QUEUED = 8  # float32 blocks in memory: four waiting or in computation, one being encoded, and three encoded ones
ROW = 8  # bytes of a row number


@dataclass(frozen=True, kw_only=True)
class Forecast(Record):
    """The cost of an extraction, as `plan` predicts it.

    Parameters
    ----------
    task, backbone : str
    rows : int
        Rows of all splits together.
    columns : int
    tokens : float
        Mean tokens of a row.
    padding : float
        Share of the tokens of a batch that are padding.
    rows_per_second : float
        Speed of one worker, including reading and writing.
    workers : int
        Number of workers like this process; the time is assumed to be inversely proportional to it.
    seconds : float
        Wall time with all workers.
    bytes : int
        Size on disk.
    files : int
        Shards on disk.
    memory : int
        Bytes in one worker: its memory now, the queued blocks, and all row numbers.
    starter_memory : int
        Bytes in the process that starts the workers, which also holds all labels.
    device, compute : str
        Device and precision of the trial.
    """

    task: str
    backbone: str
    rows: int
    columns: int
    tokens: float
    padding: float
    rows_per_second: float
    workers: int
    seconds: float
    bytes: int
    files: int
    memory: int
    starter_memory: int
    device: str
    compute: str


def plan(task: str, options: ExtractOptions, *, rows: int | None = None, workers: int = 1) -> Forecast:
    """Time a part of an extraction for some seconds and predict the whole; only the prepared data is kept."""
    for name, value in (("rows", rows), ("workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"--{name} {value}: give a whole number of at least 1")
    started, root = clock(), cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    shares = {split: min(count, options.limit or count) for split, count in prepared.rows.items()}
    present = sum(shares.values())
    rows = rows or present
    shares = {split: -(-count * rows // present) for split, count in shares.items()}
    run = start_run(options, prepared, root, planned=shares)
    loading, layout = clock() - started, run.layout
    notify(f"plan: data and model loaded in {loading:.0f} s; timing the extraction for about {SECONDS * REPEATS:.0f} s")
    part = prepared.split("train").take(_sample(run, layout.offset_rows))
    block = load(run.model, prepared.scaling, part.x, part.lengths, layout.batch_rows)
    padded, tokens = block.padded / len(block.lengths), float(block.lengths.mean())
    found: list[float] = []  # seconds per token of each trial; the number of rows grows until a trial is long enough
    count, most = layout.batch_rows, min(BLOCKS * layout.block_rows, len(run.rows["train"]))
    while len(found) < REPEATS:
        seconds, computed = _trial(run, _sample(run, count, len(found)))
        if seconds >= SECONDS or count >= most:
            found.append(seconds / computed)
        else:
            count = min(most, max(2 * count, int(count * SECONDS / max(seconds, 1e-3))))
    speed = 1 / (sorted(found)[REPEATS // 2] * padded)
    if devices.on_gpu(run.model.device):
        peak = torch.cuda.max_memory_allocated(run.model.device)
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak += QUEUED * 4 * layout.block_rows * sum(kept * width for kept, width in run.shapes.values())
    labelled = ROW + sum(array[:1].nbytes for array in (prepared.split("train").y, prepared.split("train").lengths))
    starter = peak + rows * labelled
    return Forecast(
        task=prepared.task.name,
        backbone=run.model.settings.title,
        rows=rows,
        columns=len(run.columns),
        tokens=tokens,
        padding=1 - tokens / padded,
        rows_per_second=speed,
        workers=workers,
        seconds=loading + rows / (speed * workers),
        bytes=required_bytes(run.spec, layout, shares, run.shapes),
        files=sum(map(layout.count, shares.values())),
        memory=starter if workers == 1 else peak + rows * ROW,
        starter_memory=starter,
        device=str(run.model.device),
        compute=run.model.compute,
    )


def _sample(run: Run, count: int, seed: int = 0) -> np.ndarray:
    """Return the numbers of random training rows, ascending."""
    known = run.rows["train"]
    return np.sort(np.random.default_rng(seed).choice(known, min(count, len(known)), replace=False))


def _trial(run: Run, rows: np.ndarray) -> tuple[float, int]:
    """Extract some training rows into a temporary folder; return the seconds, and the tokens with padding."""
    tokens, spec = 0, make_spec(run.prepared, {"train": rows}, run.model, run.spec.store)
    with TemporaryDirectory(prefix=".plan-", suffix=".tmp", dir=run.root) as folder, silenced():
        trial = replace(run, root=Path(folder), rows={"train": rows}, spec=spec, splits=["train"])
        entry, todo = trial.open({})
        read, compute = trial.steps(entry)

        def counted(part: Loaded, columns: Sequence[str]) -> Callable[[], Any]:
            nonlocal tokens
            tokens += part.padded
            return compute(part, columns)

        started = clock()
        compute_blocks(entry, todo, run.columns, read, counted)
        return clock() - started, tokens
