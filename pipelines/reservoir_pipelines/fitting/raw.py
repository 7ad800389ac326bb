"""The raw input as samples: what a reservoir has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from reservoir.pooling import pool
from reservoir.readouts import samples
from reservoir.tasks.own.letters import are_words, to_symbols
from reservoir.tasks.task import Scaling, Task, Tokens

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW = "raw"
RAW_WIDTH = 6144  # beyond this the input is pooled, as a layer is: a sweep costs the cube of its width
RAW_ROWS = 1024


@dataclass(frozen=True)
class RawSource:
    """Samples from the input itself; see `raw_features`."""

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
        """Return the raw features (rows, width) of stored sequences."""
        return raw_features(self.prepared.task, self.prepared.scaling, x, lengths)


def raw_features(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the input itself as features (rows, width), float32, zero at padding.

    Vectors are scaled as the model sees them, symbols are one-hot; flat, or as means of 8 stretches where that is too
    wide, and of words, whose letters have no places of their own.
    """
    if isinstance(task.form, Tokens):
        x = to_symbols(f"task {task.name!r}", x, lengths, task.alphabet) if task.alphabet else x
        values = np.eye(task.form.vocabulary, dtype=np.float32)[x.astype(np.int64)]
    else:
        values = scaling(x) if scaling else x.astype(np.float32)
    values = values * (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    if task.max_tokens * values.shape[2] <= RAW_WIDTH and not are_words(task.alphabet):
        short = task.max_tokens - x.shape[1]
        return np.pad(values, ((0, 0), (0, short), (0, 0))).reshape(len(x), -1)
    means = pool(torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64)), "segments8")
    return means.numpy().reshape(len(x), -1)
