"""Moments of cached columns: computed in ranges of shards, here or in other processes, and stored in their entry.

A column is cut into ranges of about 65,536 samples, by its size alone. Each range is one piece of work: it opens the
entry, reads its shards and returns moments, which are added up in the order of the ranges. So the result does not
depend, to the last bit, on the number of processes, and memory does not grow with the rows. (Other processes use one
thread each; with more threads, the rounding of float32 products differs.)
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reservoir_cache import Entry, FeatureStore, load_arrays, save_arrays
from threadpoolctl import threadpool_limits

from reservoir.readouts import Moments, Targets, add_folds, partial_moments, training_moments
from reservoir.readouts.device import Arithmetic, arithmetic, products_on
from reservoir_pipelines.fitting.sources import ColumnSource, Source, assign_folds, with_numbers
from reservoir_pipelines.output import notify
from reservoir_pipelines.workers import map_pieces

RANGE_SAMPLES = 65_536
MOST_BYTES = 2**29  # of moments that other processes may return at once

Range = tuple[str, int, int]
"""A split, its first shard, and the end of its shards."""


@dataclass(frozen=True)
class ColumnMoments:
    """The moments of a column in its entry: of all training samples, or of each fold of train and valid."""

    source: ColumnSource
    targets: Targets
    folds: int = 0

    @property
    def entry(self) -> Entry:
        """The entry that stores them."""
        return self.source.store.entry

    def load(self) -> list[Moments] | None:
        """Return the moments of each fold from the entry; None if any is missing or damaged."""
        found = [load_arrays(self.entry, name) for name in self._names()]
        return [Moments.from_arrays(part[0]) for part in found if part] if all(found) else None

    def save(self, moments: Sequence[Moments]) -> None:
        """Write the moments of all folds into the entry."""
        for name, part in zip(self._names(), moments, strict=True):
            save_arrays(self.entry, name, part.to_arrays(), {"columns": [self.source.column]})

    def ranges(self) -> list[Range]:
        """Return the ranges of shards into which the column is cut, as even as the shards allow."""
        cut: list[Range] = []
        for split in ("train", "valid") if self.folds else ("train",):
            shards = len(self.entry.blocks(split))
            number = min(shards, -(-len(self.source.labels(split)) // RANGE_SAMPLES))
            bounds = np.linspace(0, shards, number + 1).round().astype(int).tolist()
            cut += [(split, start, stop) for start, stop in itertools.pairwise(bounds)]
        return cut

    def bytes(self) -> int:
        """Return the size of the moments of one range."""
        return 8 * self.source.width() ** 2 * max(1, self.folds)

    def _names(self) -> list[str]:
        weights = self.targets.class_weights
        # The weights depend on the splits that were counted, so moments of other weights have other names.
        weighted = f"-weighted{hashlib.sha256(repr(weights).encode()).hexdigest()[:8]}" if weights else ""
        column = self.source.column.replace("/", "-")
        if not self.folds:
            return [f"train{weighted}-{column}"]
        return [f"fold{k}of{self.folds}{weighted}-{column}" for k in range(self.folds)]


def column_moments(source: Source, targets: Targets, folds: int = 0) -> ColumnMoments | None:
    """Return the moments of a source, if it is a cached column with many more samples than features; else None.

    Below four samples per feature the float64 moments are larger than the float16 features that they would spare
    reading, and a kernel matrix may be cheaper; joined columns and the raw input are read from their streams.
    """
    if not isinstance(source, ColumnSource):
        return None
    samples = sum(len(source.labels(split)) for split in (("train", "valid") if folds else ("train",)))
    return ColumnMoments(source, targets, folds) if samples > 4 * source.width() else None


def load_or_compute(wanted: ColumnMoments | None) -> list[Moments] | None:
    """Return the moments of each fold of a column, computed only if the entry does not have them."""
    if wanted is None:
        return None
    return wanted.load() or next(compute_moments([wanted]))


def compute_moments(
    wanted: Iterable[ColumnMoments], *, workers: int = 0, scheduler: str | None = None
) -> Iterator[list[Moments]]:
    """Compute and save the moments of columns, here or in other processes (see `map_pieces`); yield those of each."""
    columns = list(wanted)
    jobs = [(column, part) for column in columns for part in column.ranges()]
    results = _results(jobs, workers, scheduler)
    for column in columns:
        moments = add_folds(itertools.islice(results, len(column.ranges())), max(1, column.folds))
        column.save(moments)
        yield moments


def range_moments(
    entry: Path, column: str, part: Range, targets: Targets, folds: int, place: Arithmetic, threads: int | None
) -> dict[int, Moments]:
    """Return the moments of some shards of a column by fold (0 without folds), using so many ``threads``."""
    source = ColumnSource(FeatureStore(entry), column)
    split, start, stop = part
    blocks = source.blocks(split, start, stop)
    with products_on(place), threadpool_limits(threads):
        if not folds:
            return {0: training_moments(blocks, targets)}
        before = len(source.labels("train")) if split == "valid" else 0
        first = before + int(source.counts(split)[: source.store.entry.blocks(split)[start][0]].sum())
        return partial_moments(with_numbers(blocks, assign_folds(source, folds, targets.classes)[first:]), targets)


def _results(
    jobs: list[tuple[ColumnMoments, Range]], workers: int, scheduler: str | None
) -> Iterator[dict[int, Moments]]:
    """Yield the result of each job in order; so many run at once that their results fit into memory."""
    alone = workers <= 1 and scheduler is None
    while jobs:
        sizes = itertools.accumulate(column.bytes() for column, _ in jobs)
        number = 1 if alone else max(1, sum(size <= MOST_BYTES for size in sizes))
        settings = arithmetic(), None if alone else 1
        tasks = [
            (column.entry.path.resolve(), column.source.column, part, column.targets, column.folds, *settings)
            for column, part in jobs[:number]
        ]
        yield from map_pieces(range_moments, tasks, workers=workers, scheduler=scheduler, notify=notify)
        jobs = jobs[number:]
