"""The raw input as samples: what a reservoir has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.readouts import samples
from reservoir.tasks.task import Tokens

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW = "raw input"
RAW_WIDTH = 6144  # beyond this the input is pooled, as a layer is: a sweep costs the cube of its width
RAW_SEGMENTS = 8
RAW_ROWS = 1024


@dataclass(frozen=True)
class RawSource:
    """Samples from the input itself, flattened, or pooled where it is too wide: what a reservoir has to beat.

    Vectors are scaled as the model sees them, symbols are coded one-hot. A flattened input of more than 6,144 values
    becomes the means of 8 equal stretches of its real tokens.

    Parameters
    ----------
    prepared : Prepared
        The task's data.
    store : FeatureStore
        The entry whose rows are used.
    """

    prepared: Prepared
    store: FeatureStore
    name: str = RAW

    @property
    def columns(self) -> tuple[str, ...]:
        """Its name, since it is no column."""
        return (self.name,)

    def tokens(self) -> int:
        """Return 1: the whole input is one sample."""
        return 1

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of some rows at a time."""
        part, whole = self.store[split], self.prepared.split(split)
        for start in range(0, part.rows, RAW_ROWS):
            index = part.index[start : start + RAW_ROWS]
            read = whole.read(int(index[0]), int(index[-1]) + 1)
            x = self.encode(read.x[index - index[0]], read.lengths[index - index[0]])
            yield samples(x[:, None], part.y[start : start + RAW_ROWS])

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (rows, outputs) of all rows."""
        return self.store[split].y.reshape(self.store[split].rows, -1)

    def outputs(self) -> int:
        """Return the number of labels of a row."""
        return int(np.prod(self.store["train"].y.shape[1:]))

    def encode(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the raw features (rows, width) of stored sequences, zero at padding."""
        form = self.prepared.task.form
        if isinstance(form, Tokens):
            values = np.eye(form.vocabulary, dtype=np.float32)[x.astype(np.int64)]
        else:
            values = self.prepared.scaling(x) if self.prepared.scaling else x.astype(np.float32)
        values = values * (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
        if self._flat():
            short = self._tokens() - x.shape[1]
            return np.pad(values, ((0, 0), (0, short), (0, 0))).reshape(len(x), -1)
        return _stretch_means(values, lengths).reshape(len(x), -1)

    def _flat(self) -> bool:
        return self._tokens() * self._values() <= RAW_WIDTH

    def _tokens(self) -> int:
        return self.prepared.task.max_tokens

    def _values(self) -> int:
        form = self.prepared.task.form
        return form.vocabulary if isinstance(form, Tokens) else form.dim


def _stretch_means(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the means (rows, 8, dim) over 8 equal stretches of the real tokens, by differences of running sums."""
    sums = np.concatenate([np.zeros_like(values[:, :1], np.float64), values.cumsum(axis=1, dtype=np.float64)], axis=1)
    steps = np.arange(RAW_SEGMENTS + 1)
    bounds = lengths[:, None].astype(np.int64) * steps // RAW_SEGMENTS
    low, high = bounds[:, :-1], np.maximum(bounds[:, 1:], bounds[:, :-1] + 1)
    row = np.arange(len(values))[:, None]
    return ((sums[row, high] - sums[row, low]) / (high - low)[:, :, None]).astype(np.float32)
