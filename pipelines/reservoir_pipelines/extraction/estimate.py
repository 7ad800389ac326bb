"""The stage ``plan``: the time, disk and memory of an extraction, estimated from a short trial."""

import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from reservoir_cache import required_bytes, temporary_folder

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

clock, processor = time.perf_counter, time.process_time  # of wall time, and of processor time

SECONDS = 4.0  # fewest seconds of the trial: of processor time, or on a GPU of wall time
BLOCKS = 64  # most blocks of the trial
BUSY = 0.5  # load as a share of the cores above which the wall time of a trial is not used
QUEUED = 8  # blocks in memory, counted as float32: four waiting or in computation, four encoded ones
ROW = 8  # bytes of a row number


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """The cost of an extraction, as `plan` predicts it.

    Parameters
    ----------
    task, backbone : str
        The task, and the model with its input layer.
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
    """Time a part of an extraction for some seconds and predict the whole; only the prepared data is kept.

    Parameters
    ----------
    task, options : str, ExtractOptions
        Those of the extraction.
    rows : int, optional
        Rows of all splits together, divided among the splits as the data is; by default those of the data.
    workers : int
        Number of workers like this process.
    """
    for name, value in (("rows", rows), ("workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"--{name} {value}: give a whole number of at least 1")
    # 1. Prepare the data and load the model. The load average is read first, because the trial is a load, too.
    started, root = _now(), cache_root(options.cache)
    load_average, cores = os.getloadavg()[0], os.cpu_count() or 1
    prepared = prepare(task, options, cache=root, model=options)
    if prepared.task.labels_text_tokens or options.each_token:
        raise InputError(
            f"{prepared.task.name}: words or tokens of texts are the rows, and their time is not estimated",
            "extract with --limit, and see how long it takes",
        )
    present_rows = {split: min(count, options.limit or count) for split, count in prepared.rows.items()}
    rows = rows or sum(present_rows.values())
    assumed_rows = _divided_rows(rows, present_rows)
    extractor = load_extractor(options, prepared, root, assumed_rows=assumed_rows)
    notify(*extractor.notes)
    loading, layout = _now() - started, extractor.layout
    notify(f"plan: model loaded in {loading.wall:.0f} s; timing it for about {2 * SECONDS:.0f} s")
    is_busy = load_average > BUSY * cores
    if is_busy:
        problem = f"the machine is busy (a load of {load_average:.1f} on {cores} cores)"
        notify(f"plan: {problem}; the wall time is that of an idle machine, and will be longer here")
    # 2. Measure: the lengths of sequences, the time of a trial, and then the memory that it has needed.
    sample = _sample(extractor)
    on_gpu = devices.on_gpu(extractor.model.device)
    trial, trial_rows = _timed_trial(extractor, on_gpu=on_gpu)
    # The wall time of a trial depends on the load, its processor time hardly.
    wall, loading_wall = trial.wall, loading.wall
    if is_busy and not on_gpu:
        wall, loading_wall = trial.processor / torch.get_num_threads(), loading.processor
    memory = _peak_memory(extractor)
    # The process that starts the workers holds labels and lengths of all rows; a worker only their numbers.
    starter_memory = memory + rows * (ROW + sample.label_bytes)
    # 3. Each worker loads the model and then computes its share of the rows.
    return Estimate(
        task=prepared.task.name,
        backbone=extractor.title,
        rows=rows,
        columns=len(extractor.columns),
        tokens=sample.tokens,
        padding=sample.padding,
        rows_per_second=trial_rows / wall,
        workers=workers,
        processor_seconds=loading.processor * workers + rows * trial.processor / trial_rows,
        seconds=loading_wall + rows * wall / (trial_rows * workers),
        load=load_average,
        bytes=required_bytes(extractor.spec, layout, assumed_rows, extractor.shapes),
        files=sum(map(layout.count, assumed_rows.values())),
        memory=starter_memory if workers == 1 else memory + rows * ROW,  # a single process does both
        starter_memory=starter_memory,
        device=str(extractor.model.device),
        compute=extractor.model.compute,
    )


def _divided_rows(rows: int, present_rows: Mapping[str, int]) -> dict[str, int]:
    """Return how many of ``rows`` rows each split would have, rounded up, in proportion to the present rows."""
    total = sum(present_rows.values())
    return {split: -(-count * rows // total) for split, count in present_rows.items()}


@dataclass(frozen=True)
class _Sample:
    """Means over some training rows."""

    tokens: float  # mean tokens of a row
    padding: float  # share of padding in the tokens of a batch
    label_bytes: int  # bytes of the labels and the length of a row


def _sample(extractor: Extractor) -> _Sample:
    """Return the means over random training rows."""
    layout = extractor.layout
    # As many rows as the extraction reads at a time, among which it sorts rows of similar lengths into batches.
    row_numbers = np.random.default_rng(0).permutation(extractor.rows["train"])[: layout.offset_rows]
    part = extractor.prepared.split("train").take(np.sort(row_numbers))
    loaded = load(extractor.model, extractor.prepared.scaling, part.x, part.lengths, layout.batch_rows)
    padded_tokens = sum(len(batch.rows) * batch.tokens for batch in loaded.batches)
    return _Sample(
        tokens=float(loaded.lengths.mean()),
        padding=1 - float(loaded.lengths.sum()) / padded_tokens,
        label_bytes=part.y[:1].nbytes + part.lengths[:1].nbytes,
    )


def _timed_trial(extractor: Extractor, *, on_gpu: bool) -> tuple["_Seconds", int]:
    """Extract more and more training rows until that takes `SECONDS`; return the last trial's time and rows."""
    train_rows = extractor.rows["train"]
    batch_rows, block_rows = extractor.layout.batch_rows, extractor.layout.block_rows
    # The trial reads batches of neighbouring rows, as an extraction does: single rows take ten times as long to read.
    # The batches are drawn at random, because the file may be sorted.
    stretches = np.split(train_rows, range(batch_rows, len(train_rows), batch_rows))
    order = np.random.default_rng(0).permutation(len(stretches))
    drawn_rows = np.concatenate([stretches[number] for number in order])
    most_rows = min(BLOCKS * block_rows, len(drawn_rows))
    rows = batch_rows
    seconds = _trial(extractor, np.sort(drawn_rows[:rows]))
    while (seconds.wall if on_gpu else seconds.processor) < SECONDS and rows < most_rows:
        rows = min(2 * rows, most_rows)
        seconds = _trial(extractor, np.sort(drawn_rows[:rows]))
    return seconds, min(rows, most_rows)  # there may be fewer training rows than a batch has


