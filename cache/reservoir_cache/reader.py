"""Read the columns of an entry as arrays, or block by block in bounded memory."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from reservoir_cache.entry import NAME, Entry, Shard, TargetFile, has_listed_size
from reservoir_cache.errors import CacheError, repair_command
from reservoir_cache.hdf5 import open_hdf5
from reservoir_cache.locks import mark_used
from reservoir_cache.paths import file_crc32
from reservoir_cache.shard import (
    OPTIONAL_TARGETS,
    TARGET_RANKS,
    TEXT_TARGETS,
    UNREADABLE,
    Encoded,
    Extent,
    decode,
    find_columns,
    ids_of_numbers,
    is_stored,
    read_array,
    read_column,
)

if TYPE_CHECKING:
    from dask.array import Array

FEW = 1 / 8  # rows are read one by one if they are less than this share of a block
Stamp = tuple[int, int, int, int]
"""Device, inode, modification time and size of a file, which change with its content."""

# Columns whose checksum this process has verified: the stamp of the file, and the name, or "" for the whole file. A
# process verifies a column once, however many readers open it.
_checked: set[tuple[int, int, int, int, str]] = set()


class FeatureStore:
    """The features and labels of an entry, read-only: ``store["train"]["block06/mean"]`` is (rows, width) float32."""

    def __init__(self, entry: Entry | Path | str) -> None:
        self.entry = entry if isinstance(entry, Entry) else Entry.open(Path(entry))
        mark_used(self.entry.path)
        self._splits: dict[str, SplitFeatures] = {}

    @property
    def splits(self) -> list[str]:
        """The splits that have features, sorted."""
        return [split for split in self.entry.splits if (self.entry.path / split / NAME).exists()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __getitem__(self, split: str) -> "SplitFeatures":
        if split not in self._splits:
            self._splits[split] = SplitFeatures(self.entry, split)
        return self._splits[split]

    def to_torch(self, split: str, columns: str | Sequence[str]) -> "FeatureRows":
        """Return columns and labels of a split as a dataset for ``torch.utils.data.DataLoader``; see `FeatureRows`."""
        return FeatureRows(self[split], [columns] if isinstance(columns, str) else columns)


class SplitFeatures:
    """The columns of one split, as listed by its manifest when this object was created."""

    def __init__(self, entry: Entry, split: str) -> None:
        self.split = split
        # Not public, because whoever has one split must not come to the others by it.
        self._entry = entry
        self._folder = entry.path / split
        self._manifest = entry.manifest(split)
        self._ranges = entry.blocks(split)
        self._shards = self._manifest.held()
        self._extents: dict[tuple[str, Stamp], dict[str, Extent]] = {}
        for line in self._manifest.files.values():
            if not has_listed_size(self._folder, line):
                problem = f"{self._folder / line.file}: missing, or not of {line.bytes} bytes"
                raise CacheError(f"{problem}; {repair_command(entry.key)}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._manifest.rows

    @cached_property
    def columns(self) -> list[str]:
        """The columns that every block has, sorted."""
        blocks = [self._shards.get(block, {}) for block in range(len(self._ranges))]
        return sorted(name for name in self._manifest.columns if all(name in shards for shards in blocks))

    def shape(self, column: str) -> tuple[int, int]:
        """Return (tokens, width) of a column."""
        self._require(column)
        shape = self._manifest.columns[column]
        return shape.tokens, shape.width

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, column: str) -> "FeatureColumn":
        """Return a column: (rows, width), or (rows, tokens, width) if it has more than one token; float32."""
        return FeatureColumn(self, column)

    def read(self, column: str) -> NDArray[np.float32]:
        """Return all rows of a column, (rows, tokens, width)."""
        self._require(column)
        out = np.empty(0, np.float32)
        for block, (low, high) in enumerate(self._ranges):
            encoded = self._encoded(block, column)
            # allocate only after reading a block, because a damaged file may claim any number of rows
            if not block:
                out = np.empty((self.rows, *encoded.values.shape[1:]), np.float32)
            self._decode(encoded, out[low:high])
        return out

    def gather(self, column: str, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows of a column, (len(rows), tokens, width), in the order of ``rows``."""
        self._require(column)
        shape = self.shape(column)
        block_rows = self._entry.layout.block_rows
        store = self._entry.spec.store
        out = np.empty((len(rows), *shape), np.float32)
        if not len(rows):
            return out
        # The positions in `rows` are sorted by block and cut where the block changes, so that each block is read once.
        blocks = rows // block_rows
        order = np.argsort(blocks, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1):
            block = int(blocks[positions[0]])
            rows_in_block = rows[positions] - block * block_rows
            encoded = self._encoded(block, column, rows_in_block)
            # Neighbouring values may have different offsets, so each row gets the offset of its own part of the block.
            values = decode(Encoded(encoded.values, None), store)
            if encoded.offset is not None:
                values += encoded.offset[rows_in_block // self._entry.layout.offset_rows, None]
            out[positions] = values
        return out

    def blocks(self, column: str) -> Iterator[NDArray[np.float32]]:
        """Yield the blocks of a column in row order, each (rows, tokens, width) of float32."""
        self._require(column)
        return (self.block(column, block) for block in range(len(self._ranges)))

    def block(self, column: str, block: int) -> NDArray[np.float32]:
        """Return one block of a column, (rows, tokens, width)."""
        return self._decode(self._encoded(block, column))

    def stored(self, column: str, block: int) -> Encoded:
        """Return one block of a column as it is stored; `offset_rows` rows after each other share an offset."""
        self._require(column)
        return self._encoded(block, column)

    @property
    def offset_rows(self) -> int:
        """The number of rows of a block that share an offset."""
        return self._entry.layout.offset_rows

    @cached_property
    def _targets(self) -> dict[str, NDArray]:
        """The arrays of labels, lengths, ids and groups; their file is verified on the first read in a process."""
        line = self._manifest.targets
        if line is None:
            raise CacheError(
                f"{self._folder}: has no labels; run the extract that made {self._entry.path.name} again"
            )
        path = self._folder / line.file
        try:
            stamp = (*_stamp(path.stat()), "")
            if stamp not in _checked and file_crc32(path) != line.crc32:
                raise self._damaged(line)
            with open_hdf5(path) as file:
                names = [name for name in TARGET_RANKS if name not in OPTIONAL_TARGETS or name in file]
                arrays = {name: read_array(file, name) for name in names}
        except UNREADABLE as error:
            raise self._damaged(line) from error
        for name, array in arrays.items():
            is_by_text = name in TEXT_TARGETS
            if array.ndim not in TARGET_RANKS[name] or (not is_by_text and len(array) != self.rows):
                raise self._damaged(line)
        if not _divides(arrays, self.rows):
            raise self._damaged(line)
        _checked.add(stamp)
        return arrays

    @property
    def labels(self) -> NDArray:
        """Labels of shape (rows, readout_tokens, outputs)."""
        return self._targets["y"]

    @property
    def y(self) -> NDArray:
        """Labels: (rows,) if each row has one, else (rows, readout_tokens, outputs)."""
        return self.labels[:, 0, 0] if self.labels.shape[1:] == (1, 1) else self.labels

    @property
    def lengths(self) -> NDArray:
        """Number of real tokens of each row, (rows,)."""
        return self._targets["lengths"]

    @property
    def index(self) -> NDArray:
        """Row numbers in this split of the prepared data, (rows,)."""
        return self._targets["index"]

    @cached_property
    def ids(self) -> NDArray:
        """What names each row in its source, (rows,) of texts or int64: an id, a file name or a row number from 0.

        If the entry stores no ids, they are the numbers of `index`. If rows are tokens, these are the names of texts.
        """
        stored, line = self._targets.get("ids"), self._manifest.targets
        assert line  # `_targets` refuses a split without labels
        try:
            if (of_texts := self._targets.get("text_ids")) is not None:
                return np.repeat(ids_of_numbers(of_texts), np.diff(self._targets["pointers"]))
            return self.index if stored is None else ids_of_numbers(stored)
        except UNREADABLE as error:
            raise self._damaged(line) from error

    @property
    def pointers(self) -> NDArray[np.int64] | None:
        """The first row of each text, and the number of rows, (texts + 1,), if rows are words or tokens of texts.

        None if they are not. ``rows[pointers[t] : pointers[t + 1]]`` are those of text t.
        """
        return self._targets.get("pointers")

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """The ID in the model's vocabulary of the token of each row, (rows,), if rows are words or tokens of texts."""
        self._require_texts()
        return self._targets["token_ids"]

    @property
    def spans(self) -> NDArray[np.int32]:
        """The first letter of each word or token in its text, and the letter after its last, (rows, 2)."""
        self._require_texts()
        return self._targets["spans"]

    def tokens_of(self, text: int) -> range:
        """Return the rows of the words or tokens of a text, by its number from 0 in this split."""
        pointers = self._require_texts()
        text = range(len(pointers) - 1)[text]  # a wrong number is an IndexError
        return range(int(pointers[text]), int(pointers[text + 1]))

    def token(self, column: str, text: int, number: int) -> NDArray[np.float32]:
        """Return the features of a word or token, (width,), by its number in its text, from 0."""
        row = self.tokens_of(text)[number]
        return self.gather(column, np.array([row]))[0, 0]

    def _require_texts(self) -> NDArray[np.int64]:
        """Return `pointers`; refuse an entry whose rows are not words or tokens."""
        if self.pointers is None:
            raise CacheError(
                f"{self._entry.path}: its rows are not words or tokens of texts; extract texts with labels of these"
            )
        return self.pointers

    @property
    def groups(self) -> NDArray | None:
        """The group number of each row, (rows,); None if the rows have no groups."""
        return self._targets.get("groups")

    def _decode(self, encoded: Encoded, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        return decode(encoded, self._entry.spec.store, self._entry.layout.offset_rows, out)

    def _encoded(self, block: int, column: str, rows: NDArray[np.integer] | None = None) -> Encoded:
        """Return a block of a column as stored, or some of its rows; verify its checksum once."""
        shard = self._shards[block][column]
        store = self._entry.spec.store
        layout = self._entry.layout
        (low, high), described = self._ranges[block], self._manifest.columns[column]
        shape = high - low, described.tokens, described.width
        try:
            with (self._folder / shard.file).open("rb", buffering=0) as file:
                stamp = _stamp(os.fstat(file.fileno()))
                # the structure is read once for all columns of the file
                if (shard.file, stamp) not in self._extents:
                    with open_hdf5(self._folder / shard.file) as opened:
                        self._extents[shard.file, stamp] = find_columns(opened, shard.columns)
                extents = self._extents[shard.file, stamp]
                if not is_stored(extents, column, shape, store, layout.offset_rows):
                    raise self._damaged(shard, column)
                # Some rows are read alone only after the checksum of the whole column has been verified.
                verified = (*stamp, column) in _checked
                few = verified and rows is not None and len(rows) < FEW * shape[0]
                encoded = read_column(file, extents, column, rows if few else None)
        except UNREADABLE as error:
            raise self._damaged(shard, column) from error
        if not verified and encoded.crc32 != shard.columns[column]:
            raise self._damaged(shard, column)
        _checked.add((*stamp, column))
        return encoded if few or rows is None else Encoded(encoded.values[rows], encoded.offset)

    def _require(self, column: str) -> None:
        if column in self.columns:
            return
        what = f"no column {column} of {self.split}; it has {', '.join(self.columns) or 'none'}"
        if column in self._manifest.columns:
            what = f"column {column} of {self.split} is missing in some blocks"
        raise CacheError(
            f"{self._entry.path}: {what}; run its extract again with this column (--layers, --pool)"
        )

    def _damaged(self, line: Shard | TargetFile, column: str = "") -> CacheError:
        where = f" (column {column})" if column else ""
        return CacheError(f"{self._folder / line.file}: damaged{where}; {repair_command(self._entry.key)}")


def _divides(arrays: dict[str, NDArray], rows: int) -> bool:
    """Return whether the pointers, if there are any, divide rows among texts, and all other arrays fit to them."""
    by_token = {"token_ids", "spans"} & arrays.keys()
    if "pointers" not in arrays:
        return not by_token and "text_ids" not in arrays
    pointers = arrays["pointers"]
    is_complete = len(by_token) == 2 and arrays["spans"].shape[1] == 2 and pointers.dtype.kind == "i"
    if not is_complete or not len(pointers) or pointers[0] != 0 or pointers[-1] != rows:
        return False
    texts = len(pointers) - 1
    sizes = {name: texts + more for name, more in TEXT_TARGETS.items() if name in arrays}
    return bool((np.diff(pointers) >= 0).all()) and all(
        len(arrays[name]) == size for name, size in sizes.items()
    )


class FeatureColumn(NDArrayOperatorsMixin):
    """One column of a split, read when it is used: float32 of shape (rows, width) or (rows, tokens, width).

    ``column[rows]`` reads only these rows. NumPy's functions, operators and methods read the whole
    column each time; ``numpy.asarray(column)`` or ``column[:]`` reads it once. ``torch.as_tensor(column)`` works;
    ``torch.from_numpy`` takes arrays only, so pass it ``column[:]``.
    """

    def __init__(self, split: SplitFeatures, name: str) -> None:
        tokens, width = split.shape(name)
        self._split, self._name = split, name
        self.shape = (split.rows, width) if tokens == 1 else (split.rows, tokens, width)
        self.dtype, self.ndim = np.dtype(np.float32), len(self.shape)

    def to_dask(self) -> "Array":
        """Return the column as a ``dask.array`` with one chunk per shard, which is read when it is computed."""
        import dask.array
        from dask.delayed import delayed

        split, read = self._split, delayed(_read_block, pure=True)
        chunks = [
            dask.array.from_delayed(
                read(
                    split,
                    self._name,
                    block,
                    dask_key_name=f"{split._entry.key}-{split.split}-{self._name}-{block}",
                ),
                (high - low, *self.shape[1:]),
                self.dtype,
            )
            for block, (low, high) in enumerate(split._entry.blocks(split.split))
        ]
        return dask.array.concatenate(chunks)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return iter(np.asarray(self))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        values = self._split.read(self._name).reshape(self.shape)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return np.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [
            np.asarray(operand) if isinstance(operand, FeatureColumn) else operand for operand in inputs
        ]
        return getattr(function, method)(*plain, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) or index is Ellipsis or index is None or np.ndim(index) > 1:
            return np.asarray(self)[index]
        numbers = np.arange(len(self))[index]
        values = self._split.gather(self._name, numbers.ravel())
        return values.reshape(*numbers.shape, *self.shape[1:])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


# torch.from_numpy takes no other type than ndarray, and names the type that it got: "expected np.ndarray (got ...)".
FeatureColumn.__name__ = "FeatureColumn; read it with [:]"


class FeatureRows:
    """Columns and labels of a split by row: a map-style dataset for ``torch.utils.data.DataLoader``.

    ``rows[3]`` is a dict with an array for each column, float32 of shape (width,) or (tokens, width) with the values of
    `SplitFeatures.read`, and with the label under ``y``. A loader turns these into tensors of the same data types.
    It may have worker processes, which open the files themselves, and which verify the checksum of a column of
    a shard when they first read it. For each batch, a shard is opened once per column.
    """

    def __init__(self, split: SplitFeatures, columns: Sequence[str]) -> None:
        self._split = split
        self._shapes = {column: split[column].shape[1:] for column in columns}

    def __len__(self) -> int:
        return self._split.rows

    def __getitem__(self, row: int) -> dict[str, NDArray]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, NDArray]]:
        """Return some rows, which a loader asks for at once if there is this method."""
        row_range = range(len(self))
        numbers = np.array([row_range[row] for row in rows], np.int64)  # a wrong number is an IndexError
        values = {
            column: self._split.gather(column, numbers).reshape(len(rows), *shape)
            for column, shape in self._shapes.items()
        }
        # An ellipsis makes a label an array: torch would collate NumPy's floats as float64.
        return [
            {**{column: values[column][position] for column in values}, "y": self._split.y[row, ...]}
            for position, row in enumerate(numbers)
        ]


def _read_block(split: SplitFeatures, column: str, block: int) -> NDArray[np.float32]:
    """Return one block of a column in the shape of `FeatureColumn`: a task of `FeatureColumn.to_dask`."""
    values = split.block(column, block)
    return values[:, 0] if values.shape[1] == 1 else values


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
