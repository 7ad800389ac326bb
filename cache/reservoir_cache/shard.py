"""Shards: HDF5 files with some columns of one block of rows. FORMAT.md has the layout and, in "Encoding", equations."""

import io
import math
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]
from numpy.typing import NDArray

from reservoir_cache.checksums import crc32_of, joined_crc32
from reservoir_cache.entry import Column, check_column_name
from reservoir_cache.errors import CacheError
from reservoir_cache.hdf5 import open_hdf5

STORED_DTYPE = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits of positive infinity

_SLAB = 2**16  # values that are decoded together, so that they stay in the processor's cache

_METADATA = 2**14  # more bytes than HDF5 needs for the name, type and attributes of a dataset
_LARGE = 2**16  # bytes of a dataset that is not copied

TARGET_RANKS = {
    **{"y": (3,), "lengths": (1,), "index": (1,), "groups": (1,), "ids": (1, 2)},
    **{"pointers": (1,), "token_ids": (1,), "spans": (2,), "text_ids": (1, 2)},
}
"""Possible numbers of dimensions of each dataset of ``targets.h5``, in the order in which they are written."""

OPTIONAL_TARGETS = {*TARGET_RANKS} - {"y", "lengths", "index"}
TEXT_TARGETS = {"pointers": 1, "text_ids": 0}
"""The datasets with an item for each text, and how many more items they have than there are texts."""

# The errors that HDF5 and h5py raise for a damaged file; CacheError is a ValueError.
UNREADABLE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Extent:
    """The bytes of a file that hold an array: their position, and its shape and data type."""

    position: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, group: h5py.Group, name: str) -> "Extent":
        """Find a dataset of numbers; raises KeyError if its values are not stored in this file."""
        # Links and datasets may name other files (virtual and external storage); one without storage
        # reads as zeros.
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            if group.id.links.get_info("/".join(parts[:depth]).encode()).type != h5l.TYPE_HARD:
                raise KeyError(f"{name} is not in the file itself")
        item = group[name]
        if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biufc":
            raise KeyError(f"{name} is not a dataset of numbers")
        properties = item.id.get_create_plist()
        contiguous = properties.get_layout() == h5py.h5d.CONTIGUOUS and not properties.get_external_count()
        position = item.id.get_offset()
        if (
            not contiguous
            or item.id.get_storage_size() != item.nbytes
            or (position is None and item.nbytes)
        ):
            raise KeyError(f"{name} is not stored contiguously in the file")
        return cls(position or 0, item.shape, item.dtype)

    def read(self, file: BinaryIO, rows: NDArray[np.integer] | None = None) -> NDArray:
        """Read the array, or some of its rows; raises ValueError if the file ends too early."""
        if rows is None:
            file.seek(self.position)
            return np.fromfile(file, self.dtype, math.prod(self.shape)).reshape(self.shape)
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        parts = [os.pread(file.fileno(), size, self.position + int(row) * size) for row in rows]
        return np.frombuffer(b"".join(parts), self.dtype).reshape(len(rows), *self.shape[1:])


@contextmanager
def new_file(path: Path) -> Iterator[h5py.File]:
    """Create an HDF5 file in memory and write it to ``path``."""
    # On a full disk HDF5 cannot close its file, and crashes the process later.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        yield file
    path.write_bytes(image.getvalue())


def read_array(group: h5py.Group, name: str) -> NDArray:
    """Read a whole dataset of numbers; raises KeyError if it is absent, or its values are not stored in this file."""
    Extent.of(group, name)
    return np.asarray(group[name][()])  # pyright: ignore[reportIndexIssue]


def numbers_of_ids(ids: NDArray) -> NDArray:
    """Return row ids (rows,) as they are stored: int64, or for texts their UTF-8 (rows, bytes), padded with zeros."""
    if ids.dtype.kind != "U":
        return ids.astype("<i8")
    texts = np.char.encode(ids, "utf-8", "surrogatepass")  # names of files need not be valid UTF-8
    return texts.view(np.uint8).reshape(len(ids), -1)


