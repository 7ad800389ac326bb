"""The raw input as samples of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.raw_input import raw_features
from reservoir.readouts import beside_raw, samples, there
from reservoir_pipelines.fitting.sources import JoinedSource, Source, groups_of

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW = "raw"
RAW_ROWS = 1024
PICTURE_ROWS = 64  # of photographs, whose files have megabytes


@dataclass(frozen=True)
class RawSource:
    """Samples from the input itself."""

    prepared: Prepared
    store: FeatureStore
    columns: tuple[str, ...] = (RAW,)

    def tokens(self) -> int:
        """Return 1, as the whole input is one sample, or where each token has a label as many as a row may have."""
        return self.prepared.task.readout_tokens if self.prepared.task.each else 1

    def counts(self, split: str) -> np.ndarray:
        """Return the samples of each row, (rows,)."""
        y = self.store[split].labels
        return there(y).sum(axis=1) if self.prepared.task.each else np.ones(len(y), int)

    def blocks(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the samples of some rows at a time."""
        part, whole = self.store[split], self.prepared.split(split)
        step = PICTURE_ROWS if self.prepared.task.pictures else RAW_ROWS
        for start in range(0, part.rows, step):
            read = whole.take(part.index[start : start + step])
            x = self.encode(read.x, read.lengths)
            yield samples(x if x.ndim == 3 else x[:, None], part.labels[start : start + step])

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (rows, outputs) of all rows."""
        y = self.store[split].labels
        return y[there(y)] if self.prepared.task.each else y.reshape(len(y), -1)

    def groups(self) -> np.ndarray | None:
        """Return the group of each row of train, then of valid."""
        return groups_of(self.store)

    def encode(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the raw features (rows, width) of stored sequences, or of every token, (rows, tokens, width)."""
        return raw_features(self.prepared.task, self.prepared.scaling, x, lengths)


def emphasis_of(source: Source) -> np.ndarray | None:
    """Return how much each feature counts, (w,), where columns are read beside the raw input; else None."""
    if not isinstance(source, JoinedSource) or not any(isinstance(part, RawSource) for part in source.parts):
        return None
    sides = [np.full(next(part.blocks("train"))[0].shape[1], isinstance(part, RawSource)) for part in source.parts]
    return beside_raw(np.concatenate(sides))
