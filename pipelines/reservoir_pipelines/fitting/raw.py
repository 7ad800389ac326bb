"""The raw input as samples, so that it is fitted like a column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.plan import RAW
from reservoir.raw_input import raw_features
from reservoir.readouts import balance_raw, samples
from reservoir_pipelines.fitting.sources import JoinedSource, Source

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.preparation.prepared import Prepared

RAW_ROWS = 1024
PICTURE_ROWS = 64  # of photographs, whose files have megabytes


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


def emphasis_of(source: Source) -> np.ndarray | None:
    """Return the weight of each feature, (w,), for columns joined with the raw input; else None."""
    if not isinstance(source, JoinedSource) or not any(isinstance(part, RawSource) for part in source.parts):
        return None
    sides = [np.full(next(part.blocks("train"))[0].shape[1], isinstance(part, RawSource)) for part in source.parts]
    return balance_raw(np.concatenate(sides))
