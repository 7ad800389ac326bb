"""Shards: HDF5 files with some columns of one block of rows. FORMAT.md has the layout and, in "Encoding", equations.

`open_hdf5` opens every HDF5 file that this project reads, other people's files too.
"""

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
from threading import Lock
from types import MappingProxyType
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5l, h5pl  # pyright: ignore[reportAttributeAccessIssue]
from numpy.typing import NDArray

from reservoir_cache.entry import StoredColumn, check_column_name
from reservoir_cache.errors import CacheError, UnstorableError
from reservoir_cache.paths import crc32_of, joined_crc32

STORED_DTYPE = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}
"""Data type on disk by the specification's ``store``; NumPy has no bfloat16, so its bits are stored."""

# Values that differ by less, as a share of themselves, differ by errors of float32 arithmetic, which nobody needs.
_ROUNDING_ERROR = 1e-4

_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits of positive infinity

_SLAB_VALUES = 2**16  # values that are decoded together, so that they stay in the processor's cache

_METADATA_BYTES = 2**14  # more than HDF5 needs for the name, type and attributes of a dataset
_LARGE_BYTES = 2**16  # datasets of at least this size are not copied into the image of a file

TARGET_RANKS = {
    "y": (3,),
    "lengths": (1,),
    "index": (1,),
    "groups": (1,),
    "ids": (1, 2),
    "pointers": (1,),
    "token_ids": (1,),
    "spans": (2,),
    "numbers_in_text": (1,),
    "text_ids": (1, 2),
    "stretches": (1,),
    "group_names": (2,),
}
"""Possible numbers of dimensions of each dataset of ``targets.h5``, in the order in which they are written."""

OPTIONAL_TARGETS = {*TARGET_RANKS} - {"y", "lengths", "index"}
"""The datasets of ``targets.h5`` that may be absent."""

TEXT_TARGETS = {"pointers": 1, "text_ids": 0}
"""The datasets with an item for each text, and how many more items they have than there are texts."""

# The errors that HDF5 and h5py raise for a damaged file; CacheError is a ValueError.
UNREADABLE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Extent:
    """The bytes of a file that hold an array."""

    position: int  # of the first byte in the file; 0 for an empty array, which has no bytes
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, group: h5py.Group, name: str) -> "Extent":
        """Find a dataset of numbers; raises KeyError if its values are not stored in this file."""
        # Soft and external links may lead to other files. Each group on the path counts, and the dataset itself.
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if group.id.links.get_info(path.encode()).type != h5l.TYPE_HARD:
                raise KeyError(f"{name} is not in the file itself")
        dataset = group[name]
        numeric_kinds = "biufc"  # booleans, integers, unsigned integers, floats, complex numbers
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in numeric_kinds:
            raise KeyError(f"{name} is not a dataset of numbers")
        # Virtual and external datasets have their values in other files, and one without storage reads as zeros.
        properties = dataset.id.get_create_plist()
        is_contiguous = properties.get_layout() == h5py.h5d.CONTIGUOUS
        is_external = properties.get_external_count() > 0
        position = dataset.id.get_offset()
        has_storage = position is not None or dataset.nbytes == 0
        has_size_of_values = dataset.id.get_storage_size() == dataset.nbytes
        if is_external or not (is_contiguous and has_storage and has_size_of_values):
            raise KeyError(f"{name} is not stored contiguously in the file")
        return cls(position or 0, dataset.shape, dataset.dtype)

    def read(self, file: BinaryIO, rows: NDArray[np.integer] | None = None) -> NDArray:
        """Read the array, or some of its rows; raises ValueError if the file ends too early."""
        if rows is None:
            file.seek(self.position)
            return np.fromfile(file, self.dtype, math.prod(self.shape)).reshape(self.shape)
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        contents = [
            os.pread(file.fileno(), row_bytes, self.position + int(row) * row_bytes) for row in rows
        ]
        return np.frombuffer(b"".join(contents), self.dtype).reshape(len(rows), *self.shape[1:])


