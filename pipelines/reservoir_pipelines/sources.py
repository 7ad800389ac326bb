"""Streams of (features, labels) for the readouts: of one cached column, or of several side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from reservoir import InputError
from reservoir.readouts import samples

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore


class Source(Protocol):
    """Samples of every split, streamed in row order as often as asked."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it is made of."""
        ...

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield features (m, width) of float32 and labels (m, outputs)."""
        ...

    def outputs(self) -> int:
        """Return the number of labels of a sample."""
        ...

    def tokens(self) -> int:
        """Return the number of samples of a row."""
        ...


@dataclass(frozen=True)
class ColumnSource:
    """Samples from one cached column.

    Parameters
    ----------
    store : FeatureStore
        The cache entry.
    column : str
        The column, such as ``block06/mean``.
    title : str, default ""
        Its name among the columns of several entries.
    """

    store: FeatureStore
    column: str
    title: str = ""

    @property
    def name(self) -> str:
        """The column, under the name that tells its entry from others."""
        return self.title or self.column

    @property
    def columns(self) -> tuple[str, ...]:
        """The column itself."""
        return (self.name,)

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of one shard at a time."""
        part, start = self.store[split], 0
        for values in part.blocks(self.column):
            yield samples(values, part.y[start : start + len(values)])
            start += len(values)

    def outputs(self) -> int:
        """Return the number of labels of a sample."""
        _, readout_tokens, outputs = self.store["train"].y.shape
        return readout_tokens * outputs // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples of a row: a column of the readout tokens is read token by token."""
        part = self.store["train"]
        readout_tokens = part.y.shape[1]
        return readout_tokens if part.shape(self.column)[0] == readout_tokens else 1


@dataclass(frozen=True)
class JoinedSource:
    """Samples from several columns side by side, also of several entries of the same rows.

    Parameters
    ----------
    parts : tuple of Source
        At least one.

    Raises
    ------
    InputError
        If the columns are not of the same rows, or are not read alike.
    """

    parts: tuple[Source, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
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

    def outputs(self) -> int:
        """Return the number of labels of a sample."""
        return self.parts[0].outputs()

    def tokens(self) -> int:
        """Return the number of samples of a row."""
        return self.parts[0].tokens()


@dataclass(frozen=True)
class SplitBlocks:
    """The samples of one split, as often as they are iterated.

    Parameters
    ----------
    source : Source
        The samples.
    split : str
        The split.
    """

    source: Source
    split: str

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self.source.blocks(self.split)


def fold_blocks(source: Source, folds: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all samples that are not test with the fold of each, for cross-validation.

    Rows are dealt to the folds by a fixed shuffle, all samples of a row to the same one.

    Parameters
    ----------
    source : Source
        The samples.
    folds : int
        Number of folds.

    Yields
    ------
    tuple of (ndarray (m, width), ndarray (m, outputs), ndarray of int (m,))
    """
    for number, split in enumerate(("train", "valid")):
        yield from _dealt(source.blocks(split), source.tokens(), folds, np.random.default_rng(number))


def strata_blocks(source: Source, bounds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield training samples with the stretch of a learning curve to which each belongs.

    Parameters
    ----------
    source : Source
        The samples.
    bounds : ndarray of int, (k,)
        Ascending numbers of rows; stretch i holds the rows whose rank in a fixed shuffle is below bounds[i] and not
        below bounds[i - 1]. Rows beyond the last are left out.
    """
    total = sum(len(y) for _, y in source.blocks("train")) // source.tokens()
    rank = np.random.default_rng(0).permutation(total)
    stratum = np.repeat(np.searchsorted(bounds, rank, side="right"), source.tokens())
    start = 0
    for x, y in source.blocks("train"):
        part = stratum[start : start + len(x)]
        start += len(x)
        kept = part < len(bounds)
        yield x[kept], y[kept], part[kept]


def _dealt(
    blocks: Iterator[tuple[np.ndarray, np.ndarray]], tokens: int, folds: int, draw: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Deal the rows of each block out evenly, in a new random order of the folds each time."""
    for x, y in blocks:
        rows = len(x) // tokens
        fold = draw.permutation(rows) % folds
        yield x, y, np.repeat(fold, tokens)
