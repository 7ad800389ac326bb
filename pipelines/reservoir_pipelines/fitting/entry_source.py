"""The samples of cached entries: columns, the raw input, and several of them side by side.

A source reads some splits of its entry, and has no way to the others. What selects gets sources of
train and valid; only `evaluate.py` makes sources of test rows.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from reservoir.column import RAW, Baseline, Column, Columns
from reservoir.errors import InputError
from reservoir.raw_input import raw_features
from reservoir.readouts.linear import Block, RereadableBlocks, has_labels, samples
from reservoir.tasks.task import Scaling, Task
from reservoir_pipelines.fitting.entry_view import EntryView, KnownSplit
from reservoir_pipelines.fitting.source import S, Samples, balance_of, in_memory_if_small

T = TypeVar("T", bound=str)
# Row numbers to read, by split; a split that has no row numbers is read whole.
SomeRows = Mapping[str, np.ndarray]
# A function of stored sequences and their lengths that returns features (rows, width) or (rows, tokens, width).
InputFeatures = Callable[[np.ndarray, np.ndarray], np.ndarray]

RAW_ROWS = 1024
IMAGE_ROWS = 64  # rows of photographs, whose files take megabytes


class EntrySamples(Samples[S]):
    """The samples of some splits of an entry, in row order."""

    view: EntryView[S]
    some: SomeRows | None = None

    @abstractmethod
    def on(self, views: Mapping[Path, EntryView[T]]) -> "EntrySamples[T]":
        """Return the samples of all rows of other splits, from views by the path of their entry."""

    def selected_rows(self, split: S) -> slice | np.ndarray:
        """Return the rows of a split to read: a slice of all rows, or row numbers."""
        return (self.some or {}).get(split, slice(None))

    def width(self) -> int:
        """Return the number of features of a sample."""
        return next(self.blocks(self.view.splits[0]))[0].shape[1]

    def labels(self, split: S) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""
        y = self.view[split].labels[self.selected_rows(split)]
        return y[has_labels(y)] if self.tokens() > 1 else y.reshape(len(y), -1)

    def counts(self, split: S) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""
        y = self.view[split].labels[self.selected_rows(split)]
        return has_labels(y).sum(axis=1) if self.tokens() > 1 else np.ones(len(y), int)

    def groups(self, split: S) -> np.ndarray | None:
        """Return the group of each row, (rows,); None if the rows have no groups."""
        groups = self.view.groups(split)
        return None if groups is None else groups[self.selected_rows(split)]


EntrySource: TypeAlias = EntrySamples[KnownSplit]


@dataclass(frozen=True)
class ColumnSource(EntrySamples[S]):
    """Samples of one cached column."""

    view: EntryView[S]
    column: Column
    some: SomeRows | None = field(default=None, compare=False)

    @property
    def columns(self) -> Columns:
        """The column alone."""
        return (self.column,)

    def on(self, views: Mapping[Path, EntryView[T]]) -> "ColumnSource[T]":
        """Return the samples of this column in other splits."""
        return ColumnSource(views[self.view.entry.path], self.column)

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield the samples of each shard, or of some rows."""
        part, selected = self.view[split], self.selected_rows(split)
        if isinstance(selected, np.ndarray):
            for rows in np.split(selected, range(RAW_ROWS, len(selected), RAW_ROWS)):
                yield samples(part.gather(self.column.name, rows), part.labels[rows])
            return
        for (low, high), values in zip(self.view.blocks(split), part.blocks(self.column.name), strict=True):
            yield samples(values, part.labels[low:high])

    def width(self) -> int:
        """Return the number of features of a sample."""
        tokens, width = self.view[self.view.splits[0]].shape(self.column.name)
        return tokens * width // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples per row: each readout token of a column of tokens is a sample."""
        part = self.view[self.view.splits[0]]
        readout_tokens = part.labels.shape[1]
        return readout_tokens if part.shape(self.column.name)[0] == readout_tokens else 1


