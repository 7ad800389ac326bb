"""Batches of rows, the endless sequence of rows that training reads, and standardised targets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from reservoir.features import to_tokens
from reservoir.random import random_key
from reservoir.reservoir import LoadedModel
from reservoir.tasks.proteins import similar_lengths
from reservoir.tasks.task import Scaling, Split

Rows = Callable[[np.ndarray], Split]  # argument: positions (n,) in an endless sequence of rows


@dataclass(frozen=True)
class TrainingBatch:
    """Rows on the device: right-padded input of the first layer, labels (rows, readout_tokens, outputs), lengths."""

    x: Tensor
    y: Tensor
    lengths: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Data of a training run: endless training rows, rows to score (``scored`` at a time), and their conversion."""

    train: Rows
    valid: Split
    test: Split
    convert: Callable[[Split], TrainingBatch]
    scored: int


@dataclass(frozen=True)
class StoredRows:
    """The rows of a split repeated, each epoch in a different order; ``views(x, rows, epoch)`` augments them."""

    split: Split
    seed: int
    views: Callable[[np.ndarray, np.ndarray, int], np.ndarray] | None = None

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows at some positions; position n is in epoch ``n // rows``."""
        epochs, places = np.divmod(numbers, len(self.split))
        rows, inside = np.empty_like(numbers), {int(epoch): epochs == epoch for epoch in np.unique(epochs)}
        for epoch, which in inside.items():
            rows[which] = _order(self.seed, epoch, len(self.split))[places[which]]
        found = Split(x=self.split.x[rows], y=self.split.y[rows], lengths=self.split.lengths[rows])
        if self.views:
            for epoch, which in inside.items():
                found.x[which] = self.views(found.x[which], rows[which], epoch)
        return found


@dataclass(frozen=True)
class PaddedBatches:
    """The rows of a split repeated; each epoch draws new batches, whose rows are padded to the longest.

    As in TAPE's loader, a random order is divided by `similar_lengths`, and the batches are shuffled.
    The real tokens of a row are those that are not 0.
    """

    split: Split
    seed: int
    batch: int

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows at some positions; position n is in epoch ``n // rows``."""
        epochs, places = np.divmod(numbers, len(self.split))
        rows, lengths = np.empty_like(numbers), np.empty_like(self.split.lengths, shape=len(numbers))
        for epoch in np.unique(epochs).tolist():
            which = epochs == epoch
            order, padded = self._epoch(epoch)
            rows[which], lengths[which] = order[places[which]], padded[places[which]]
        return Split(x=self.split.x[rows], y=self.split.y[rows], lengths=lengths)

    @cached_property
    def _real(self) -> np.ndarray:
        return (self.split.x != 0).sum(axis=1)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of an epoch in their order, and the length to which each is padded."""
        size, real, order = self.batch, self._real, _order(self.seed, epoch, len(self.split))
        batches = [order[rows] for rows in similar_lengths(real[order], size)]
        whole = len(order) // size  # a shorter batch stays the last, so that batches begin at whole steps
        shuffled = [batches[number] for number in _order(self.seed, epoch, whole, "batches")] + batches[
            whole:
        ]
        padded = [np.full(len(rows), real[rows].max()) for rows in shuffled]
        return np.concatenate(shuffled), np.concatenate(padded)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, rows: int, name: str = "order") -> np.ndarray:
    key = random_key(seed, name, epoch, size=8)
    return np.random.Generator(np.random.Philox(key=key)).permutation(rows)


def raw_rows(model: LoadedModel, scaling: Scaling | None) -> Callable[[Split], TrainingBatch]:
    """Return the conversion of stored sequences to input of the input layer."""

    def convert(rows: Split) -> TrainingBatch:
        x, lengths = to_tokens(model, scaling, rows.x, rows.lengths)
        x = np.ascontiguousarray(x[:, : int(lengths.max())])
        return to_batch(replace(rows, x=x, lengths=lengths), model.device)

    return convert


def to_batch(rows: Split, device: torch.device) -> TrainingBatch:
    """Return rows that are already input of the first layer, such as cached hidden states, on the device."""
    arrays = (rows.x, rows.y, rows.lengths.astype(np.int64))
    return TrainingBatch(*(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays))


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation (outputs,) of each output over the training rows; 1 for a constant output."""

    # Training on (y - mean) / deviation makes learning rate and divergence bound independent of the targets' unit.
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray) -> "TargetScale":
        """Return the scale of the targets (rows, readout_tokens, outputs) of the training rows."""
        flat = y.reshape(-1, y.shape[-1]).astype(np.float64)
        deviation = flat.std(axis=0)
        return cls(flat.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    def apply(self, split: Split) -> Split:
        """Return a split whose targets are standardised."""
        return replace(split, y=((split.y - self.mean) / self.deviation).astype(np.float32))

    def restore(self, y: np.ndarray) -> np.ndarray:
        """Return standardised targets (..., outputs) in the unit of the data."""
        return y * self.deviation + self.mean
