"""Batches of rows, the endless sequence of rows that training reads, and standardised targets."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reservoir.batches import to_tokens
from reservoir.random import epoch_order
from reservoir.reservoir import LoadedModel
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
        # For each epoch, which of the positions are in it: a batch may span two epochs.
        in_epoch = {int(epoch): epochs == epoch for epoch in np.unique(epochs)}
        rows = np.empty_like(numbers)
        for epoch, selected in in_epoch.items():
            rows[selected] = epoch_order(self.seed, epoch, len(self.split))[places[selected]]
        batch = Split(x=self.split.x[rows], y=self.split.y[rows], lengths=self.split.lengths[rows])
        if self.views:
            for epoch, selected in in_epoch.items():
                batch.x[selected] = self.views(batch.x[selected], rows[selected], epoch)
        return batch


def raw_batch(model: LoadedModel, scaling: Scaling | None, rows: Split) -> TrainingBatch:
    """Return stored sequences as input of the input layer, on the device of the model."""
    x, lengths = to_tokens(model, scaling, rows.x, rows.lengths)
    x = np.ascontiguousarray(x[:, : int(lengths.max())])
    return to_batch(replace(rows, x=x, lengths=lengths), model.device)


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
