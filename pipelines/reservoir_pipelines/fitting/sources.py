"""Streams of features and labels for readouts: of a cached column, of the raw input, or of several side by side."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir.plan import RAW
from reservoir.raw_input import raw_features
from reservoir.readouts.folds import draw_folds
from reservoir.readouts.ridge import balance_raw
from reservoir.readouts.targets import RereadableBlocks, has_labels, samples

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW_ROWS = 1024
PICTURE_ROWS = 64  # of photographs, whose files have megabytes
MEMORY_BYTES = 2**28  # of features that cross-validation keeps in memory


class Source(ABC):
    """The samples of each split of an entry, in row order; they can be iterated any number of times."""

    store: FeatureStore

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, as results show them."""

    @abstractmethod
    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of samples per row; where rows differ, the largest."""

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""
        y = self.store[split].labels
        return y[has_labels(y)] if self.tokens() > 1 else y.reshape(len(y), -1)

    def counts(self, split: str) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""
        y = self.store[split].labels
        return has_labels(y).sum(axis=1) if self.tokens() > 1 else np.ones(len(y), int)


@dataclass(frozen=True)
class ColumnSource(Source):
    """Samples of one cached column, such as ``block06/mean``; ``title`` is its name among those of several entries."""

    store: FeatureStore
    column: str
    title: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The title, or else the name of the column."""
        return (self.title or self.column,)

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of each shard."""
        part = self.store[split]
        for (low, high), values in zip(self.store.entry.blocks(split), part.blocks(self.column), strict=True):
            yield samples(values, part.labels[low:high])

    def width(self) -> int:
        """Return the number of features of a sample."""
        tokens, width = self.store["train"].shape(self.column)
        return tokens * width // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples per row: each readout token of a column of tokens is a sample."""
        part = self.store["train"]
        readout_tokens = part.labels.shape[1]
        return readout_tokens if part.shape(self.column)[0] == readout_tokens else 1


@dataclass(frozen=True)
class RawSource(Source):
    """Samples of the raw input."""

    prepared: Prepared
    store: FeatureStore

    @property
    def columns(self) -> tuple[str, ...]:
        """The name of the raw input."""
        return (RAW,)

    def tokens(self) -> int:
        """Return 1, or the number of tokens where each token has a label of its own."""
        return self.prepared.task.readout_tokens if self.prepared.task.each else 1

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""
        part, whole = self.store[split], self.prepared.split(split)
        step = PICTURE_ROWS if self.prepared.task.pictures else RAW_ROWS
        for start in range(0, part.rows, step):
            read = whole.take(part.index[start : start + step])
            x = raw_features(self.prepared.task, self.prepared.scaling, read.x, read.lengths)
            yield samples(x if x.ndim == 3 else x[:, None], part.labels[start : start + step])


@dataclass(frozen=True)
class JoinedSource(Source):
    """Samples of several columns side by side, which may come from several entries of the same rows."""

    parts: tuple[Source, ...]
    store: FeatureStore = field(init=False)

    def __post_init__(self) -> None:
        first = self.parts[0]
        object.__setattr__(self, "store", first.store)
        for part in self.parts[1:]:
            if part.tokens() != first.tokens():
                names = "+".join(self.columns)
                raise InputError(f"{names}: one has a sample per token, another one per row; join columns of one kind")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order in which they are joined."""
        return tuple(column for part in self.parts for column in part.columns)

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of samples that end where a shard of any part ends."""
        streams = [part.blocks(split) for part in self.parts]
        while True:
            blocks = [next(stream, None) for stream in streams]
            if all(block is None for block in blocks):
                return
            found = [block for block in blocks if block is not None]
            rows = min(len(x) for x, _ in found)
            y = found[0][1][:rows]
            if len(found) < len(streams) or any(not np.array_equal(other[:rows], y) for _, other in found):
                names = "+".join(self.columns)
                raise InputError(f"{names}: the entries hold different rows; extract both with the same --limit")
            yield np.concatenate([x[:rows] for x, _ in found], axis=1), y
            for number, (x, labels) in enumerate(found):
                if len(x) > rows:
                    streams[number] = itertools.chain([(x[rows:], labels[rows:])], streams[number])

    def tokens(self) -> int:
        """Return the number of samples per row; where rows differ, the largest."""
        return self.parts[0].tokens()


def emphasis_of(source: Source) -> np.ndarray | None:
    """Return the weight of each feature, (w,), for columns joined with the raw input; else None."""
    if not isinstance(source, JoinedSource) or not any(isinstance(part, RawSource) for part in source.parts):
        return None
    sides = [np.full(next(part.blocks("train"))[0].shape[1], isinstance(part, RawSource)) for part in source.parts]
    return balance_raw(np.concatenate(sides))


def groups_of(store: FeatureStore) -> np.ndarray | None:
    """Return the group of each row of train, then of valid, (rows,); None where the rows have no groups."""
    found = [groups for split in ("train", "valid") if (groups := store[split].groups) is not None]
    return np.concatenate(found) if len(found) == 2 else None


def in_memory_if_small(stream: RereadableBlocks) -> Iterable[Any]:
    """Return the blocks of a stream as a list if they are few, since cross-validation iterates them many times."""
    blocks, size = [], 0
    for block in stream:
        size += block[0].nbytes
        if size > MEMORY_BYTES:
            return stream
        blocks.append(block)
    return blocks


def fold_blocks(
    source: Source, folds: int, classes: int, repeats: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all samples of train and valid with the fold of each: (m,), or (m, repeats) of repeated assignments."""
    blocks = itertools.chain(source.blocks("train"), source.blocks("valid"))
    numbers = [assign_folds(source, folds, classes, repeat) for repeat in range(repeats)]
    yield from with_numbers(blocks, numbers[0] if repeats == 1 else np.stack(numbers, axis=1))


def assign_folds(source: Source, folds: int, classes: int, repeat: int = 0) -> np.ndarray:
    """Return the fold of every sample of train, then of valid, (n,).

    Samples of a row, and rows of a group, share a fold. If rows have one label each, folds are stratified by class.
    """
    labels = np.concatenate([source.labels(split) for split in ("train", "valid")])
    single = classes and source.tokens() == labels.shape[1] == 1
    counts = np.concatenate([source.counts(split) for split in ("train", "valid")])
    of = labels[:, 0] if single else None
    found = draw_folds(len(counts), folds, labels=of, groups=groups_of(source.store), repeat=repeat)
    return np.repeat(found, counts)


def stage_blocks(source: Source, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield training samples with the stage of a learning curve that adds each, (m,).

    Stage i holds the rows whose rank in a fixed shuffle is below sizes[i] and not below sizes[i - 1].
    """
    counts = source.counts("train")
    rank = np.random.default_rng(0).permutation(len(counts))
    stages = np.repeat(np.searchsorted(sizes, rank, side="right"), counts)
    for x, y, stage in with_numbers(source.blocks("train"), stages):
        used = stage < len(sizes)
        if used.any():
            yield x[used], y[used], stage[used]


def with_numbers(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks of samples with the number of each sample, from the numbers (n,) of all samples in order."""
    start = 0
    for x, y in blocks:
        yield x, y, numbers[start : start + len(x)]
        start += len(x)
