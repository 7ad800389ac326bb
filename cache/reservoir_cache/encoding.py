"""From float32 features to what is stored, and back.

    offset[c]       = float32(mean over rows and tokens of x[:, :, c])        (accumulated in float64)
    stored[i, t, c] = round_to_nearest_even(x[i, t, c] - offset[c])           (float16 or bfloat16)
    x'[i, t, c]     = float32(stored[i, t, c]) + offset[c]

A channel of a frozen transformer may sit at 3000 +- 0.5: without the offset float16 keeps three distinct values of it.
The offset is that of the array itself, so a shard can be decoded alone and does not depend on any other.
With float32 there is no offset and nothing is rounded.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.errors import CacheError

STORED_DTYPE = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}

# The smallest residual that rounds to infinity: halfway from the largest finite number to the next power of two.
_OVERFLOW = {"float16": np.float32(65520.0), "bfloat16": np.uint32(0x7F7F8000).view(np.float32)}


@dataclass(frozen=True)
class Encoded:
    """One column of one shard, as stored.

    Parameters
    ----------
    values : ndarray of shape (rows, tokens, width)
        float16, bfloat16 bits as uint16, or float32; little-endian.
    offset : ndarray of shape (width,), float32, or None
        What was subtracted before rounding; None with float32.
    """

    values: NDArray
    offset: NDArray[np.float32] | None

    def crc32(self) -> str:
        """CRC-32 of the stored values, then of the offset, as 8 hexadecimal digits."""
        crc = zlib.crc32(self.values.data)
        if self.offset is not None:
            crc = zlib.crc32(self.offset.data, crc)
        return f"{crc:08x}"


def encode(x: NDArray[np.float32], store: str, *, column: str, first_row: int = 0) -> Encoded:
    """Round features to the stored type.

    Parameters
    ----------
    x : ndarray of shape (rows, tokens, width), float32
    store : {"float16", "bfloat16", "float32"}
    column : str
        Named in errors.
    first_row : int, default 0
        Row number of ``x[0]`` in its split, for errors.

    Returns
    -------
    Encoded

    Raises
    ------
    CacheError
        If a value is not finite, or its residual overflows the stored type.
    """
    x = np.ascontiguousarray(x, dtype=np.float32)
    rows, tokens, width = x.shape
    with np.errstate(invalid="ignore"):
        mean = x.reshape(rows * tokens, width).mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():  # float32 values cannot overflow a float64 sum, so one of them is not finite
        place = _place(~np.isfinite(x))
        raise CacheError(
            f"{_named(place, column, first_row)}: {x[place]} is not finite and cannot be stored; the forward pass "
            "failed there: check that row of the input, or compute in float32 (if the computed type overflowed)"
        )
    if store == "float32":
        return Encoded(x.astype(STORED_DTYPE[store], copy=False), None)
    offset = mean.astype("<f4")
    with np.errstate(over="ignore"):
        residual = x - offset
    if residual.max() >= _OVERFLOW[store] or residual.min() <= -_OVERFLOW[store]:
        place = _place(np.abs(residual))
        distance = abs(float(x[place]) - mean[place[-1]])
        wider = "--store float32" if store == "bfloat16" else "--store float32 or --store bfloat16"
        raise CacheError(
            f"{_named(place, column, first_row)}: {x[place]:g} lies {distance:.3g} from its channel's mean, which "
            f"overflows {store}; extract with {wider}"
        )
    values = residual.astype(STORED_DTYPE[store]) if store == "float16" else bfloat16_bits(residual)
    return Encoded(values, offset)


def decode(encoded: Encoded, store: str) -> NDArray[np.float32]:
    """Return the features of shape (rows, tokens, width) as float32."""
    if store == "bfloat16":
        x = (encoded.values.astype(np.uint32) << 16).view(np.float32)
    else:
        x = encoded.values.astype(np.float32, copy=False)
    if encoded.offset is not None:
        x += encoded.offset
    return x


def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 to bfloat16, ties to even, and return its bits.

    bfloat16 is the upper half of float32: adding 0x7FFF, plus one where the kept half is odd, carries into it exactly
    when the value must be rounded up.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _place(x: NDArray) -> tuple[int, ...]:
    """Return the first place of the largest value."""
    return tuple(int(i) for i in np.unravel_index(int(x.argmax()), x.shape))


def _named(place: tuple[int, ...], column: str, first_row: int) -> str:
    row, token, channel = place
    return f"column {column}, row {first_row + row}, token {token}, channel {channel}"
