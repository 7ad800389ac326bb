"""The stage ``plan``: the time, disk and memory of an extraction, estimated from a short trial."""

import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from reservoir_cache import required_bytes

from reservoir import devices
from reservoir.batches import load
from reservoir.errors import InputError
from reservoir.options import ExtractOptions
from reservoir_pipelines.extraction.extractor import Extractor, load_extractor
from reservoir_pipelines.extraction.spec import model_spec
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import data_spec

clock, processor = time.perf_counter, time.process_time

SECONDS = 4.0  # minimum seconds of the trial, of the processor or of a GPU's time
BLOCKS = 64  # most blocks of the trial
BUSY = 0.5  # load as a share of the cores above which the wall time of a trial is not used
QUEUED = 8  # float32 blocks in memory: four waiting or in computation, four encoded ones
ROW = 8  # bytes of a row number


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """The cost of an extraction, as `plan` predicts it.

    Parameters
    ----------
    task, backbone : str
    rows, columns : int
        Rows of all splits together, and columns of each row.
    tokens, padding : float
        Mean tokens of a row, and the share of padding in the tokens of a batch.
    rows_per_second, seconds : float
        Speed of one worker, including reading and writing, and wall time with all workers, both on an idle machine.
    processor_seconds : float
        Processor time of all workers together, which other work on the machine changes little.
    load : float
        Load average of the last minute before the trial. If it is high, wall time is derived from the processor
        time and the number of threads.
    workers : int
        Number of workers like this process; the time is assumed to be inversely proportional to it.
    bytes, files : int
        Size and number of shards on disk.
    memory, starter_memory : int
        Bytes in one worker, and in the process that starts the workers, which also holds all labels.
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
    processor_seconds: float
    seconds: float
    load: float
    bytes: int
    files: int
    memory: int
    starter_memory: int
    device: str
    compute: str


def plan(task: str, options: ExtractOptions, *, rows: int | None = None, workers: int = 1) -> Estimate:
    """Time a part of an extraction for some seconds and predict the whole; only the prepared data is kept."""
    for name, value in (("rows", rows), ("workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"--{name} {value}: give a whole number of at least 1")
    started, root = _now(), cache_root(options.cache)
    load_average, cores = os.getloadavg()[0], os.cpu_count() or 1
    prepared = prepare(task, options, cache=root, model=options)
    if prepared.task.labels_text_tokens or options.each_token:
        raise InputError(
            f"{prepared.task.name}: words or tokens of texts are the rows, and their time is not estimated",
            "extract with --limit, and see how long it takes",
        )
    shares = {split: min(count, options.limit or count) for split, count in prepared.rows.items()}
    present = sum(shares.values())
    rows = rows or present
    shares = {split: -(-count * rows // present) for split, count in shares.items()}
    extractor = load_extractor(options, prepared, root, assumed_rows=shares)
    notify(*extractor.notes)
    loading, layout = _now() - started, extractor.layout
    on_gpu, busy = devices.on_gpu(extractor.model.device), load_average > BUSY * cores
    notify(f"plan: model loaded in {loading.wall:.0f} s; timing it for about {2 * SECONDS:.0f} s")
    if busy:
        problem = f"the machine is busy (a load of {load_average:.1f} on {cores} cores)"
        notify(f"plan: {problem}; the wall time is that of an idle machine, and will be longer here")
    # Random rows, as many as are batched at a time, tell how long the sequences are and how much of a batch is padding.
    train_rows = extractor.rows["train"]
    sample = np.random.default_rng(0).permutation(train_rows)[: layout.offset_rows]
    part = prepared.split("train").take(np.sort(sample))
    block = load(extractor.model, prepared.scaling, part.x, part.lengths, layout.batch_rows)
    padded = sum(len(batch.rows) * batch.tokens for batch in block.batches)
    # The trial reads batches of neighbouring rows, as an extraction does: single rows take ten times as long to read.
    stretches = np.split(train_rows, range(layout.batch_rows, len(train_rows), layout.batch_rows))
    trial_rows = np.concatenate(
        [stretches[i] for i in np.random.default_rng(0).permutation(len(stretches))]
    )
    count, most = layout.batch_rows, min(BLOCKS * layout.block_rows, len(trial_rows))
    # The trial is doubled until it is long enough to be timed.
    spent = _trial(extractor, np.sort(trial_rows[:count]))
    while (spent.wall if on_gpu else spent.processor) < SECONDS and count < most:
        count = min(2 * count, most)
        spent = _trial(extractor, np.sort(trial_rows[:count]))
    count = min(count, most)
    # The wall time of a trial depends on the load, its processor time hardly.
    wall, start = spent.wall, loading.wall
    if busy and not on_gpu:
        wall, start = spent.processor / torch.get_num_threads(), loading.processor
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(extractor.model.device)
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The peak of a trial lacks the blocks that wait for the writer during a long extraction.
    peak += (
        QUEUED * 4 * layout.block_rows * sum(tokens * width for tokens, width in extractor.shapes.values())
    )
    # The process that starts the workers holds labels and lengths of all rows; a worker only their numbers.
    starter_memory = peak + rows * (ROW + part.y[:1].nbytes + part.lengths[:1].nbytes)
    return Estimate(
        task=prepared.task.name,
        backbone=extractor.title,
        rows=rows,
        columns=len(extractor.columns),
        tokens=float(block.lengths.mean()),
        padding=1 - float(block.lengths.sum()) / padded,
        rows_per_second=count / wall,
        workers=workers,
        processor_seconds=loading.processor * workers + rows * spent.processor / count,
        seconds=start + rows * wall / (count * workers),
        load=load_average,
        bytes=required_bytes(extractor.spec, layout, shares, extractor.shapes),
        files=sum(map(layout.count, shares.values())),
        memory=starter_memory if workers == 1 else peak + rows * ROW,
        starter_memory=starter_memory,
        device=str(extractor.model.device),
        compute=extractor.model.compute,
    )


@dataclass(frozen=True)
class _Seconds:
    """Wall time, and processor time of all threads."""

    wall: float
    processor: float

    def __sub__(self, other: "_Seconds") -> "_Seconds":
        return _Seconds(self.wall - other.wall, self.processor - other.processor)


def _now() -> _Seconds:
    return _Seconds(clock(), processor())


def _trial(extractor: Extractor, rows: np.ndarray) -> _Seconds:
    """Extract some training rows into a temporary folder; return the time."""
    drawn = {"train": rows}
    data = data_spec(extractor.prepared, drawn)
    spec = model_spec(extractor.model, extractor.prepared.task.to_dict(), data, extractor.spec.store)
    with TemporaryDirectory(prefix=".plan-", suffix=".tmp", dir=extractor.root) as folder, silenced():
        trial = replace(extractor, root=Path(folder), rows=drawn, spec=spec, splits=["train"])
        entry, _ = trial.open({})
        started = _now()
        trial.compute(entry)
        return _now() - started
