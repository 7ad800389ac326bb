"""The blocks of an extraction shared among processes: each loads the model once and publishes shards of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir_cache import Entry

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, FeatureOptions, PlaceOptions, ReservoirOptions, RowOptions
from reservoir.reservoir import full_name
from reservoir_pipelines.extraction.compute import missing_blocks
from reservoir_pipelines.extraction.run import Run, plan_run
from reservoir_pipelines.output import hushed
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.workers import map_pieces

TASK_BLOCKS, MOST_TASKS = 8, 512
"""Blocks that a worker takes at a time; fewer, where that would leave fewer tasks than these."""

_runs: dict[str, Run] = {}
_alone = threading.Lock()  # a pass takes blocks out of the backbone, so that no other may run in this process meanwhile


@dataclass(frozen=True)
class Call:
    """A call of extract as another process repeats it, which has to come to the same key, with so many threads."""

    task: str
    prepared: Path
    reservoir: ReservoirOptions
    source: RowOptions
    keep: FeatureOptions
    place: PlaceOptions
    key: str = ""
    threads: int | None = None


def share_blocks(run: Run, entry: Entry, call: Call, cluster: ClusterOptions, advance: Callable[[int], None]) -> int:
    """Have others compute the blocks that an entry lacks; return the rows that they did, the rest is left.

    Blocks that a worker leaves when it dies go to another, and what is published by then is not done again.
    """
    import torch

    todo = missing_blocks(entry, run.splits, run.columns)
    size = min(TASK_BLOCKS, -(-len(todo) // MOST_TASKS) or 1)
    threads = max(1, torch.get_num_threads() // cluster.workers) if cluster.workers else None
    root = run.root.resolve()
    backbone, init = call.reservoir.backbone, call.reservoir.init
    full = replace(
        call,
        task=run.call["task"],
        reservoir=replace(
            call.reservoir,
            backbone=backbone and full_name(backbone),
            init=str(Path(init).resolve()) if init and Path(init).is_dir() else init,
        ),
        prepared=run.prepared.path.resolve(),
        source=replace(call.source, data=call.source.data and call.source.data.resolve()),
        place=replace(call.place, cache=root),
        key=entry.key,
        threads=threads,
    )
    _runs[entry.key] = run  # this process has the model already
    tasks = [
        (full, entry.path.resolve(), run.columns, todo[first : first + size]) for first in range(0, len(todo), size)
    ]
    try:
        return sum(map_pieces(work, tasks, workers=cluster.workers, scheduler=cluster.scheduler, done=advance))
    finally:
        del _runs[entry.key]


def work(call: Call, path: Path, columns: tuple[str, ...], blocks: list[tuple[str, int]]) -> int:
    """Compute some blocks of an entry and publish them; return their rows."""
    with _alone, hushed():
        run = _runs.get(call.key) or _open(call)
        return run.compute_blocks(Entry.open(path), blocks, columns)


def _open(call: Call) -> Run:
    """Load the model of a call in this process, once, and refuse one that is not the caller's."""
    import torch

    if call.threads:
        torch.set_num_threads(call.threads)
    prepared = Prepared.open(call.prepared, verify=False)  # as whoever called has done
    assert call.place.cache
    run = plan_run(call.task, prepared, call.place.cache, call.reservoir, call.source, call.keep, call.place, None)
    if run.spec.key != call.key:
        raise InputError(
            f"a worker comes to another key, {run.spec.key[:16]} for {call.key[:16]}: its model, data, precision or "
            "version of this program differ; give all workers the same, and name --compute"
        )
    _runs.clear()
    _runs[call.key] = run
    return run
