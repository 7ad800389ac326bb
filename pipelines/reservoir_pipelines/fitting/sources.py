"""Streams of (features, labels) for the readouts: of one cached column, or of several side by side."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir.readouts import Again, deal_folds, samples, there

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore


class Source(ABC):
    """Samples of the rows of an entry, of every split, streamed in row order as often as asked."""

    store: FeatureStore

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns it is made of, as results call them."""

    @abstractmethod
    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield features (m, width) of float32 and labels (m, outputs)."""

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of samples of a row, the most of any."""

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading a feature."""
        y = self.store[split].labels
        return y[there(y)] if self.tokens() > 1 else y.reshape(len(y), -1)

    def counts(self, split: str) -> np.ndarray:
        """Return the samples of each row, (rows,)."""
        y = self.store[split].labels
        return there(y).sum(axis=1) if self.tokens() > 1 else np.ones(len(y), int)

    def groups(self) -> np.ndarray | None:
        """Return the group of each row of train, then of valid; None where rows are in no groups."""
        return groups_of(self.store)


@dataclass(frozen=True)
class ColumnSource(Source):
    """Samples from one cached column, such as ``block06/mean``; ``title`` names it among those of several entries."""

    store: FeatureStore
    column: str
    title: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The column, under the name that tells its entry from others."""
        return (self.title or self.column,)

    def blocks(self, split: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of one shard at a time, of those numbered from ``start`` up to ``stop``."""
        part = self.store[split]
        ranges = self.store.entry.blocks(split)[start:stop]
        for (low, high), values in zip(ranges, part.blocks(self.column, start, stop), strict=True):
            yield samples(values, part.labels[low:high])

    def width(self) -> int:
        """Return the number of features of a sample."""
        tokens, width = self.store["train"].shape(self.column)
        return tokens * width // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples of a row: a column of the readout tokens is read token by token."""
        part = self.store["train"]
        readout_tokens = part.labels.shape[1]
        return readout_tokens if part.shape(self.column)[0] == readout_tokens else 1


@dataclass(frozen=True)
class JoinedSource(Source):
    """Samples from several columns side by side, also of several entries of the same rows."""

    parts: tuple[Source, ...]
    store: FeatureStore = field(init=False)

    def __post_init__(self) -> None:
        first = self.parts[0]
        object.__setattr__(self, "store", first.store)
        for part in self.parts[1:]:
            if part.tokens() != first.tokens():
                raise InputError(
                    f"columns {self.name}: one is read token by token, the other row by row; join like ones"
                )

    @property
    def name(self) -> str:
        """The names of the columns joined by a plus."""
        return "+".join(self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order in which they are joined."""
        return tuple(column for part in self.parts for column in part.columns)

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of one shard at a time, cut where any of the parts has a shard's end."""
        streams = [part.blocks(split) for part in self.parts]
        held = [next(stream) for stream in streams]
        while True:
            rows = min(len(x) for x, _ in held)
            if any(not np.array_equal(y[:rows], held[0][1][:rows]) for _, y in held):
                raise InputError(
                    f"columns {self.name}: the entries hold different rows; extract both with the same limit"
                )
            yield np.concatenate([x[:rows] for x, _ in held], axis=1), held[0][1][:rows]
            held = [(x[rows:], y[rows:]) for x, y in held]
            ended = 0
            for number, stream in enumerate(streams):
                if not len(held[number][0]):
                    following = next(stream, None)
                    ended += following is None
                    held[number] = following or held[number]
            if ended == len(streams):
                return
            if ended:
                raise InputError(f"columns {self.name}: the entries differ in rows; use the same limit")

    def tokens(self) -> int:
        """Return the number of samples of a row, the most of any."""
        return self.parts[0].tokens()


def groups_of(store: FeatureStore) -> np.ndarray | None:
    """Return the group of each row of train, then of valid, (rows,); None where rows are in no groups."""
    found = [groups for split in ("train", "valid") if (groups := store[split].groups) is not None]
    return np.concatenate(found) if len(found) == 2 else None


HELD_BYTES = 2**28


def hold(stream: Again) -> Iterable[Any]:
    """Return the blocks of a stream in memory where they are few; cross-validation passes over them many times."""
    blocks, size = [], 0
    for block in stream:
        size += block[0].nbytes
        if size > HELD_BYTES:
            return stream
        blocks.append(block)
    return blocks


def fold_blocks(
    source: Source, folds: int, classes: int, repeats: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all samples that are not test with the fold of each, (m,), or of each of several deals, (m, repeats)."""
    blocks = itertools.chain(source.blocks("train"), source.blocks("valid"))
    deals = [deal(source, folds, classes, repeat) for repeat in range(repeats)]
    yield from numbered(blocks, deals[0] if repeats == 1 else np.stack(deals, axis=1))


def deal(source: Source, folds: int, classes: int, repeat: int = 0) -> np.ndarray:
    """Return the fold of every sample of train, then of valid, (n,): dealt by groups or rows, evenly in each class."""
    labels = np.concatenate([source.labels(split) for split in ("train", "valid")])
    single = classes and source.tokens() == labels.shape[1] == 1
    counts = np.concatenate([source.counts(split) for split in ("train", "valid")])
    groups = source.groups()
    found = deal_folds(len(counts), folds, labels=labels[:, 0] if single else None, groups=groups, repeat=repeat)
    return np.repeat(found, counts)


def strata_blocks(source: Source, bounds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield training samples with the stretch of a learning curve to which each belongs, (m,).

    Stretch i holds the rows whose rank in a fixed shuffle is below bounds[i] and not below bounds[i - 1].
    """
    counts = source.counts("train")
    rank = np.random.default_rng(0).permutation(len(counts))
    stratum = np.repeat(np.searchsorted(bounds, rank, side="right"), counts)
    for x, y, part in numbered(source.blocks("train"), stratum):
        kept = part < len(bounds)
        if kept.any():
            yield x[kept], y[kept], part[kept]


def numbered(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks of samples with the number of each sample, from the numbers (n,) of all of them in order."""
    start = 0
    for x, y in blocks:
        yield x, y, numbers[start : start + len(x)]
        start += len(x)