@dataclass(frozen=True)
class RawSource(EntrySamples[S]):
    """Samples of the raw input, or of other ``features`` of it."""

    view: EntryView[S]
    baseline: Baseline = RAW
    features: InputFeatures | None = None
    some: SomeRows | None = field(default=None, compare=False)
    _memory: dict[str, Iterable[Any]] = field(init=False, default_factory=dict, compare=False)

    @property
    def columns(self) -> Columns:
        """The baseline alone."""
        return (self.baseline,)

    @property
    def task(self) -> Task:
        """The task of the prepared data."""
        return self.view.raw_task

    @property
    def scaling(self) -> Scaling | None:
        """From stored values to the values that the model reads; None for symbols."""
        return self.view.raw_scaling

    def on(self, views: Mapping[Path, EntryView[T]]) -> "RawSource[T]":
        """Return the same features of the raw input in other splits."""
        return RawSource(views[self.view.entry.path], self.baseline, self.features)

    def tokens(self) -> int:
        """Return 1, or the number of tokens if every token has a label."""
        return self.task.readout_tokens if self.task.each else 1

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""
        if split not in self._memory:
            self._memory[split] = in_memory_if_small(RereadableBlocks(self._computed, (split,)))
        yield from self._memory[split]

    def _computed(self, split: S) -> Iterator[Block]:
        features = self.features or partial(raw_features, self.task, self.scaling)
        labels, start = self.view[split].labels[self.selected_rows(split)], 0
        for x, lengths in self.rows(split):
            values = features(x, lengths)
            yield samples(values if values.ndim == 3 else values[:, None], labels[start : start + len(x)])
            start += len(x)

    def rows(self, split: S) -> Iterator[Block]:
        """Yield stored sequences (rows, tokens, ...) and their lengths (rows,), some at a time."""
        index, whole = self.view[split].index[self.selected_rows(split)], self.view.raw(split)
        step = IMAGE_ROWS if self.task.pictures else RAW_ROWS
        for start in range(0, len(index), step):
            read = whole.take(index[start : start + step])
            yield read.x, read.lengths


@dataclass(frozen=True)
class JoinedSource(EntrySamples[S]):
    """Samples of several columns, concatenated; they may come from several entries of the same rows."""

    parts: tuple[EntrySamples[S], ...]
    view: EntryView[S] = field(init=False)
    some: SomeRows | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "view", self.parts[0].view)
        object.__setattr__(self, "some", self.parts[0].some)

    @property
    def columns(self) -> Columns:
        """The columns in the order in which they are joined."""
        return tuple(column for part in self.parts for column in part.columns)

    def on(self, views: Mapping[Path, EntryView[T]]) -> "JoinedSource[T]":
        """Return the samples of the same columns in other splits."""
        return JoinedSource(tuple(part.on(views) for part in self.parts))

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of samples that end where a shard of any part ends."""
        streams = [part.blocks(split) for part in self.parts]
        while True:
            # Take the next block of each part, and of all of them as many rows as the shortest has.
            blocks = [block for stream in streams if (block := next(stream, None)) is not None]
            if not blocks:
                return
            rows = min(len(x) for x, _ in blocks)
            y = blocks[0][1][:rows]
            if len(blocks) < len(streams) or any(
                not np.array_equal(other[:rows], y) for _, other in blocks
            ):
                raise InputError(
                    f"{self.name}: the columns have different samples",
                    "join columns of one kind, extracted with the same --limit",
                )
            yield np.concatenate([x[:rows] for x, _ in blocks], axis=1), y
            # What is left of a longer block comes first in the next round.
            for number, (x, labels) in enumerate(blocks):
                if len(x) > rows:
                    streams[number] = itertools.chain([(x[rows:], labels[rows:])], streams[number])

    def width(self) -> int:
        """Return the number of features of a sample."""
        return sum(part.width() for part in self.parts)

    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""
        return self.parts[0].tokens()

    @cached_property
    def feature_weights(self) -> np.ndarray | None:
        """The weight of each feature, (w,), if the raw input is one of the parts."""
        return balance_of(self.columns, [part.width() for part in self.parts])
