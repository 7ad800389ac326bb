"""The raw input as samples: what a reservoir has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from reservoir.pooling import pool
from reservoir.readouts import samples
from reservoir.tasks.task import Tokens

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW = "raw input"
RAW_WIDTH = 6144  # beyond this the input is pooled, as a layer is: a sweep costs the cube of its width
RAW_ROWS = 1024


@dataclass(frozen=True)
class RawSource:
    """Samples from the input itself, flattened, or as means of 8 stretches where it is too wide.

    Vectors are scaled as the model sees them, symbols are coded one-hot.
    """

    prepared: Prepared
    store: FeatureStore
    columns: tuple[str, ...] = (RAW,)

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
            yield samples(x[:, None], part.labels[start : start + RAW_ROWS])

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (rows, outputs) of all rows."""
        return self.store[split].labels.reshape(self.store[split].rows, -1)

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
        means = pool(torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64)), "segments8")
        return means.numpy().reshape(len(x), -1)

    def _flat(self) -> bool:
        return self._tokens() * self._values() <= RAW_WIDTH

    def _tokens(self) -> int:
        return self.prepared.task.max_tokens

    def _values(self) -> int:
        form = self.prepared.task.form
        return form.vocabulary if isinstance(form, Tokens) else form.dim
