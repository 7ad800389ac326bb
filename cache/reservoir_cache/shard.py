"""One shard: an HDF5 file with some columns of one block of rows, rounded to the stored type.

    /                          attributes format, key, split, block, low, high
    /<layer>/<pooling>/values  (rows, tokens, width), contiguous; attributes encoding, crc32
    /<layer>/<pooling>/offset  (width,) float32; absent with float32

    offset[c]       = float32(mean over rows and tokens of x[:, :, c])        (accumulated in float64)
    stored[i, t, c] = round_to_nearest_even(x[i, t, c] - offset[c])           (float16 or bfloat16)
    x'[i, t, c]     = float32(stored[i, t, c]) + offset[c]

A channel of a frozen transformer may sit at 3000 +- 0.5: without the offset float16 keeps three distinct values of it.
The offset is that of the array itself, so a shard can be decoded alone and does not depend on any other.
The same arrays give the same bytes: no times, no variable-length strings, objects in a fixed order.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.errors import CacheError
from reservoir_cache.hdf import member, names, new_file, read_array, read_attribute
from reservoir_cache.manifest import Column, check_column_name

STORED_DTYPE = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}

# The smallest residual that rounds to infinity: halfway from the largest finite number to the next power of two.
_OVERFLOW = {"float16": np.float32(65520.0), "bfloat16": np.uint32(0x7F7F8000).view(np.float32)}


@dataclass(frozen=True)
class Encoded:
    """A column as stored: little-endian values (rows, tokens, width), and the float32 offset (width,) subtracted."""

    values: NDArray
    offset: NDArray[np.float32] | None

    def crc32(self) -> str:
        """CRC-32 of the stored values, then of the offset, as 8 hexadecimal digits."""
        crc = zlib.crc32(self.values.data)
        if self.offset is not None:
            crc = zlib.crc32(self.offset.data, crc)
        return f"{crc:08x}"


@dataclass(frozen=True)
class ShardHeader:
    """Which rows a shard holds: the attributes of its root group."""

    format: int
    key: str
    split: str
    block: int
    low: int
    high: int


def encode(x: NDArray[np.float32], store: str, *, column: str, first_row: int = 0) -> Encoded:
    """Round features (rows, tokens, width); raises CacheError for a value that is not finite or would overflow."""
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


def check_column(name: str, x: NDArray, rows: int, known: Column | None) -> None:
    """Refuse what is no float32 (rows, tokens, width) named ``layer/pooling``, or shaped unlike other blocks'."""
    check_column_name(name)
    if x.dtype != np.float32 or x.ndim != 3 or len(x) != rows or 0 in x.shape:
        raise CacheError(f"column {name}: needs float32 of shape ({rows}, tokens, width), not {x.dtype} {x.shape}")
    if known and x.shape[1:] != (known.tokens, known.width):
        raise CacheError(
            f"column {name}: shape {x.shape[1:]} per row, but other blocks have {known.tokens, known.width}"
        )


def write_shard(path: Path, header: ShardHeader, columns: Mapping[str, Encoded], store: str) -> None:
    """Create a shard; fails if the file exists."""
    with new_file(path) as file:
        for name, value in vars(header).items():
            file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)
        for column in sorted(columns):
            encoded = columns[column]
            values = file.create_dataset(f"{column}/values", data=encoded.values, track_times=False)
            values.attrs["encoding"] = np.bytes_(store.encode())
            values.attrs["crc32"] = np.bytes_(encoded.crc32().encode())
            if encoded.offset is not None:
                file.create_dataset(f"{column}/offset", data=encoded.offset, track_times=False)


def verify_shard(path: Path, header: ShardHeader, columns: Mapping[str, Encoded], store: str) -> None:
    """Compare a shard on disk with what was meant: header, shapes, data types and every byte's checksum."""
    with h5py.File(path, "r", locking=False) as file:
        if _header(file) != header:
            raise CacheError(f"{path}: the header does not read back as written; check the disk")
        for column, meant in columns.items():
            found = read_column(file, column, store)
            if found.values.shape != meant.values.shape or found.crc32() != meant.crc32():
                raise CacheError(f"{path}: column {column} does not read back as written; check the disk")


def read_column(file: h5py.File, column: str, store: str) -> Encoded:
    """Read a column of an open shard as stored; raises KeyError if it is absent, CacheError for other data types."""
    values = read_array(file, f"{column}/values")
    offset = read_array(file, f"{column}/offset") if store != "float32" else None
    if values.dtype != STORED_DTYPE[store]:
        raise CacheError(f"{file.filename}: column {column} is not stored as {store}")
    if offset is not None and (offset.dtype != np.dtype("<f4") or offset.shape != values.shape[-1:]):
        raise CacheError(f"{file.filename}: column {column} has an offset of {offset.dtype} {offset.shape}")
    return Encoded(values, offset)


def inspect_shard(path: Path, store: str) -> tuple[ShardHeader, dict[str, Column], dict[str, str]]:
    """Read a shard by itself: its header, and each column's shape and CRC-32, checked against its own record."""
    shapes, crcs = {}, {}
    with h5py.File(path, "r", locking=False) as file:
        header = _header(file)
        for name in [f"{layer}/{pooling}" for layer in names(file) for pooling in names(file, layer)]:
            check_column_name(name)
            encoded = read_column(file, name, store)
            crcs[name] = encoded.crc32()
            if read_attribute(member(file, f"{name}/values"), "crc32") != crcs[name]:
                raise CacheError(f"{path}: column {name} is damaged")
            shapes[name] = Column(*encoded.values.shape[1:])
    return header, shapes, crcs


def _header(file: h5py.File) -> ShardHeader:
    return ShardHeader(**{field.name: read_attribute(file, field.name) for field in fields(ShardHeader)})  # pyright: ignore[reportArgumentType]


def _place(x: NDArray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(x.argmax()), x.shape))


def _named(place: tuple[int, ...], column: str, first_row: int) -> str:
    row, token, channel = place
    return f"column {column}, row {first_row + row}, token {token}, channel {channel}"
