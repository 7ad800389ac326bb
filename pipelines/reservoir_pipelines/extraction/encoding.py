"""Encode features as the cache stores them where they were computed, and copy them to the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from reservoir_cache import STORED_DTYPE, Encoded, encode
from torch import Tensor

from reservoir import devices
from reservoir.features import Launched

SUMMED = 256  # rows whose float64 copy, from which offsets are computed, is in memory at once


def start_encoding(features: Launched, store: str, first_row: int) -> Callable[[], dict[str, Encoded]]:
    """Encode rows that share an offset; return a function that waits for the device and returns encoded columns.

    Raises CacheError as `reservoir_cache.encode` does.
    """
    in_pieces = features.loaded.owner is not None  # pieces of texts are combined on the host
    if in_pieces or not devices.on_gpu(features.device):
        return lambda: {
            column: encode(x, store, column=column, first_row=first_row) for column, x in features().items()
        }
    rounded = {column: round_on_device(x, store) for column, x in features.columns.items()}
    are_finite = torch.cat([column.is_finite for column in rounded.values()])
    return Drain(features.columns, rounded, are_finite, store, first_row, devices.computed(features.device))


@dataclass(frozen=True)
class Rounded:
    """A column as the cache stores it, on the device that computes it."""

    offset: Tensor  # (width,) of float32
    values: Tensor  # (rows, tokens, width) in the data type of the cache
    is_finite: Tensor  # (1,) of bool: whether all values can be stored; on the device, so that nothing waits for it


def round_on_device(x: Tensor, store: str) -> Rounded:
    """Return offset and stored values of features (rows, tokens, width).

    The offset is the mean in float64, summed in the device's own order, and rounded to float32.
    Equal offsets give the bits of `reservoir_cache.encode`.
    """
    total = torch.stack([part.sum((0, 1), dtype=torch.float64) for part in x.split(SUMMED)]).sum(0)
    offset = (total / (x.shape[0] * x.shape[1])).float()
    values = x
    if store != "float32":
        values = torch.sub(x, offset, out=torch.empty_like(x, dtype=getattr(torch, store)))
    return Rounded(offset, values, values.isfinite().all().reshape(1))


@dataclass(eq=False)
class Drain:
    """Columns that a GPU computes and encodes; a call waits for them, copies them to the host and returns them.

    A thread of the writer calls it once, while the GPU computes the next rows, and then writes what it has returned.
    So there are as many page-locked buffers as such threads, and each is reused when its block is on disk.
    """

    columns: Mapping[str, Tensor]  # the features in float32
    rounded: Mapping[str, Rounded]
    are_finite: Tensor  # (columns,) of bool
    store: str
    first_row: int
    computed: Any  # the event after which all of these have their values

    def __call__(self) -> dict[str, Encoded]:
        """Return the encoded columns; raises CacheError for a value that cannot be stored."""
        offsets = [column.offset for column in self.rounded.values()]
        are_finite, *offset_bytes = self._fetch([self.are_finite, *offsets])
        self._check(are_finite)
        # The features in float32 are not needed any more. They take two thirds of the memory of a block on the GPU.
        self.columns = {}
        value_bytes = self._fetch([column.values for column in self.rounded.values()])
        encoded: dict[str, Encoded] = {}
        for name, offset, stored in zip(self.rounded, offset_bytes, value_bytes, strict=True):
            values = stored.view(STORED_DTYPE[self.store])
            encoded[name] = Encoded(
                values, None if self.store == "float32" else offset.view(np.float32)[None]
            )
        self.rounded = {}
        return encoded

    def _check(self, are_finite: np.ndarray) -> None:
        """Raise CacheError for the first value that cannot be stored."""
        for (name, x), is_finite in zip(self.columns.items(), are_finite, strict=True):
            if not is_finite:  # encoding on the host finds the value, for its message
                encode(x.cpu().numpy(), self.store, column=name, first_row=self.first_row)

    def _fetch(self, tensors: list[Tensor]) -> list[np.ndarray]:
        """Return the bytes of tensors, copied together."""
        return devices.fetch([tensor.view(torch.uint8) for tensor in tensors], self.computed)
