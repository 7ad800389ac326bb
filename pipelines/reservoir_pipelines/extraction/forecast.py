"""The stage ``plan``: the time, disk and memory that an extraction will take, from a trial of some seconds."""

import resource
import time
from dataclasses import dataclass

import numpy as np
import torch
from reservoir_cache import required_bytes

from reservoir import devices
from reservoir.features import Loaded, launch, load
from reservoir.options import ExtractOptions
from reservoir_pipelines.extraction.run import Run, start_run
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.preparation.prepare import prepare

clock = time.perf_counter

SECONDS, REPEATS = 2.0, 3  # minimum seconds of a trial, and the number of trials, whose median is used
QUEUED = 6  # blocks in memory at a time: four that wait for the writer, one being written, and one being computed


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
        Speed of one worker.
    workers : int
        Workers like this process, which are assumed to lose no time.
    seconds : float
        Wall time with all workers.
    bytes : int
        Size on disk.
    memory : int
        Bytes in one worker: what it holds now, and the blocks on their way to the disk.
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
    memory: int
    device: str
    compute: str


def plan(task: str, options: ExtractOptions, *, rows: int | None = None, workers: int = 1) -> Forecast:
    """Time some seconds of an extraction and predict the whole of it; only the prepared data is written."""
    started, root = clock(), cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    run = start_run(options, prepared, root)
    loading = clock() - started
    notify(f"plan: data and model loaded in {loading:.0f} s; timing the model for about {SECONDS * REPEATS:.0f} s")
    present, count = sum(run.spec.rows.values()), run.layout.batch_rows
    rows = rows or present
    block = _sample(run, run.layout.block_rows)
    padded, tokens = block.padded / len(block.lengths), float(block.lengths.mean())
    found: list[float] = []  # seconds per token of each trial, on more and more rows until one is long enough
    while len(found) < REPEATS:
        started = clock()
        sample = _sample(run, count, len(found))
        launch(run.model, sample, run.columns)()
        seconds = clock() - started
        if seconds >= SECONDS or len(sample.lengths) < count or count >= run.layout.block_rows:
            found.append(seconds / sample.padded)
        else:
            count = min(run.layout.block_rows, max(2 * count, int(count * SECONDS / max(seconds, 1e-3))))
    speed = 1 / (sorted(found)[REPEATS // 2] * padded)
    if devices.on_gpu(run.model.device):
        peak = torch.cuda.max_memory_allocated(run.model.device)
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shares = {split: -(-count * rows // present) for split, count in run.spec.rows.items()}
    block = 4 * run.layout.block_rows * sum(kept * width for kept, width in run.shapes.values())
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
        bytes=required_bytes(run.spec, run.layout, shares, run.shapes),
        memory=peak + QUEUED * block,
        device=str(run.model.device),
        compute=run.model.compute,
    )


def _sample(run: Run, count: int, seed: int = 0) -> Loaded:
    """Return batches of ``count`` random training rows."""
    known = run.rows["train"]
    drawn = np.random.default_rng(seed).choice(known, min(count, len(known)), replace=False)
    part = run.prepared.split("train").take(np.sort(drawn))
    return load(run.model, run.prepared.scaling, part.x, part.lengths, run.layout.batch_rows)
