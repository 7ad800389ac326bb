"""Reading an entry: columns as arrays, or block by block in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError, repair_command
from reservoir_cache.hdf import UNREADABLE, read_targets, target_ranks
from reservoir_cache.locks import mark_used
from reservoir_cache.manifest import NAME, Shard, Targets, is_sound
from reservoir_cache.publish import file_crc32
from reservoir_cache.shard import decode, read_column

# What this process has already found sound: (device, inode, modification time, size, column or "").
_checked: set[tuple[int, int, int, int, str]] = set()


class FeatureStore:
    """The features and labels of an entry, given by itself or its folder; read-only.

    ``store["train"]["block06/mean"]`` is an array of shape (rows, width), float32.
    """

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

    def __getitem__(self, split: str) -> SplitFeatures:
        if split not in self._splits:
            self._splits[split] = SplitFeatures(self.entry, split)
        return self._splits[split]


class SplitFeatures:
    """The columns of one split, as its manifest listed them when this was made."""

    def __init__(self, entry: Entry, split: str) -> None:
        self.entry, self.split = entry, split
        self._folder = entry.path / split
        self._manifest = entry.manifest(split)
        self._ranges = entry.blocks(split)
        for line in self._manifest.files.values():
            if not is_sound(self._folder, line):
                raise CacheError(
                    f"{self._folder / line.file}: missing, or not of {line.bytes} bytes; {repair_command(entry.key)}"
                )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._manifest.rows

    @cached_property
    def columns(self) -> list[str]:
        """The columns that every block has, sorted."""
        blocks = range(len(self._ranges))
        return sorted(
            name for name in self._manifest.columns if all(name in self._shards.get(block, ()) for block in blocks)
        )

    def shape(self, column: str) -> tuple[int, int]:
        """Return (tokens, width) of a column."""
        self._require(column)
        shape = self._manifest.columns[column]
        return shape.tokens, shape.width

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def __getitem__(self, column: str) -> NDArray[np.float32]:
        """Return a column: (rows, width), or (rows, tokens, width) if it has more than one token; float32."""
        tokens, width = self.shape(column)
        out = np.empty(0, np.float32)
        for (low, high), x in zip(self._ranges, self.blocks(column), strict=True):
            if not low:  # and not before a block is read: a file may claim any number of rows
                out = np.empty((self.rows, tokens, width), np.float32)
            out[low:high] = x
        return out[:, 0] if tokens == 1 else out

    def blocks(self, column: str, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Yield a column block by block in row order, each (rows of the block, tokens, width) float32.

        The blocks numbered from ``start`` up to ``stop``, all by default; their rows are ``entry.blocks(split)``.
        """
        self._require(column)
        return (self._block(block, column) for block in range(len(self._ranges))[start:stop])

    @cached_property
    def _targets(self) -> dict[str, NDArray]:
        line = self._manifest.targets
        if line is None:
            raise CacheError(f"{self._folder}: has no labels; run the extract that made {self.entry.path.name} again")
        path = self._folder / line.file
        try:
            stamp = _stamp(path, "")
            sound = stamp in _checked or file_crc32(path) == line.crc32
            found = read_targets(path) if sound else {}
        except UNREADABLE as error:
            raise self._damaged(line, "") from error
        ranks = {name: array.ndim for name, array in found.items()}
        if ranks != target_ranks(found) or {*map(len, found.values())} != {self.rows}:
            raise self._damaged(line, "")
        _checked.add(stamp)
        return found

    @property
    def labels(self) -> NDArray:
        """Labels of shape (rows, readout_tokens, outputs)."""
        return self._targets["y"]

    @property
    def y(self) -> NDArray:
        """Labels: (rows,) where a row has one, else (rows, readout_tokens, outputs)."""
        return self.labels[:, 0, 0] if self.labels.shape[1:] == (1, 1) else self.labels

    @property
    def lengths(self) -> NDArray:
        """Number of real tokens of each row, (rows,)."""
        return self._targets["lengths"]

    @property
    def index(self) -> NDArray:
        """Row numbers in the source, (rows,)."""
        return self._targets["index"]

    @property
    def groups(self) -> NDArray | None:
        """The number of the group of each row, (rows,); None where rows are in no groups."""
        return self._targets.get("groups")

    @cached_property
    def _shards(self) -> dict[int, dict[str, Shard]]:
        return self._manifest.held()

    def _block(self, block: int, column: str) -> NDArray[np.float32]:
        """Read one block of a column, (rows, tokens, width), and check it the first time in this process."""
        shard, (low, high) = self._shards[block][column], self._ranges[block]
        path, store = self._folder / shard.file, self.entry.spec.store
        try:
            stamp = _stamp(path, column)
            with h5py.File(path, "r", locking=False) as file:
                encoded = read_column(file, column, store)
        except UNREADABLE as error:
            raise self._damaged(shard, column) from error
        shape = self._manifest.columns[column]
        if encoded.values.shape != (high - low, shape.tokens, shape.width):
            raise self._damaged(shard, column)
        if stamp not in _checked and encoded.crc32() != shard.columns[column]:
            raise self._damaged(shard, column)
        _checked.add(stamp)
        return decode(encoded, store)

    def _require(self, column: str) -> None:
        if column in self.columns:
            return
        if column in self._manifest.columns:
            lacking = [str(block) for block in self.entry.missing(self.split, [column])]
            what = f"column {column} of {self.split} is not finished, block {', '.join(lacking[:5])} lacks"
        else:
            what = f"no column {column} of {self.split}; it has {', '.join(self.columns) or 'none'}"
        raise CacheError(f"{self.entry.path}: {what}; extract it into this entry")

    def _damaged(self, line: Shard | Targets, column: str) -> CacheError:
        where = f" (column {column})" if column else ""
        return CacheError(f"{self._folder / line.file}: damaged{where}; {repair_command(self.entry.key)}")


def _stamp(path: Path, column: str) -> tuple[int, int, int, int, str]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, column
