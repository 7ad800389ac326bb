"""The samples to which a readout is fitted, as streams of features and labels, wherever they are stored."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from reservoir.column import RAW, Columns, joined_name
from reservoir.readouts.linear import Block, RereadableBlocks
from reservoir.readouts.ridge import balance_raw
from reservoir_pipelines.fitting.entry_view import KnownSplit

S = TypeVar("S", bound=str)  # the splits that a source may read

MEMORY_BYTES = 2**28  # largest size of features of a split in memory


class Samples(ABC, Generic[S]):
    """The samples of some splits, in row order; they can be iterated any number of times."""

    feature_weights: np.ndarray | None = None  # (w,), if the raw input is one of several columns
    sample_weights: np.ndarray | None = None  # (n,), if samples have weights
    # (n, repeats), if folds are decided before the fit; else `assign_folds` draws them.
    fold_of_sample: np.ndarray | None = None

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """The columns side by side."""

    @property
    def name(self) -> str:
        """The name of the columns, as results show it."""
        return joined_name(self.columns)

    @abstractmethod
    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""

    def stream(self, split: S) -> RereadableBlocks:
        """Return the blocks of a split as a stream that can be iterated several times."""
        return RereadableBlocks(self.blocks, (split,))

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""

    @abstractmethod
    def width(self) -> int:
        """Return the number of features of a sample."""

    @abstractmethod
    def labels(self, split: S) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""

    @abstractmethod
    def counts(self, split: S) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""

    @abstractmethod
    def groups(self, split: S) -> np.ndarray | None:
        """Return the group of each row, (rows,); None if the rows have no groups."""


Source: TypeAlias = Samples[KnownSplit]


def balance_of(columns: Columns, widths: Sequence[int]) -> np.ndarray | None:
    """Return the weight of each feature of columns side by side, (w,); None unless the raw input is one of them."""
    is_raw = [column == RAW for column in columns]
    if len(columns) == 1 or not any(is_raw):
        return None
    return balance_raw(np.repeat(is_raw, widths))


def in_memory_if_small(stream: RereadableBlocks) -> Iterable[Any]:
    """Return the blocks of a stream as a list if they fit `MEMORY_BYTES`, because a fit reads them often."""
    blocks, size = [], 0
    for block in stream:
        size += block[0].nbytes
        if size > MEMORY_BYTES:
            return stream
        blocks.append(block)
    return blocks