def ids_of_numbers(stored: NDArray) -> NDArray:
    """Return stored row ids as integers or texts (rows,), the inverse of `numbers_of_ids`; ValueError for others."""
    if stored.ndim == 1 and stored.dtype == np.int64:
        return stored
    if stored.ndim != 2 or stored.dtype != np.uint8 or not stored.shape[1]:
        raise ValueError(f"ids of shape {stored.shape} and type {stored.dtype}")
    texts = np.ascontiguousarray(stored).view(f"S{stored.shape[1]}")[:, 0]
    return np.char.decode(texts, "utf-8", "surrogatepass")


def dataset_names(group: h5py.Group) -> list[str]:
    """Return the names of the datasets below a group; links to other files are not followed."""
    names = list[str]()
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


@dataclass(frozen=True)
class Encoded:
    """A column as stored: little-endian values (rows, tokens, width) and the float32 offsets (offsets, width)."""

    values: NDArray
    offset: NDArray[np.float32] | None

    @classmethod
    def joined(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Return a column from parts that have an offset each."""
        offsets = [part.offset for part in parts if part.offset is not None]
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.concatenate(offsets) if offsets else None)

    @cached_property
    def crc32(self) -> str:
        """CRC-32 of the stored values, then of the offsets, as 8 hexadecimal digits."""
        crc = self.crc32_of_values
        return f"{crc if self.offset is None else crc32_of(self.offset.data, crc):08x}"

    @cached_property
    def crc32_of_values(self) -> int:
        """CRC-32 of the stored values."""
        return crc32_of(self.values.data)


def find_columns(file: h5py.File, columns: Iterable[str]) -> dict[str, Extent]:
    """Return the extents of ``<column>/values`` and ``<column>/offset``, without those that are absent or damaged."""
    extents = {}
    for name in (f"{column}/{part}" for column in columns for part in ("values", "offset")):
        with suppress(KeyError, RuntimeError):  # h5py raises RuntimeError if there is no such name
            extents[name] = Extent.of(file, name)
    return extents


def is_stored(
    extents: Mapping[str, Extent], column: str, shape: tuple[int, ...], store: str, offset_rows: int
) -> bool:
    """Return whether the datasets of a column have the shapes and types of FORMAT.md.

    ``shape`` is the shape of the decoded values.
    """
    expected = {"values": (shape, STORED_DTYPE[store])}
    if store != "float32":
        offsets = -(-shape[0] // offset_rows)
        expected["offset"] = (offsets, *shape[2:]) if offsets > 1 else shape[2:], np.dtype("<f4")
    stored = {part: extents.get(f"{column}/{part}") for part in ("values", "offset")}
    return expected == {part: (extent.shape, extent.dtype) for part, extent in stored.items() if extent}


def read_column(
    file: BinaryIO, extents: Mapping[str, Extent], column: str, rows: NDArray[np.integer] | None = None
) -> Encoded:
    """Read a column, or the values of some rows and all offsets, from an open file."""
    values, offset = extents[f"{column}/values"], extents.get(f"{column}/offset")
    return Encoded(values.read(file, rows), offset and offset.read(file).reshape(-1, values.shape[-1]))


def encode(
    x: NDArray[np.float32], store: str, *, column: str, first_row: int = 0, offset_rows: int | None = None
) -> Encoded:
    """Round features (rows, tokens, width); raises CacheError for a value that is not finite or would overflow."""
    x = np.ascontiguousarray(x, dtype="<f4")
    rows, _, width = x.shape
    step = offset_rows or rows
    values: NDArray = x if store == "float32" else np.empty(x.shape, STORED_DTYPE[store])
    offsets = np.empty((-(-rows // step), width), "<f4")
    # An offset is the mean of its rows and tokens in float64; what is stored is the rounded difference from it.
    with np.errstate(invalid="ignore", over="ignore"):
        for offset, low in zip(offsets, range(0, rows, step), strict=True):
            part = x[low : low + step].reshape(-1, width)
            mean = part.mean(axis=0, dtype=np.float64)
            if not np.isfinite(mean).all():  # a float64 sum of finite float32 values is finite
                place, where = _first(~np.isfinite(x), column, first_row)
                raise CacheError(
                    f"{where}: {x[place]} is not finite and cannot be stored; the forward pass failed there: check "
                    "that row of the input, or compute in float32"
                )
            if store != "float32":
                offset[...] = mean
                _round(part - offset, store, values[low : low + step].reshape(part.shape))
    if store == "float32":
        return Encoded(values, None)
    # A difference that overflows has been rounded to infinity. The bits of floats, as signed numbers, are largest for
    # positive infinity, and as unsigned numbers for negative infinity.
    bits, infinity = values.view(np.uint16), _INFINITY[store]
    overflows = bits.view(np.int16).max() >= infinity or bits.max() >= infinity + 0x8000
    if overflows:
        place, where = _first(bits & infinity == infinity, column, first_row)
        distance = abs(x[place] - offsets[place[0] // step, place[2]])
        wider = "--store float32" if store == "bfloat16" else "--store float32 or --store bfloat16"
        problem = f"{where}: {x[place]:g} differs by {distance:.3g} from its channel's mean"
        raise CacheError(f"{problem}, which overflows {store}; extract with {wider}")
    return Encoded(values, offsets)


def decode(
    encoded: Encoded, store: str, offset_rows: int | None = None, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the features (rows, tokens, width) as float32, in ``out`` if it is given."""
    out = np.empty(encoded.values.shape, np.float32) if out is None else out
    step = offset_rows or len(out)
    # Decode slab by slab. Each slab holds whole groups of rows that share an offset.
    groups = max(1, _SLAB // (step * math.prod(out.shape[1:])))
    slab_rows = groups * step
    for low in range(0, len(out), slab_rows):
        stored = encoded.values[low : low + slab_rows]
        part = out[low : low + slab_rows]
        if store == "bfloat16":
            # bfloat16 is the upper half of float32.
            np.left_shift(stored, 16, out=part.view(np.uint32), dtype=np.uint32)
        else:
            part[...] = stored
        if encoded.offset is not None:
            # One offset broadcasts over the slab; several are repeated, one for each row, and the last group may be
            # short.
            offsets = encoded.offset[low // step : (low + slab_rows) // step]
            part += offsets if len(offsets) == 1 else np.repeat(offsets, step, axis=0)[: len(part), None]
    return out


def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 to bfloat16, ties to even, and return its bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    # bfloat16 is the upper half of float32. Adding 0x7FFF, and one if that half is odd, rounds it up
    # where necessary.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _round(x: NDArray[np.float32], store: str, out: NDArray) -> None:
    """Round finite float32 to float16 or bfloat16, ties to even."""
    if store == "bfloat16":
        out[...] = bfloat16_bits(x)
    # torch rounds ten times as fast as numpy; this package does not need it, but extract has imported it.
    elif torch := sys.modules.get("torch"):
        torch.from_numpy(out).copy_(torch.from_numpy(x))
    else:
        out[...] = x


class _Image(mmap.mmap):
    """A file in memory for h5py to write; pages that are never written take no memory."""

    end = 0  # of what has been written

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        super().seek(self.end if whence == os.SEEK_END else offset)

    def write(self, data: Any) -> None:
        super().write(data)
        self.end = max(self.end, self.tell())

    def truncate(self, size: int) -> None:
        self.end = size


def file_content(
    datasets: Mapping[str, NDArray],
    attributes: Mapping[str, Mapping[str, int | str]] = MappingProxyType({}),
) -> list[memoryview]:
    """Return an HDF5 file with some datasets, and with attributes by the name of their dataset, "/" for the file.

    The file comes in pieces. Values of large datasets are not copied, which would take longer than
    writing the file.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in datasets.items()}
    # The most bytes that the file may have; 2**20 of them are for HDF5's own structures.
    capacity = 2**20 + sum(array.nbytes + _METADATA for array in arrays.values())
    image = _Image(-1, capacity, mmap.MAP_PRIVATE)
    large = dict[int, NDArray]()  # by position in the file
    with h5py.File(image, "w") as file:
        for name in ("/", *arrays):
            item = file
            if (array := arrays.get(name)) is not None:
                is_large = array.nbytes >= _LARGE
                data = None if is_large else array
                item = file.create_dataset(name, array.shape, array.dtype, data, track_times=False)
                if is_large:
                    item[(0,) * array.ndim] = array.flat[0]  # HDF5 now reserves the space of all values
                    large[item.id.get_offset()] = array
            for key, value in attributes.get(name, {}).items():
                item.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)
    # The file consists of what HDF5 has written, with the values of large datasets in the places that it has reserved.
    content = memoryview(image)
    pieces = list[memoryview]()
    start = 0
    for position, array in sorted(large.items(), key=itemgetter(0)):
        pieces += [content[start:position], array.data.cast("B")]
        start = position + array.nbytes
    return [*pieces, content[start : image.end]]


def shard_content(
    header: Mapping[str, int | str], columns: Mapping[str, Encoded], store: str
) -> tuple[list[memoryview], int]:
    """Return the content of a shard's file in pieces, and its CRC-32."""
    datasets, attributes = dict[str, NDArray](), {"/": header}
    for column, encoded in sorted(columns.items()):
        datasets[f"{column}/values"] = encoded.values
        attributes[f"{column}/values"] = {"encoding": store, "crc32": encoded.crc32}
        if (offset := encoded.offset) is not None:
            datasets[f"{column}/offset"] = offset[0] if len(offset) == 1 else offset
    pieces, crc = file_content(datasets, attributes), 0
    # The values of large columns are pieces of their own, whose CRC-32 has been computed: it is joined, not repeated.
    value_crcs = {id(encoded.values): encoded.crc32_of_values for encoded in columns.values()}
    for piece in pieces:
        value_crc = value_crcs.get(id(piece.obj))
        crc = crc32_of(piece, crc) if value_crc is None else joined_crc32(crc, value_crc, len(piece))
    return pieces, crc


@dataclass(frozen=True)
class ShardContent:
    """What a shard's file says of itself: its header, and the shape and the CRC-32 of each of its columns."""

    header: dict[str, int | str]
    columns: dict[str, Column]
    crc32s: dict[str, str]


def inspect_shard(path: Path, store: str, offset_rows: int) -> ShardContent:
    """Return the header and the columns of a shard; raises CacheError for a column that FORMAT.md does not allow.

    The values of each column are read, and compared with the CRC-32 in its attributes.
    """
    columns, crc32s = dict[str, Column](), dict[str, str]()
    with open_hdf5(path) as file, path.open("rb") as raw:
        header = {name: v.decode() if isinstance(v, bytes) else int(v) for name, v in file.attrs.items()}
        for name in [
            name.removesuffix("/values") for name in dataset_names(file) if name.endswith("/values")
        ]:
            check_column_name(name)
            extents = find_columns(file, [name])
            # The header gives the number of rows, and the file the number of tokens and the width.
            low, high = int(header["low"]), int(header["high"])
            shape = (high - low, *extents[f"{name}/values"].shape[1:])
            has_three_axes = len(shape) == 3 and 0 not in shape  # rows, tokens, width; none of them empty
            if not has_three_axes or not is_stored(extents, name, shape, store, offset_rows):
                raise CacheError(
                    f"{path}: column {name} is not stored as {store} of shape ({high - low}, tokens, width) with its "
                    "offsets"
                )
            encoded = read_column(raw, extents, name)
            crc32s[name] = encoded.crc32
            if file[f"{name}/values"].attrs["crc32"] != crc32s[name].encode():
                raise CacheError(
                    f"{path}: the values of column {name} do not have the CRC-32 that it names"
                )
            columns[name] = Column(*encoded.values.shape[1:])
    return ShardContent(header, columns, crc32s)


def _first(wrong: NDArray[np.bool_], column: str, first_row: int) -> tuple[tuple[int, ...], str]:
    """Return the index of the first wrong value, and a description of its position."""
    row, token, channel = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    return (
        row,
        token,
        channel,
    ), f"column {column}, row {first_row + row}, token {token}, channel {channel}"