_PLUGIN_FOLDERS = Lock()


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading, without HDF5's own lock, and without loading filters from this process's plugin folders.

    A file names the filters of its values by number. HDF5 looks for a filter that it does not have in the
    folders of ``HDF5_PLUGIN_PATH``, and runs the libraries that it finds there. Filters that the process has
    registered itself still work.
    """
    # The list of plugin folders is cleared each time, because other code may have added to it. Only one thread clears
    # it at a time: removing a folder that another thread has removed is an error.
    with _PLUGIN_FOLDERS:
        for _ in range(h5pl.size()):
            h5pl.remove(0)
    return h5py.File(path, "r", locking=False)


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file, which is written to ``path`` at the end; an interrupted write may leave a part of it."""
    # The file is made in memory: on a full disk HDF5 could not close its own file, and would crash the process later.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        yield file
    path.write_bytes(image.getvalue())


def read_array(group: h5py.Group, name: str) -> NDArray:
    """Read a whole dataset of numbers; raises KeyError if it is absent, or its values are not stored in this file."""
    Extent.of(group, name)  # called for its checks
    return np.asarray(group[name][()])  # pyright: ignore[reportIndexIssue]


def numbers_of_ids(ids: NDArray) -> NDArray:
    """Return row ids (rows,) as they are stored: int64, or for texts their UTF-8 (rows, bytes), padded with zeros."""
    are_texts = ids.dtype.kind == "U"
    if not are_texts:
        return ids.astype("<i8")
    texts = np.char.encode(ids, "utf-8", "surrogatepass")  # names of files need not be valid UTF-8
    return texts.view(np.uint8).reshape(len(ids), -1)


def ids_of_numbers(stored: NDArray) -> NDArray:
    """Return stored row ids as integers or texts (rows,), the inverse of `numbers_of_ids`.

    Raises ValueError for an array of another shape or type.
    """
    if stored.ndim == 1 and stored.dtype == np.int64:
        return stored
    if stored.ndim != 2 or stored.dtype != np.uint8 or stored.shape[1] == 0:
        raise ValueError(f"ids of shape {stored.shape} and type {stored.dtype}")
    # The bytes of a row become one text: (rows, bytes), (rows, 1), (rows,). NumPy drops the zeros at its end.
    texts = np.ascontiguousarray(stored).view(f"S{stored.shape[1]}")[:, 0]
    return np.char.decode(texts, "utf-8", "surrogatepass")


