"""Read the columns of an entry as arrays, or block by block in bounded memory."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from reservoir_cache.entry import MANIFEST_FILE, Entry, Shard, TargetFile, has_listed_size
from reservoir_cache.errors import CacheError
from reservoir_cache.locks import mark_used
from reservoir_cache.paths import file_crc32, is_regular
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
    open_hdf5,
    places_in_text,
    read_array,
    read_column,
)
from reservoir_cache.spec import SPEC_FILE

if TYPE_CHECKING:
    from dask.array import Array

SHARE_READ_SINGLY = 1 / 8  # rows are read one by one if they are less than this share of a block
IN_PLACE = ("byteswap", "fill", "partition", "put", "resize", "setfield", "setflags", "sort")
"""The methods of an array that change it, which a cached column therefore lacks."""

Stamp = tuple[int, int, int, int]
"""Device, inode, modification time and size of a file, which change with its content."""

# What this process has verified: the stamp of a file, and the name of one of its columns, or "" for the whole file. A
# process verifies a checksum once, however many readers open the file.
_checked: set[tuple[int, int, int, int, str]] = set()


class FeatureStore:
    """The features and labels of an entry, read-only: ``store["train"]["block06/mean"]`` is (rows, width) float32."""

    def __init__(self, entry: Entry | Path | str) -> None:
        self.entry = entry if isinstance(entry, Entry) else Entry.open(Path(entry))
        mark_used(self.entry.path)
        self._splits: dict[str, SplitFeatures] = {}  # those that have been opened

    @property
    def splits(self) -> list[str]:
        """The splits that have features, sorted."""
        return [split for split in self.entry.splits if (self.entry.path / split / MANIFEST_FILE).exists()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __getitem__(self, split: str) -> "SplitFeatures":
        """Return the columns and labels of a split, one object per split; raises CacheError if it does not exist."""
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
        # The entry is not public: code that gets only this split must not reach the others through it.
        self._entry = entry
        self._folder = entry.path / split
        self._manifest = entry.manifest(split)
        self._ranges = entry.blocks(split)  # of each block, its first row and the row after its last
        self._shards = self._manifest.stored_columns()  # the shard by block, then by column
        # Where each dataset lies in a file, by the file's name and stamp, then by the dataset's name.
        self._extents: dict[tuple[str, Stamp], dict[str, Extent]] = {}
        if not self._manifest.files:  # none is written yet, or all are gone
            self._require_entry()
        # Compare sizes now, which is cheap; checksums are compared when a column is read.
        for line in self._manifest.files.values():
            if not has_listed_size(self._folder, line):
                self._require_entry()
                problem = f"{self._folder / line.file}: missing, or not of {line.bytes} bytes"
                raise CacheError(f"{problem}; {entry.repair_command}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._manifest.rows

    @cached_property
    def columns(self) -> list[str]:
        """The columns that every block has, sorted."""
        columns = set(self._manifest.columns)
        for block in range(len(self._ranges)):
            columns &= self._shards.get(block, {}).keys()
        return sorted(columns)

    def shape(self, column: str) -> tuple[int, int]:
        """Return (tokens, width) of a column."""
        self._require_column(column)
        shape = self._manifest.columns[column]
        return shape.tokens, shape.width

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, column: str) -> "FeatureColumn":
        """Return a column: (rows, width), or (rows, tokens, width) if it has more than one token; float32."""
        return FeatureColumn(self, column)

    def read(self, column: str) -> NDArray[np.float32]:
        """Return all rows of a column, (rows, tokens, width)."""
        self._require_column(column)
        out = np.empty(0, np.float32)  # replaced below: a split has at least one row, and so a block
        for block, (low, high) in enumerate(self._ranges):
            encoded = self._encoded(block, column)
            # Allocate only after reading a block, because a damaged file may claim any number of rows.
            if block == 0:
                out = np.empty((self.rows, *encoded.values.shape[1:]), np.float32)
            self._decode(encoded, out[low:high])
        return out

    def gather(self, column: str, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows of a column, (len(rows), tokens, width), in the order of ``rows``.

        Negative numbers and masks mean what they mean to NumPy, and a row that does not exist raises its IndexError.
        """
        self._require_column(column)
        shape = self.shape(column)
        layout = self._entry.layout
        # Without this, bytes behind the column would be read for a row past its end. An empty list has no type of its
        # own.
        rows = np.arange(self.rows)[rows if len(rows) else np.asarray(rows, np.int64)]
        if rows.ndim != 1:
            raise IndexError("rows are numbers or a mask in one dimension")
        if not len(rows):
            return np.empty((0, *shape), np.float32)
        out = np.empty((len(rows), *shape), np.float32)
        # Sort the positions in `rows` by block, and cut them where the block changes, so that each block is read once.
        blocks = rows // layout.block_rows
        order = np.argsort(blocks, kind="stable")
        first_of_each_block = np.flatnonzero(np.diff(blocks[order])) + 1  # except the first block
        for positions in np.split(order, first_of_each_block):
            block = int(blocks[positions[0]])
            rows_in_block = rows[positions] - block * layout.block_rows
            encoded = self._encoded(block, column, rows_in_block)
            # Decode the values without their offsets: `decode` adds an offset to consecutive rows, but these rows may
            # come from anywhere in the block. Each gets the offset of its group of rows; None is the axis of tokens.
            values = decode(Encoded(encoded.values, None), self._entry.spec.store)
            if encoded.offset is not None:
                values += encoded.offset[rows_in_block // layout.offset_rows, None]
            out[positions] = values
        return out

    def blocks(self, column: str) -> Iterator[NDArray[np.float32]]:
        """Return an iterator over the blocks of a column in row order, each (rows, tokens, width) of float32."""
        # Not in the iterator, which would raise the error only at the first block.
        self._require_column(column)
        return (self.block(column, block) for block in range(len(self._ranges)))

    def block(self, column: str, block: int) -> NDArray[np.float32]:
        """Return one block of a column, (rows, tokens, width); `IndexError` if the split has fewer blocks."""
        return self._decode(self.stored(column, block))

    def stored(self, column: str, block: int) -> Encoded:
        """Return one block of a column as it is stored; every `offset_rows` consecutive rows share an offset.

        Raises `IndexError` if the split has fewer blocks.
        """
        block = range(len(self._ranges))[block]
        if column not in self._shards.get(block, {}):  # other blocks may lack it
            self._require_column(column)
        return self._encoded(block, column)

    @property
    def offset_rows(self) -> int:
        """The number of rows of a block that share an offset."""
        return self._entry.layout.offset_rows

    @cached_property
    def _targets(self) -> dict[str, NDArray]:
        """The arrays of labels, lengths, ids and groups by name; optional ones may be absent.

        Their file is verified on the first read in a process.
        """
        line = self._manifest.targets
        if line is None:
            raise CacheError(
                f"{self._folder}: has no labels; run the {self._entry.command} that made {self._entry.path.name} again"
            )
        path = self._folder / line.file
        try:
            whole_file = (*_stamp(path.stat()), "")
            if whole_file not in _checked and file_crc32(path) != line.crc32:
                raise self._damaged(line)
            with open_hdf5(path) as file:
                names = [name for name in TARGET_RANKS if name not in OPTIONAL_TARGETS or name in file]
                arrays = {name: read_array(file, name) for name in names}
        except UNREADABLE as error:
            raise self._damaged(line) from error
        # A matching checksum does not make the shapes valid. Arrays with an item per text are checked together below.
        for name, array in arrays.items():
            may_have_this_length = name in TEXT_TARGETS or len(array) == self.rows
            if array.ndim not in TARGET_RANKS[name] or not may_have_this_length:
                raise self._damaged(line)
        if not _has_valid_texts(arrays, self.rows):
            raise self._damaged(line)
        _checked.add(whole_file)
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
        """Number of tokens of each row that are not padding, (rows,)."""
        return self._targets["lengths"]

    @property
    def index(self) -> NDArray:
        """Row numbers in this split of the prepared data, (rows,)."""
        return self._targets["index"]

    @cached_property
    def ids(self) -> NDArray:
        """What names each row in its source, (rows,) of texts or int64: an id, a file name or a row number from 0.

        If rows are words or tokens, each has the id of its text. If the entry stores no ids, they are those of `index`.
        """
        ids_of_rows = self._targets.get("ids")
        ids_of_texts = self._targets.get("text_ids")
        line = self._manifest.targets
        assert line  # `_targets` refuses a split without labels
        try:
            if ids_of_texts is not None:
                rows_of_texts = np.diff(self._targets["pointers"])
                return np.repeat(ids_of_numbers(ids_of_texts), rows_of_texts)
            return self.index if ids_of_rows is None else ids_of_numbers(ids_of_rows)
        except UNREADABLE as error:
            raise self._damaged(line) from error

    @property
    def pointers(self) -> NDArray[np.int64] | None:
        """The first row of each text, and last the number of rows, (texts + 1,), if rows are words or tokens of texts.

        None if they are not. The rows of text t are those from ``pointers[t]`` to before ``pointers[t + 1]``.
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

    @property
    def numbers_in_text(self) -> NDArray[np.integer]:
        """The number of each word or token in its text, (rows,), from 0; words without a token of the model count."""
        stored = self._targets.get("numbers_in_text")
        return places_in_text(self._require_texts()) if stored is None else stored

    def tokens_of(self, text: int) -> range:
        """Return the rows of the words or tokens of a text, by its number from 0 in this split."""
        pointers = self._require_texts()
        # Indexing a range turns a negative number into one from 0, and a wrong number into an IndexError.
        text = range(len(pointers) - 1)[text]
        return range(int(pointers[text]), int(pointers[text + 1]))

    def token(self, column: str, text: int, number: int) -> NDArray[np.float32]:
        """Return the features of a word or token, (width,), by its place among those of its text that are rows, from 0.

        Words without a token of the model are not rows; `numbers_in_text` counts them.
        """
        row = self.tokens_of(text)[number]
        return self.gather(column, np.array([row]))[0, 0]  # of the one row, its one token

    def _require_texts(self) -> NDArray[np.int64]:
        """Return `pointers`; raises CacheError if the rows of the entry are not words or tokens."""
        if self.pointers is None:
            raise CacheError(
                f"{self._entry.path}: its rows are not words or tokens of texts; extract texts with labels of these"
            )
        return self.pointers

    @property
    def groups(self) -> NDArray | None:
        """The group number of each row, (rows,); None if the rows have no groups."""
        return self._targets.get("groups")

    @cached_property
    def group_names(self) -> NDArray | None:
        """The group of each row as its source calls it, (rows,) of texts.

        None if the rows have no groups, and if the entry does not store their names.
        """
        stored = self._targets.get("group_names")
        try:
            return None if stored is None else ids_of_numbers(stored)
        except UNREADABLE as error:
            line = self._manifest.targets
            assert line  # `_targets` refuses a split without labels
            raise self._damaged(line) from error

    @property
    def stretches(self) -> NDArray | None:
        """The number of the stretch in which the labels of each window begin, (rows,), if rows are forecasts.

        None if they are not, and if the entry does not store it.
        """
        return self._targets.get("stretches")

    def _decode(self, encoded: Encoded, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the values of a block as float32, (rows, tokens, width), in ``out`` if it is given."""
        return decode(encoded, self._entry.spec.store, self._entry.layout.offset_rows, out)

    def _encoded(self, block: int, column: str, rows: NDArray[np.integer] | None = None) -> Encoded:
        """Return a block of a column as stored, with all of its rows or those of the numbers ``rows`` in the block.

        All offsets of the block come with them. The checksum of the block is verified once in a process.
        """
        shard = self._shards[block][column]
        layout = self._entry.layout
        low, high = self._ranges[block]
        listed = self._manifest.columns[column]
        shape = (high - low, listed.tokens, listed.width)
        try:
            with (self._folder / shard.file).open("rb", buffering=0) as file:
                stamp = _stamp(os.fstat(file.fileno()))
                # The structure of the file is read once for all of its columns.
                if (shard.file, stamp) not in self._extents:
                    with open_hdf5(self._folder / shard.file) as opened:
                        self._extents[shard.file, stamp] = find_columns(opened, shard.columns)
                extents = self._extents[shard.file, stamp]
                if not is_stored(extents, column, shape, self._entry.spec.store, layout.offset_rows):
                    raise self._damaged(shard, column)
                # A checksum needs all rows, so rows are read one by one only after the column has been verified.
                was_verified = (*stamp, column) in _checked
                reads_singly = (
                    was_verified and rows is not None and len(rows) < SHARE_READ_SINGLY * shape[0]
                )
                encoded = read_column(file, extents, column, rows if reads_singly else None)
        except UNREADABLE as error:
            raise self._damaged(shard, column) from error
        if not was_verified and encoded.crc32 != shard.columns[column]:
            raise self._damaged(shard, column)
        _checked.add((*stamp, column))
        if rows is None or reads_singly:
            return encoded
        return Encoded(encoded.values[rows], encoded.offset)

    def _require_column(self, column: str) -> None:
        """Raise CacheError unless every block has a column."""
        if column in self.columns:
            return
        if column in self._manifest.columns:
            problem = f"column {column} of {self.split} is missing in some blocks"
        else:
            problem = f"no column {column} of {self.split}; it has {', '.join(self.columns) or 'none'}"
        command = self._entry.command
        flags = " (--layers, --pool)" if command == "extract" else ""
        raise CacheError(f"{self._entry.path}: {problem}; run its {command} again with this column{flags}")

    def _require_entry(self) -> None:
        """Raise CacheError if the entry was removed after it had been opened."""
        if not is_regular(self._entry.path / SPEC_FILE):  # the file that is removed first
            raise CacheError(f"{self._entry.path}: removed meanwhile; run its {self._entry.command} again")

    def _damaged(self, line: Shard | TargetFile, column: str = "") -> CacheError:
        """Return the error of a damaged file, for the caller to raise; it names the ``column``, if one is given.

        Raises another error if the whole entry was removed.
        """
        self._require_entry()
        where = f" (column {column})" if column else ""
        return CacheError(f"{self._folder / line.file}: damaged{where}; {self._entry.repair_command}")


def _has_valid_texts(arrays: dict[str, NDArray], rows: int) -> bool:
    """Return whether the arrays of texts are absent, or complete and consistent with the number of ``rows``."""
    token_arrays = {"token_ids", "spans"} & arrays.keys()
    if "pointers" not in arrays:
        return not token_arrays and not {"text_ids", "numbers_in_text"} & arrays.keys()
    pointers = arrays["pointers"]
    is_complete = len(token_arrays) == 2 and arrays["spans"].shape[1] == 2 and pointers.dtype.kind == "i"
    # The pointers ascend from 0 to the number of rows. Equal ones belong to a text without rows.
    if not is_complete or not len(pointers) or pointers[0] != 0 or pointers[-1] != rows:
        return False
    is_ascending = bool((np.diff(pointers) >= 0).all())
    texts = len(pointers) - 1
    return is_ascending and all(
        len(arrays[name]) == texts + more for name, more in TEXT_TARGETS.items() if name in arrays
    )


class FeatureColumn(NDArrayOperatorsMixin):
    """One column of a split, read when it is used: float32 of shape (rows, width) or (rows, tokens, width).

    ``column[rows]`` reads only these rows. NumPy's functions, operators and methods read the whole
    column each time; ``numpy.asarray(column)`` or ``column[:]`` reads it once. ``torch.as_tensor(column)`` works;
    ``torch.from_numpy`` takes arrays only, so pass it ``column[:]``.
    """

    def __init__(self, split: SplitFeatures, name: str) -> None:
        tokens, width = split.shape(name)
        self._split = split
        self._name = name
        # What NumPy and torch ask of an array.
        self.shape = (split.rows, width) if tokens == 1 else (split.rows, tokens, width)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(np.float32)

    def to_dask(self) -> "Array":
        """Return the column as a ``dask.array`` with one chunk per shard, which is read when it is computed."""
        import dask.array
        from dask.delayed import delayed

        split = self._split
        read_block = delayed(_read_block, pure=True)
        chunks = []
        for block, (low, high) in enumerate(split._ranges):
            # Equal names of a chunk in two graphs mean equal values, so the name has everything that decides them.
            # The key is not enough: entries of one key may have other blocks, or values that were rounded differently.
            rows = f"{low}-{high}-{split.offset_rows}"
            crc32 = split._shards[block][self._name].columns[self._name]  # of the stored values and offsets
            name = f"{split._entry.key}-{split.split}-{self._name}-{rows}-{crc32}"
            values = read_block(split, self._name, block, dask_key_name=name)
            chunks.append(dask.array.from_delayed(values, (high - low, *self.shape[1:]), self.dtype))
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
        """Return what NumPy's function, such as that of an operator, returns for the arrays of columns.

        Raises
        ------
        TypeError
            If a column of the cache is to hold the result, as in ``column -= 1``.
        """
        if any(isinstance(output, FeatureColumn) for output in kwargs.get("out", ())):
            raise TypeError("a cached column cannot be changed; change a copy of it: column[:]")
        arrays = [
            np.asarray(operand) if isinstance(operand, FeatureColumn) else operand for operand in inputs
        ]
        return getattr(function, method)(*arrays, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        """Return what indexing the array returns; only the rows of a number, a slice, a list or a mask are read."""
        # Other indices may select tokens and features or add axes: NumPy applies them to the whole array.
        selects_only_rows = not (
            isinstance(index, tuple) or index is Ellipsis or index is None or np.ndim(index) > 1
        )
        if not selects_only_rows:
            return np.asarray(self)[index]
        rows = np.arange(len(self))[index]  # () of a single number, or (n,)
        values = self._split.gather(self._name, rows.ravel())
        return values.reshape(*rows.shape, *self.shape[1:])

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the array, such as ``mean``; called only for names that this class lacks."""
        # Private names are not looked up: copy and pickle ask for some before the object has its fields, without which
        # it has no array.
        if name.startswith("_"):
            raise AttributeError(name)
        if name in IN_PLACE:  # it would change an array that is gone afterwards
            raise AttributeError(
                f"a cached column has no {name}, which would change it; change a copy: column[:]"
            )
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
        self._shapes = {column: split[column].shape[1:] for column in columns}  # of a row of each column

    def __len__(self) -> int:
        return self._split.rows

    def __getitem__(self, row: int) -> dict[str, NDArray]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, NDArray]]:
        """Return some rows; a loader that finds this method asks for all rows of a batch at once."""
        # Indexing a range turns a negative number into one from 0, and a wrong number into an IndexError.
        row_range = range(len(self))
        numbers = np.array([row_range[row] for row in rows], np.int64)
        values = {
            column: self._split.gather(column, numbers).reshape(len(rows), *shape)
            for column, shape in self._shapes.items()
        }
        items = []
        for position, row in enumerate(numbers):
            features = {column: values[column][position] for column in values}
            # An ellipsis makes a label an array: torch would collate NumPy's floats as float64.
            items.append({**features, "y": self._split.y[row, ...]})
        return items


def _read_block(split: SplitFeatures, column: str, block: int) -> NDArray[np.float32]:
    """Return one block of a column in the shape of `FeatureColumn`: a task of `FeatureColumn.to_dask`."""
    values = split.block(column, block)
    return values[:, 0] if values.shape[1] == 1 else values


def _stamp(status: os.stat_result) -> Stamp:
    """Return the `Stamp` of a file from what ``os.stat`` says of it."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
