"""One shard: an HDF5 file with some columns of one block of rows.

    /                          attributes format, key, split, block, low, high
    /<layer>/<pooling>/values  (rows, tokens, width), contiguous; attributes encoding, crc32
    /<layer>/<pooling>/offset  (width,) float32; absent with float32

The same arrays give the same bytes: no times, no variable-length strings, objects in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.encoding import STORED_DTYPE, Encoded
from reservoir_cache.errors import CacheError
from reservoir_cache.hdf import member, new_file, read_array, read_attribute
from reservoir_cache.manifest import Column, check_column_name


@dataclass(frozen=True)
class ShardHeader:
    """Which rows a shard holds: the attributes of its root group."""

    format: int
    key: str
    split: str
    block: int
    low: int
    high: int


def check_column(name: str, x: NDArray, rows: int, known: Column | None) -> None:
    """Refuse an array that cannot be a column of a block of ``rows`` rows, or differs in shape from other blocks'.

    Raises
    ------
    CacheError
        If it is not named ``layer/pooling``, not float32, or not of shape (rows, tokens, width) as before.
    """
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


def read_header(file: h5py.File) -> ShardHeader:
    """Return the header of an open shard; raises KeyError if it has none."""
    return ShardHeader(**{field.name: read_attribute(file, field.name) for field in fields(ShardHeader)})  # pyright: ignore[reportArgumentType]


def read_column(file: h5py.File, column: str, store: str) -> Encoded:
    """Read a column of an open shard as stored.

    Raises
    ------
    KeyError
        If the shard does not hold it.
    CacheError
        If its data types are not those of the store.
    """
    values = read_array(file, f"{column}/values")
    offset = read_array(file, f"{column}/offset") if store != "float32" else None
    if values.dtype != STORED_DTYPE[store] or (offset is not None and offset.dtype != np.dtype("<f4")):
        raise CacheError(f"{file.filename}: column {column} is not stored as {store}")
    return Encoded(values, offset)


def inspect_shard(path: Path, store: str) -> tuple[ShardHeader, dict[str, Column], dict[str, str]]:
    """Read a shard by itself: its header, and the shape and CRC-32 of each column, checked against its own record.

    Raises
    ------
    CacheError
        If a column does not match the CRC-32 stored beside it.
    """
    shapes, crcs = {}, {}
    with h5py.File(path, "r", locking=False) as file:
        header = read_header(file)
        for name in [f"{layer}/{pooling}" for layer in _groups(file) for pooling in _groups(file, layer)]:
            check_column_name(name)
            encoded = read_column(file, name, store)
            crcs[name] = encoded.crc32()
            if read_attribute(member(file, f"{name}/values"), "crc32") != crcs[name]:
                raise CacheError(f"{path}: column {name} is damaged")
            shapes[name] = Column(*encoded.values.shape[1:])
    return header, shapes, crcs


def verify_shard(path: Path, header: ShardHeader, columns: Mapping[str, Encoded], store: str) -> None:
    """Compare a shard on disk with what was meant: header, shapes, data types and every byte's checksum.

    Raises
    ------
    CacheError
        If anything differs.
    """
    with h5py.File(path, "r", locking=False) as file:
        if read_header(file) != header:
            raise CacheError(f"{path}: the header does not read back as written; check the disk")
        for column, meant in columns.items():
            found = read_column(file, column, store)
            if found.values.shape != meant.values.shape or found.crc32() != meant.crc32():
                raise CacheError(f"{path}: column {column} does not read back as written; check the disk")


def _groups(file: h5py.File, name: str | None = None) -> list[str]:
    group = member(file, name) if name else file
    if not isinstance(group, h5py.Group):
        raise KeyError(f"{name} is not a group")
    return [str(part) for part in group]
