"""Encode features as the cache stores them, on the device that computed them, so that half the bytes travel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

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
    return partial(_fetch, features.columns, rounded, store, first_row)


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


def _fetch(
    columns: Mapping[str, Tensor], rounded: Mapping[str, Rounded], store: str, first_row: int
) -> dict[str, Encoded]:
    """Copy encoded columns to the host, where a column with a value that cannot be stored is refused."""
    # All columns travel in one copy, as bytes: the flags, then the offsets, then the values.
    tensors = [
        *(column.is_finite for column in rounded.values()),
        *(column.offset for column in rounded.values()),
        *(column.values for column in rounded.values()),
    ]
    copies = devices.fetch([tensor.view(torch.uint8) for tensor in tensors])
    count = len(rounded)
    flags, offsets, values = copies[:count], copies[count : 2 * count], copies[2 * count :]
    encoded = dict[str, Encoded]()
    for column, flag, offset, stored in zip(columns, flags, offsets, values, strict=True):
        if flag.all():
            stored_offset = None if store == "float32" else offset.view(np.float32)[None]
            encoded[column] = Encoded(stored.view(STORED_DTYPE[store]), stored_offset)
        else:  # encoding on the host finds the value, for its message
            x = columns[column].cpu().numpy()
            encoded[column] = encode(x, store, column=column, first_row=first_row)
    return encoded
