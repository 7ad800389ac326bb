"""Encode features as the cache stores them, on the device that computed them, so that half the bytes travel."""

from collections.abc import Callable, Mapping
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


def round_on_device(x: Tensor, store: str) -> tuple[Tensor, Tensor]:
    """Return offset and stored values of features (rows, tokens, width); NaN is the offset if one is not finite.

    The offset is the mean in float64, summed in the device's own order, and rounded to float32.
    Equal offsets give the bits of `reservoir_cache.encode`.
    """
    total = torch.stack([part.sum((0, 1), dtype=torch.float64) for part in x.split(SUMMED)]).sum(0)
    offset = (total / (x.shape[0] * x.shape[1])).float()
    values = x
    if store != "float32":
        values = torch.sub(x, offset, out=torch.empty_like(x, dtype=getattr(torch, store)))
    return torch.where(values.isfinite().all(), offset, torch.nan), values


def _fetch(
    columns: Mapping[str, Tensor], rounded: Mapping[str, tuple[Tensor, Tensor]], store: str, first_row: int
) -> dict[str, Encoded]:
    """Copy encoded columns to the host, where a column with a value that cannot be stored is refused."""
    offsets, values = zip(*rounded.values(), strict=True)
    copied, found = devices.fetch([x.view(torch.uint8) for x in (*offsets, *values)]), dict[str, Encoded]()
    for number, (column, x) in enumerate(columns.items()):
        offset, stored = copied[number].view(np.float32), copied[len(columns) + number]
        if np.isfinite(offset).all():
            kept = None if store == "float32" else offset[None]
            found[column] = Encoded(stored.view(STORED_DTYPE[store]), kept)
        else:  # finds the value, for its message
            found[column] = encode(x.cpu().numpy(), store, column=column, first_row=first_row)
    return found
