"""The stage ``extract``: one frozen forward pass over a task, its pooled hidden states cached to HDF5."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reservoir_cache import FeatureStore, folder_bytes

from reservoir.options import ClusterOptions, ExtractOptions
from reservoir_pipelines.extraction.receipts import recall, remember, request_of
from reservoir_pipelines.output import Record, meter, notify
from reservoir_pipelines.preparation.prepare import prepare_for_model
from reservoir_pipelines.workspace import cache_root

if TYPE_CHECKING:
    from reservoir_cache import SplitFeatures

    from reservoir.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Extraction(Record):
    """What `extract` computed or found in the cache.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    rows : dict of str to int
        Rows of each split.
    columns : tuple of str
        The columns, such as ``block06/mean``.
    bytes : int
        Size of the entry on disk.
    seconds : float
        Wall time of the call.
    reused : bool
        True if everything was cached already and no forward pass ran.
    computed_rows : int
        Rows that went through the model in this call.
    """

    entry: Path
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float
    reused: bool
    computed_rows: int

    @property
    def store(self) -> FeatureStore:
        """The cached features."""
        return FeatureStore(self.entry)

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.splits)


def resolved_plan(task: str, options: ExtractOptions) -> Plan:
    """Return the plan of an extraction, each option with its value and the reason for it; nothing is computed.

    The data is prepared if it is not yet.
    """
    from reservoir_pipelines.extraction.run import plan_of  # which imports torch

    options, prepared = prepare_for_model(task, options, cache_root(options.cache))
    return plan_of(prepared, options)


def extract(
    task: str,
    options: ExtractOptions,
    cluster: ClusterOptions = ClusterOptions(),
    *,
    splits: Sequence[str] | None = None,
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Whatever is cached already is reused: a finished extraction runs nothing, an interrupted one goes on, a new column
    is added without computing the others again. The same options give the same bytes, however often it was stopped.
    """
    started = time.monotonic()
    root = cache_root(options.cache)
    options, prepared = prepare_for_model(task, options, root)
    for note in prepared.notes():
        notify(note)
    request = request_of(prepared, options, splits)
    if found := recall(root, request):
        entry, columns, computed = *found, 0
    else:
        from reservoir_pipelines.extraction.run import row_count, start_run  # which imports torch
        from reservoir_pipelines.extraction.shares import share_blocks

        run = start_run(task, options, prepared, root, splits)
        entry, todo = run.open()
        with meter("extract", row_count(entry, todo)) as bar:
            shared = todo and (cluster.workers > 1 or cluster.scheduler)
            computed = share_blocks(run, entry, todo, options, cluster, bar.advance) if shared else 0
            computed += run.compute(entry, bar.advance)
        columns = run.columns
        remember(root, request, entry, columns, run.splits)
    if not computed:
        name = f"{prepared.task.name} x {entry.path.name.rpartition('-')[0]}"
        notify(f"{name}: everything is cached already in {entry.path}; no forward pass")
    return Extraction(
        entry=entry.path,
        rows={split: entry.spec.rows[split] for split in prepared.rows},
        columns=columns,
        bytes=folder_bytes(entry.path),
        seconds=round(time.monotonic() - started, 3),
        reused=computed == 0,
        computed_rows=computed,
    )
