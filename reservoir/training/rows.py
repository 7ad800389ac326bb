"""Batches of rows, the endless sequence of rows that training reads, and standardised targets."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from reservoir import devices
from reservoir.batches import padded_lengths, to_tokens
from reservoir.loaded_model import LoadedModel
from reservoir.random import epoch_order
from reservoir.tasks.task import Scaling, Split

EndlessRows = Callable[[np.ndarray], Split]  # argument: positions (n,) in an endless sequence of rows
Item = TypeVar("Item")
ReadResult = TypeVar("ReadResult")


@dataclass(frozen=True)
class TrainingBatch:
    """Rows as tensors, on the host or on a device.

    ``is_full`` says whether no row is padded. If it is None, the lengths decide, and reading them may wait for a GPU.
    """

    x: Tensor  # right-padded input of the first layer, (rows, tokens, ...)
    y: Tensor  # labels (rows, readout_tokens, outputs)
    lengths: Tensor  # real tokens of each row, (rows,) of int64
    is_full: bool | None = None

    @property
    def shapes(self) -> tuple[torch.Size, torch.Size, bool | None]:
        """Shapes and ``is_full``, which decide what kernels a step on these rows has."""
        return self.x.shape, self.y.shape, self.is_full

    def to(self, device: torch.device) -> "TrainingBatch":
        """Return these rows on a device."""
        on_device = (tensor.to(device, non_blocking=True) for tensor in (self.x, self.y, self.lengths))
        return TrainingBatch(*on_device, is_full=self.is_full)

    def empty_on(self, device: torch.device) -> "TrainingBatch":
        """Return uninitialised memory on a device for rows of these shapes."""
        empty = (torch.empty_like(tensor, device=device) for tensor in (self.x, self.y, self.lengths))
        return TrainingBatch(*empty, is_full=self.is_full)

    def copy_(self, rows: "TrainingBatch") -> None:
        """Replace these rows with others of the same shapes, in the same memory."""
        self.x.copy_(rows.x, non_blocking=True)
        self.y.copy_(rows.y, non_blocking=True)
        self.lengths.copy_(rows.lengths, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """What a training sees: endless training rows, validation rows, and their conversion; test rows are out of reach.

    ``convert`` returns rows on the host, in page-locked memory if the model is on a GPU. It may run in any thread.
    """

    train: EndlessRows
    valid: Split
    convert: Callable[[Split], TrainingBatch]
    scored: int  # number of validation rows that are scored at a time


@dataclass(frozen=True)
class StoredRows:
    """The rows of a split repeated endlessly, each epoch in a different order."""

    split: Split
    seed: int
    # ``views(x, rows, epoch)`` augments sequences with these row numbers; None if they are trained as they are
    views: Callable[[np.ndarray, np.ndarray, int], np.ndarray] | None = None

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows at positions (n,) of the endless sequence, in which each epoch has all rows of the split."""
        epochs, places = np.divmod(numbers, len(self.split))
        # For each epoch, which of the positions are in it: a batch may span two epochs.
        is_in_epoch = {int(epoch): epochs == epoch for epoch in np.unique(epochs)}
        rows = np.empty_like(numbers)
        for epoch, is_in in is_in_epoch.items():
            rows[is_in] = epoch_order(self.seed, epoch, len(self.split))[places[is_in]]
        batch = Split(x=self.split.x[rows], y=self.split.y[rows], lengths=self.split.lengths[rows])
        if self.views:
            for epoch, is_in in is_in_epoch.items():
                batch.x[is_in] = self.views(batch.x[is_in], rows[is_in], epoch)
        return batch


def raw_batch(model: LoadedModel, scaling: Scaling | None, rows: Split) -> TrainingBatch:
    """Return stored sequences as tokens for the input layer of a model, on the host."""
    x, lengths = to_tokens(model, scaling, rows.x, rows.lengths)
    tokens = int(lengths.max())
    if not devices.on_gpu(model.device):
        return to_batch(replace(rows, x=x[:, :tokens], lengths=lengths), model.device)
    # On a GPU there are few padded lengths, because the kernels of a step are captured or compiled for each. They
    # depend on the longest row of the task, because nothing is padded beyond that.
    if model.fpt.backbone.can_pad:
        longest = max(tokens, model.fpt.task.max_tokens)
        tokens, _ = (int(padded) for padded in padded_lengths(np.array([tokens, longest])))
    missing_tokens = max(0, tokens - x.shape[1])
    padding = [(0, 0), (0, missing_tokens), *[(0, 0)] * (x.ndim - 2)]
    x = np.pad(x[:, :tokens], padding)
    is_full = bool(lengths.min() == tokens)
    return to_batch(replace(rows, x=x, lengths=lengths), model.device, is_full)


def to_batch(rows: Split, device: torch.device, is_full: bool | None = None) -> TrainingBatch:
    """Return rows that are already input of the first layer, such as cached hidden states, as tensors on the host.

    The tensors are in page-locked memory if ``device`` is a GPU. ``is_full`` is that of `TrainingBatch`.
    """
    arrays = (rows.x, rows.y, rows.lengths.astype(np.int64))
    tensors = (devices.pinned(torch.from_numpy(np.ascontiguousarray(array)), device) for array in arrays)
    return TrainingBatch(*tensors, is_full=is_full)


def read_ahead(
    read: Callable[[Item], ReadResult], items: Sequence[Item]
) -> Generator[ReadResult, None, None]:
    """Yield what ``read`` returns for each item; another thread reads the next item meanwhile."""
    with ThreadPoolExecutor(1) as reader:
        # The next item is submitted before the item before it is yielded.
        previous: Future[ReadResult] | None = None  # None before the first item
        for item in items:
            current = reader.submit(read, item)
            if previous is not None:
                yield previous.result()
            previous = current
        if previous is not None:
            yield previous.result()


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation (outputs,) of each output over the training rows; 1 as deviation of a constant."""

    # Training on (y - mean) / deviation makes learning rate and divergence bound independent of the targets' unit.
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray) -> "TargetScale":
        """Return the scale of the targets (rows, readout_tokens, outputs) of the training rows."""
        values = y.reshape(-1, y.shape[-1]).astype(np.float64)  # (rows * readout_tokens, outputs)
        deviation = values.std(axis=0)
        return cls(values.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    def apply(self, split: Split) -> Split:
        """Return a split whose targets are standardised."""
        return replace(split, y=((split.y - self.mean) / self.deviation).astype(np.float32))

    def restore(self, y: np.ndarray) -> np.ndarray:
        """Return standardised targets (..., outputs) in the unit of the data."""
        return y * self.deviation + self.mean
