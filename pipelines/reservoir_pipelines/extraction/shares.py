"""Blocks of an extraction shared among processes; each loads the model once and publishes its own shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from reservoir_cache import Entry

from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.options import ClusterOptions, ExtractOptions
from reservoir.reservoir import full_name
from reservoir_pipelines.extraction.run import Run, compute_blocks, start_run
from reservoir_pipelines.output import notify, silenced
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.workers import check_versions, map_pieces, program_versions, this_worker

TASK_BLOCKS, MOST_TASKS = 8, 512
"""Blocks per task; fewer where that would make fewer than `MOST_TASKS` tasks."""

PROBE_ROWS, PROBE_TOLERANCE = 2, 0.02
"""Rows that every worker of a cluster computes first, and the largest difference, in standard deviations of a column.

bfloat16 on another kind of processor differs by far less, another pooling by far more.
"""

_runs: dict[str, Run] = {}
_one_pass = threading.Lock()  # a forward pass takes blocks out of the backbone, so one runs at a time


@dataclass(frozen=True)
class Share:
    """A call of extract as a worker repeats it; its cache key must equal ``key``."""

    task: str
    options: ExtractOptions
    prepared: Path
    key: str
    threads: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    probe: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def share_blocks(
    run: Run,
    entry: Entry,
    todo: Sequence[tuple[str, int]],
    options: ExtractOptions,
    cluster: ClusterOptions,
    advance: Callable[[int], None],
) -> int:
    """Have other processes compute the blocks that an entry lacks; return the rows that they computed.

    Blocks of a worker that dies go to another worker; published blocks are not computed again.
    """
    size = min(TASK_BLOCKS, -(-len(todo) // MOST_TASKS) or 1)
    init = Path(options.init or "")
    full = replace(  # full paths, for processes that were started in another folder
        options,
        data=options.data and options.data.resolve(),
        backbone=options.backbone and full_name(options.backbone),
        init=str(init.resolve()) if options.init and init.is_dir() else options.init,
        cache=run.root.resolve(),
    )
    share = Share(
        task=run.call["task"],
        options=full,
        prepared=run.prepared.path.resolve(),
        key=entry.key,
        threads=max(1, torch.get_num_threads() // cluster.workers) if cluster.workers else None,
        versions=program_versions() if cluster.scheduler else {},
        probe=probe(run) if cluster.scheduler else {},
    )
    _runs[entry.key] = run  # this process has loaded the model already
    starts = range(0, len(todo), size)
    tasks = [(share, entry.path.resolve(), run.columns, todo[start : start + size]) for start in starts]
    try:
        places = {"workers": cluster.workers, "scheduler": cluster.scheduler}
        return sum(map_pieces(work, tasks, **places, done=advance, notify=notify))
    finally:
        del _runs[entry.key]


def work(share: Share, path: Path, columns: tuple[str, ...], blocks: Sequence[tuple[str, int]]) -> int:
    """Compute and publish some blocks of an entry; return the number of their rows."""
    with _one_pass, silenced():
        run, entry = _runs.get(share.key) or _open(share), Entry.open(path)
        return compute_blocks(entry, blocks, columns, partial(run.forward, entry.layout))


def _open(share: Share) -> Run:
    """Load the model in this process, once; raise `InputError` if it is another one than the caller's."""
    check_versions(share.versions)
    if share.threads:
        torch.set_num_threads(share.threads)
    prepared = Prepared.open(share.prepared, verify=False)  # the caller has verified it
    assert share.options.cache
    run = start_run(share.task, share.options, prepared, share.options.cache)
    if run.spec.key != share.key:
        raise InputError(
            f"the worker's cache key {run.spec.key[:16]} differs from {share.key[:16]}: another model, data, precision "
            "or version of this program. Give all workers the same, and name --compute"
        )
    found = probe(run) if share.probe else {}
    for column, (mean, deviation) in share.probe.items():
        difference = max(abs(found[column][0] - mean), abs(found[column][1] - deviation))
        if difference > PROBE_TOLERANCE * max(deviation, 1e-6):
            raise InputError(
                f"{this_worker()}: its features of {column} differ from those of the process that started the command; "
                "install the same version of reservoir everywhere"
            )
    _runs.clear()
    _runs[share.key] = run
    return run


def probe(run: Run) -> dict[str, tuple[float, float]]:
    """Return the mean and the standard deviation of each column over a few rows, computed by this process."""
    split, index = next(iter(run.rows.items()))
    part = run.prepared.split(split).take(index[:PROBE_ROWS])
    values = forward(run.model, run.prepared.scaling, part.x, part.lengths, run.columns, len(part.lengths))
    return {column: (float(array.mean()), float(array.std())) for column, array in values.items()}