def places_in_text(pointers: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the place of each row among those of its text, from 0, (rows,); for ``pointers`` see `SplitFeatures`."""
    first_row_of_text = np.repeat(pointers[:-1], np.diff(pointers))  # of the text of each row
    return np.arange(pointers[-1]) - first_row_of_text


def dataset_names(group: h5py.Group) -> list[str]:
    """Return the paths of the datasets below a group, such as ``block06/mean/values``; no link is followed."""
    names = list[str]()
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


@dataclass(frozen=True)
class Encoded:
    """Some rows of a column as they are stored, usually those of a block."""

    values: NDArray  # (rows, tokens, width), little-endian, of a type of `STORED_DTYPE`
    # (offsets, width), one for each group of rows; None if values are float32
    offset: NDArray[np.float32] | None

    @classmethod
    def joined(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Return the rows of all parts, in order, with the offsets of all parts."""
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
    """Return {name: extent} of the datasets ``<column>/values`` and ``<column>/offset`` of some columns.

    Those that are absent or damaged are left out.
    """
    extents = {}
    for column in columns:
        for name in (f"{column}/values", f"{column}/offset"):
            with suppress(KeyError, RuntimeError):  # h5py raises RuntimeError if there is no such name
                extents[name] = Extent.of(file, name)
    return extents


def is_stored(
    extents: Mapping[str, Extent], column: str, shape: tuple[int, ...], store: str, offset_rows: int
) -> bool:
    """Return whether the datasets of a column have the shapes and types of FORMAT.md.

    ``extents`` are those of `find_columns`, and ``shape`` is that of the decoded values, (rows, tokens, width).
    """
    rows, _, width = shape
    expected = {"values": (shape, STORED_DTYPE[store])}
    if store != "float32":
        offsets = -(-rows // offset_rows)  # rounded up: the last group of rows may be short
        expected["offset"] = ((offsets, width) if offsets > 1 else (width,), np.dtype("<f4"))
    stored = {part: extents.get(f"{column}/{part}") for part in ("values", "offset")}
    return expected == {part: (extent.shape, extent.dtype) for part, extent in stored.items() if extent}


def read_column(
    file: BinaryIO, extents: Mapping[str, Extent], column: str, rows: NDArray[np.integer] | None = None
) -> Encoded:
    """Read a column, or the values of some rows and all offsets, from an open file.

    ``extents`` are those of `find_columns`, and `is_stored` is true of them.
    """
    values = extents[f"{column}/values"]
    offset = extents.get(f"{column}/offset")
    if offset is None:
        return Encoded(values.read(file, rows), None)
    # A single offset is stored without the axis of offsets.
    width = values.shape[-1]
    return Encoded(values.read(file, rows), offset.read(file).reshape(-1, width))


def encode(
    x: NDArray[np.float32], store: str, *, column: str, first_row: int = 0, offset_rows: int | None = None
) -> Encoded:
    """Return features (rows, tokens, width) as they are stored, rounded to the type ``store``.

    Each ``offset_rows`` consecutive rows share an offset; by default all of them. ``column``, and the number
    ``first_row`` of the first row in its split, are for messages. Raises UnstorableError for a value that is not
    finite, or would be infinite after rounding, and if rounding makes all rows of a column equal that were not.
    """
    x = np.ascontiguousarray(x, dtype="<f4")
    rows, _, width = x.shape
    group_rows = offset_rows or rows
    values: NDArray = x if store == "float32" else np.empty(x.shape, STORED_DTYPE[store])
    groups = -(-rows // group_rows)  # rounded up: the last group of rows may be short
    offsets = np.empty((groups, width), "<f4")
    # An offset is the mean of its rows and tokens in float64; what is stored is the rounded difference from it.
    with np.errstate(invalid="ignore", over="ignore"):
        for offset, low in zip(offsets, range(0, rows, group_rows), strict=True):
            group = x[low : low + group_rows].reshape(-1, width)
            mean = group.mean(axis=0, dtype=np.float64)
            # A float64 sum of finite float32 values is finite, so if it is not, some value is not.
            if not np.isfinite(mean).all():
                index = _first_index(~np.isfinite(x))
                raise UnstorableError(
                    first_row + index[0],
                    f"{_position_text(index, column)}: {x[index]} is not finite and cannot be stored; the forward pass "
                    "failed there: check that row of the input, or compute in float32",
                )
            if store != "float32":
                offset[...] = mean
                _round(group - offset, store, out=values[low : low + group_rows].reshape(group.shape))
    if store == "float32":
        return Encoded(values, None)
    # A difference that overflows has been rounded to infinity. The bits of floats, as signed numbers, are largest for
    # positive infinity, and as unsigned numbers for negative infinity, which has the sign bit 0x8000, too. Two maxima
    # take a quarter of the time of a mask of all infinite values, so only a block that overflows gets a mask. The
    # bits of zero are 0, and 0x8000 with the sign.
    bits = values.view(np.uint16)
    infinity = _INFINITY[store]
    largest_positive, largest_negative = bits.view(np.int16).max(), bits.max()
    overflows = largest_positive >= infinity or largest_negative >= infinity + 0x8000
    all_are_zero = largest_positive <= 0 and largest_negative in (0, 0x8000)
    if overflows or all_are_zero:
        offset_of_row = offsets[np.arange(rows) // group_rows, None]  # None is the axis of tokens
        _refuse_loss(x, offset_of_row, store, overflows=overflows, column=column, first_row=first_row)
    return Encoded(values, offsets)


def _refuse_loss(
    x: NDArray[np.float32],
    offsets: NDArray[np.float32],
    store: str,
    *,
    overflows: bool,
    column: str,
    first_row: int,
) -> None:
    """Raise UnstorableError for features (rows, tokens, width) that overflow ``store``, or that it rounds to offsets.

    ``offsets`` are (rows, 1, width). Features that all become offsets are no loss if they differ from these by rounding
    errors alone.
    """
    with np.errstate(over="ignore"):
        distances = np.abs(x - offsets)
    # The value to name is the one farthest from its mean: it may have drawn the mean so far away that the other values
    # of its channel overflow, too. Of values that are lost, it is the first.
    to_name = distances == distances.max() if overflows else distances > _ROUNDING_ERROR * np.abs(x)
    if not to_name.any():
        return
    index = _first_index(to_name)
    reason = f"too little for {store};"
    if overflows:
        reason = f"which overflows {store}; check that row of the input, or"
    wider = "--store float32" if store == "bfloat16" else "--store float32 or --store bfloat16"
    raise UnstorableError(
        first_row + index[0],
        f"{_position_text(index, column)}: {x[index]:g} differs by {distances[index]:.3g} from its channel's mean, "
        f"{reason} extract with {wider}",
    )


def decode(
    encoded: Encoded, store: str, offset_rows: int | None = None, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the features (rows, tokens, width) as float32, in ``out`` if it is given; the inverse of `encode`."""
    out = np.empty(encoded.values.shape, np.float32) if out is None else out
    group_rows = offset_rows or len(out)
    # Decode slab by slab. Each slab holds whole groups of rows that share an offset.
    values_per_row = math.prod(out.shape[1:])
    groups = max(1, _SLAB_VALUES // (group_rows * values_per_row))
    slab_rows = groups * group_rows
    for low in range(0, len(out), slab_rows):
        stored = encoded.values[low : low + slab_rows]
        slab = out[low : low + slab_rows]
        if store == "bfloat16":
            # bfloat16 is the upper half of float32.
            np.left_shift(stored, 16, out=slab.view(np.uint32), dtype=np.uint32)
        else:
            slab[...] = stored
        if encoded.offset is not None:
            offsets = encoded.offset[low // group_rows : (low + slab_rows) // group_rows]
            if len(offsets) == 1:
                slab += offsets  # broadcasts over rows and tokens
            else:
                # Repeat each offset for the rows of its group. The last group may be short; None is the axis of tokens.
                slab += np.repeat(offsets, group_rows, axis=0)[: len(slab), None]
    return out


def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 to bfloat16, ties to even, and return its bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    # bfloat16 is the upper half of float32. The sum carries into this half exactly if the lower half is more than
    # 0x8000, or is 0x8000 (a tie) and the upper half is odd.
    is_odd = (bits >> 16) & 1
    return ((bits + 0x7FFF + is_odd) >> 16).astype("<u2")


def _round(x: NDArray[np.float32], store: str, out: NDArray) -> None:
    """Round finite float32 to float16 or bfloat16, ties to even, into ``out`` of the same shape."""
    if store == "bfloat16":
        out[...] = bfloat16_bits(x)
    # torch rounds ten times as fast as NumPy. It is used only where something else has imported it, as `extract` has:
    # this package does not depend on it.
    elif torch := sys.modules.get("torch"):
        torch.from_numpy(out).copy_(torch.from_numpy(x))
    else:
        out[...] = x


class _Image(mmap.mmap):
    """A file in memory for h5py to write, which needs these methods; pages that are never written take no memory."""

    end = 0  # the size that the file would have; the memory map itself has the size that it may grow to

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        """Go to a position from the start, or to the end of the file: h5py asks for its size so."""
        super().seek(self.end if whence == os.SEEK_END else offset)

    def write(self, data: Any) -> None:
        """Write at the current position."""
        super().write(data)
        self.end = max(self.end, self.tell())

    def truncate(self, size: int) -> None:
        """Set the size of the file; the memory map keeps its own."""
        self.end = size


def file_content(
    datasets: Mapping[str, NDArray],
    attributes: Mapping[str, Mapping[str, int | str]] = MappingProxyType({}),
) -> list[memoryview]:
    """Return an HDF5 file with some datasets, and with attributes by the name of their dataset, "/" for the file.

    The file comes in pieces, whose concatenation it is. Values of large datasets are not copied, which would take
    longer than writing the file.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in datasets.items()}
    # The most bytes that the file may have; 2**20 of them are for HDF5's own structures.
    capacity = 2**20 + sum(array.nbytes + _METADATA_BYTES for array in arrays.values())
    image = _Image(-1, capacity, mmap.MAP_PRIVATE)  # -1: memory, instead of the descriptor of a file
    # HDF5 writes the image: the attributes, the small datasets, and the space of the large ones.
    large_arrays = dict[int, NDArray]()  # by their position in the file
    with h5py.File(image, "w") as file:
        _write_attributes(file, attributes.get("/", {}))
        for name, array in arrays.items():
            is_large = array.nbytes >= _LARGE_BYTES
            data = None if is_large else array
            dataset = file.create_dataset(name, array.shape, array.dtype, data, track_times=False)
            if is_large:
                dataset[(0,) * array.ndim] = array.flat[0]  # writing one value reserves the space of all
                large_arrays[dataset.id.get_offset()] = array
            _write_attributes(dataset, attributes.get(name, {}))
    # The file is the image, with the values of the large datasets in the space that HDF5 has reserved.
    content = memoryview(image)
    pieces = list[memoryview]()
    start = 0  # of the part of the image after the last large dataset
    for position, array in sorted(large_arrays.items(), key=itemgetter(0)):
        pieces += [content[start:position], array.data.cast("B")]
        start = position + array.nbytes
    return [*pieces, content[start : image.end]]


def _write_attributes(item: h5py.Group | h5py.Dataset, attributes: Mapping[str, int | str]) -> None:
    """Give a dataset or a file attributes: fixed strings and int64, as FORMAT.md has them."""
    for name, value in attributes.items():
        item.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)


def shard_content(
    header: Mapping[str, int | str], columns: Mapping[str, Encoded], store: str
) -> tuple[list[memoryview], int]:
    """Return the content of a shard's file in pieces, and the CRC-32 of the whole file.

    ``header`` has the attributes of the file. ``store`` is the type that all columns are stored as, a key of
    `STORED_DTYPE`; each dataset of values names it in its attribute ``encoding``.
    """
    datasets = dict[str, NDArray]()
    attributes = {"/": header}
    for column, encoded in sorted(columns.items()):
        datasets[f"{column}/values"] = encoded.values
        attributes[f"{column}/values"] = {"encoding": store, "crc32": encoded.crc32}
        if (offset := encoded.offset) is not None:
            # A single offset is stored without the axis of offsets.
            datasets[f"{column}/offset"] = offset[0] if len(offset) == 1 else offset
    pieces = file_content(datasets, attributes)
    # The values of a large column are one piece, a view of the same array. Their CRC-32 is known, and joined to that of
    # the pieces before them; the CRC-32 of any other piece is computed.
    crc = 0
    crc_of_array = {id(encoded.values): encoded.crc32_of_values for encoded in columns.values()}
    for piece in pieces:
        crc_of_piece = crc_of_array.get(id(piece.obj))
        crc = crc32_of(piece, crc) if crc_of_piece is None else joined_crc32(crc, crc_of_piece, len(piece))
    return pieces, crc


@dataclass(frozen=True)
class ShardContent:
    """What a shard's file says of itself."""

    header: dict[str, int | str]  # the attributes of the file
    columns: dict[str, StoredColumn]  # the shape of each column
    crc32s: dict[str, str]  # of the values, then the offsets of each column


def inspect_shard(path: Path, store: str, offset_rows: int) -> ShardContent:
    """Return the header and the columns of a shard; raises CacheError for a column that FORMAT.md does not allow.

    The values of each column are read, and compared with the CRC-32 in its attributes.
    """
    columns = dict[str, StoredColumn]()
    crc32s = dict[str, str]()
    with open_hdf5(path) as file, path.open("rb") as raw_file:
        header = {
            name: value.decode() if isinstance(value, bytes) else int(value)
            for name, value in file.attrs.items()
        }
        low, high = int(header["low"]), int(header["high"])
        for dataset in dataset_names(file):
            if not dataset.endswith("/values"):
                continue
            name = dataset.removesuffix("/values")
            check_column_name(name)
            extents = find_columns(file, [name])
            # The header gives the number of rows, and the dataset the number of tokens and the width.
            shape = (high - low, *extents[dataset].shape[1:])
            has_three_axes = len(shape) == 3 and 0 not in shape  # rows, tokens, width; none of them empty
            if not has_three_axes or not is_stored(extents, name, shape, store, offset_rows):
                raise CacheError(
                    f"{path}: column {name} is not stored as {store} of shape ({high - low}, tokens, width) with its "
                    "offsets"
                )
            encoded = read_column(raw_file, extents, name)
            crc32s[name] = encoded.crc32
            if file[dataset].attrs["crc32"] != crc32s[name].encode():
                raise CacheError(
                    f"{path}: the values of column {name} do not have the CRC-32 that it names"
                )
            columns[name] = StoredColumn(*encoded.values.shape[1:])
    return ShardContent(header, columns, crc32s)


def _first_index(mask: NDArray[np.bool_]) -> tuple[int, int, int]:
    """Return row, token and channel of the first value of a mask (rows, tokens, width) that is True."""
    row, token, channel = np.unravel_index(int(mask.argmax()), mask.shape)
    return int(row), int(token), int(channel)


def _position_text(index: tuple[int, int, int], column: str) -> str:
    """Return the position of a value in its row in words; ``index`` has row, token and channel."""
    _, token, channel = index
    return f"column {column}, token {token}, channel {channel}"
