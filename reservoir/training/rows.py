"""Batches of rows, and the endless sequence of rows that training reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from reservoir.features import to_tokens
from reservoir.random import random_key
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Scaling, Split

Rows = Callable[[np.ndarray], Split]
"""Returns the rows at some positions (n,) of an endless sequence of rows."""


@dataclass(frozen=True)
class Batch:
    """Rows on the device: right-padded input of the first layer, labels (rows, readout_tokens, outputs), lengths."""

    x: Tensor
    y: Tensor
    lengths: Tensor


Convert = Callable[[Split], Batch]
"""Converts stored rows to a batch on the device."""


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Data of a training: endless training rows, rows to score (``scored`` at a time), and their conversion."""

    train: Rows
    valid: Split
    test: Split
    convert: Convert
    scored: int


class StoredRows:
    """The rows of a split repeated, each epoch in another order; ``views(x, rows, epoch)`` augments them."""

    def __init__(
        self, split: Split, seed: int, views: Callable[[np.ndarray, np.ndarray, int], np.ndarray] | None = None
    ) -> None:
        self._split, self._seed, self._views = split, seed, views
        self._order = lru_cache(maxsize=2)(self._draw)

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows at some positions; position n is in epoch ``n // rows``."""
        size = len(self._split)
        epochs = numbers // size
        rows = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            rows[inside] = self._order(int(epoch))[numbers[inside] % size]
        x = self._split.x[rows]
        if self._views:
            x = x.copy()
            for epoch in np.unique(epochs):
                inside = epochs == epoch
                x[inside] = self._views(x[inside], rows[inside], int(epoch))
        return Split(x=x, y=self._split.y[rows], lengths=self._split.lengths[rows])

    def _draw(self, epoch: int) -> np.ndarray:
        key = random_key(self._seed, "order", epoch, size=8)
        return np.random.Generator(np.random.Philox(key=key)).permutation(len(self._split))


def raw_rows(model: LoadedModel, scaling: Scaling | None) -> Convert:
    """Return the conversion of stored sequences to input of the input layer."""

    def convert(rows: Split) -> Batch:
        x, lengths = to_tokens(model, scaling, rows.x, rows.lengths)
        return _batch(np.ascontiguousarray(x[:, : int(lengths.max())]), rows.y, lengths, model.device)

    return convert


def hidden_rows(device: torch.device, *, cut: bool) -> Convert:
    """Return the conversion of cached hidden states (rows, tokens, width); ``cut`` removes padding."""

    def convert(rows: Split) -> Batch:
        x = rows.x[:, : int(rows.lengths.max())] if cut else rows.x
        return _batch(np.ascontiguousarray(x, np.float32), rows.y, rows.lengths, device)

    return convert


def _batch(x: np.ndarray, y: np.ndarray, lengths: np.ndarray, device: torch.device) -> Batch:
    arrays = (x, y, lengths.astype(np.int64))
    return Batch(*(torch.from_numpy(array).to(device, non_blocking=True) for array in arrays))