def _peak_memory(extractor: Extractor) -> int:
    """Return the bytes that this process would need at most in a long extraction; call it after a trial.

    They are bytes of the GPU if the model is on one, else of the host.
    """
    device = extractor.model.device
    if devices.on_gpu(device):
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which Linux gives in KiB
    # The peak of a short trial may lack the blocks that wait for the writer during a long extraction. With a GPU, they
    # wait in its memory until a thread of the writer copies them to the host (see `ColumnsOnGpu`). `QUEUED` counts
    # those that have been copied as well, so for a GPU the estimate is rather too high than too low.
    row_bytes = 4 * sum(tokens * width for tokens, width in extractor.shapes.values())  # of float32
    return peak + QUEUED * extractor.layout.block_rows * row_bytes


@dataclass(frozen=True)
class _Seconds:
    """A time, or the time between two, by two clocks."""

    wall: float
    processor: float  # of all threads

    def __sub__(self, other: "_Seconds") -> "_Seconds":
        return _Seconds(self.wall - other.wall, self.processor - other.processor)


def _now() -> _Seconds:
    """Return the present time."""
    return _Seconds(clock(), processor())


def _trial(extractor: Extractor, rows: np.ndarray) -> _Seconds:
    """Extract the training rows of these numbers into a temporary folder; return how long computing them took."""
    trial_rows = {"train": rows}
    data = data_spec(extractor.prepared, trial_rows)
    spec = model_spec(extractor.model, extractor.prepared.task.to_dict(), data, extractor.spec.store)
    with temporary_folder(extractor.root / "plan") as folder, silenced():
        trial = replace(extractor, root=folder, rows=trial_rows, spec=spec, splits=["train"])
        entry, _ = trial.open({})
        started = _now()
        trial.compute(entry)
        return _now() - started
