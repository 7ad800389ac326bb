"""Write blocks and labels: encode, publish and list them, in threads, during the forward pass."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import (
    TARGETS_FILE,
    Column,
    Entry,
    Manifest,
    Shard,
    TargetFile,
    check_column_name,
    has_listed_size,
    page_of,
)
from reservoir_cache.errors import CacheError
from reservoir_cache.hdf5 import open_hdf5
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import publish, sync
from reservoir_cache.shard import (
    TARGET_RANKS,
    UNREADABLE,
    Encoded,
    encode,
    file_content,
    numbers_of_ids,
    read_array,
    shard_content,
)

Arrays = Mapping[str, NDArray[np.float32] | Encoded]
"""Features by column, (rows of the block, tokens, width) each, perhaps encoded."""

WRITERS = 3  # threads that encode and write blocks: one may wait for the disk while the others compute
ID_DATASETS = ("ids", "text_ids")  # the names of rows, or of the texts whose tokens are rows
PENDING = 6  # blocks in memory that are not on disk yet
GROUP_BYTES = (
    2**26
)  # of shards that a page lists at once, because pages take three of the four fsyncs of a shard


def write_targets(entry: Entry, split: str, targets: Mapping[str, NDArray]) -> None:
    """Write the labels, lengths and row numbers of a split, unless they exist with the same ids.

    ``targets`` has ``y`` (rows, readout_tokens, outputs), ``lengths`` and ``index`` (rows,), perhaps
    ``groups``, and perhaps ``ids`` (rows,) of texts or integers. If rows are tokens of texts, it has ``pointers``
    (texts + 1,), ``token_ids`` (rows,), ``spans`` (rows, 2), and perhaps ``text_ids`` (texts,) instead of ``ids``.
    """
    folder = entry.path / split
    arrays = {name: np.asarray(targets[name]) for name in TARGET_RANKS if name in targets}
    arrays |= {name: numbers_of_ids(arrays[name]) for name in ID_DATASETS if name in arrays}
    exists = has_listed_size(folder, entry.page(split, 0).targets)
    if exists and _has_ids(folder / TARGETS_FILE, arrays):
        return  # without a lock, because taking one needs write permission
    locks = entry_locks(entry.path)
    with locks.at_work(), locks.mutex():
        page = entry.page(split, 0)
        if page.targets:  # the page never lists a checksum of other content, even after a crash
            replace(page, targets=None).write(folder, 0)
        line = TargetFile(TARGETS_FILE, *publish(folder / TARGETS_FILE, *file_content(arrays)))
        replace(page, targets=line).write(folder, 0)


def _has_ids(path: Path, arrays: Mapping[str, NDArray]) -> bool:
    """Return whether a file of targets stores the ids of these arrays; False if it cannot be read."""
    try:
        with open_hdf5(path) as file:
            stored = {name: read_array(file, name) for name in ID_DATASETS if name in file}
    except UNREADABLE:
        return False
    expected = {name: arrays[name] for name in ID_DATASETS if name in arrays}
    return stored.keys() == expected.keys() and all(
        np.array_equal(array, expected[name]) for name, array in stored.items()
    )


@dataclass(frozen=True)
class _Written:
    """A shard whose content is on disk, and that no page lists yet."""

    split: str
    line: Shard
    shapes: dict[str, Column]
    unsound: set[str]  # damaged files of the block, which the page will no longer list


class ShardWriter:
    """Context manager with threads that encode and write blocks.

    A block given to ``put`` stays claimed until it is on disk and listed. Blocks are listed in groups: a group ends at
    `GROUP_BYTES`, and when no further block is queued, so that a process that is killed loses little. Leaving the
    context waits for all blocks, even after an exception, because each of them is complete. An error in a thread is
    raised by the next ``put`` or on leaving.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._locks = entry_locks(entry.path)
        self._at_work = self._locks.at_work()
        self._threads = ThreadPoolExecutor(WRITERS)
        self._room = threading.Semaphore(PENDING)  # one for each further block that memory may hold
        self._claimed = set[int]()  # numbers of the blocks that this run has claimed
        self._sizes = list[int]()  # bytes of the shards that have been written
        self._error: BaseException | None = None  # the last error of a thread
        self._guard = threading.Lock()  # of the two fields below
        self._group = list[_Written]()  # blocks to be listed together
        self._unwritten = 0  # blocks that are queued, or that a thread writes

    def __enter__(self) -> "ShardWriter":
        self._at_work.__enter__()
        # All threads start here: one that Ctrl-C meets while ``put`` starts it would not be waited
        # for on leaving.
        started = threading.Barrier(WRITERS)
        list(self._threads.map(lambda _: started.wait(), range(WRITERS)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        # Blocks are left if the caller was interrupted after it counted a block and before it queued it, because the
        # group then waits for that block.
        self._list(self._group)
        self._group = []
        for number in self._claimed:
            self._locks.release(number)
        self._at_work.__exit__(None, None, None)
        if kind is None and self._error:
            raise self._error

    @property
    def bytes_written(self) -> int:
        """Size of all shards that have been written."""
        return sum(self._sizes)

    def claim(self, split: str, block: int, columns: Iterable[str]) -> tuple[str, ...]:
        """Claim a block until it is on disk; return the columns that it lacks, none if another run has claimed it."""
        number = self._entry.block_number(split, block)
        if not self._locks.claim(number):
            return ()
        self._claimed.add(number)
        lacking = self._entry.lacking(split, block, columns)  # another run may have just published it
        if not lacking:
            self._release(split, block)
        return lacking

    def put(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Queue the columns that a claimed block lacks; a thread calls ``arrays`` if callable."""
        self._room.acquire()  # waits while too many blocks are queued
        if self._error:
            raise self._error
        with self._guard:
            self._unwritten += 1
        # If the caller is interrupted before this line, leaving the context releases the claim.
        self._threads.submit(self._work, split, block, arrays)

    def _work(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Encode and write a block, in a thread of the writer; after an error, blocks are only released."""
        written = None
        try:
            if self._error is None:
                encoded = _encode(self._entry, split, block, arrays() if callable(arrays) else arrays)
                written = _write(self._entry, split, block, encoded)
                self._sizes.append(written.line.bytes)
        except BaseException as error:  # raised again by ``put`` or on leaving
            self._error = error
        if written is None:
            self._release(split, block)
        self._list(self._finished_group(written))
        self._room.release()

    def _finished_group(self, written: _Written | None) -> list[_Written]:
        """Add a block to the group, or None if it was not written; return the group if it ends here, else no block."""
        with self._guard:
            self._unwritten -= 1
            self._group += [written] if written else []
            is_large = sum(block.line.bytes for block in self._group) >= GROUP_BYTES
            if self._unwritten and not is_large:
                return []
            group, self._group = self._group, []
            return group

    def _list(self, group: Sequence[_Written]) -> None:
        """List the blocks of a group in their pages, and release them."""
        try:
            _list_shards(self._entry, group)
        except BaseException as error:  # raised again by ``put`` or on leaving
            self._error = error
        finally:
            for written in group:
                self._release(written.split, written.line.block)

    def _release(self, split: str, block: int) -> None:
        number = self._entry.block_number(split, block)
        self._claimed.remove(number)
        self._locks.release(number)


def _encode(entry: Entry, split: str, block: int, arrays: Arrays) -> dict[str, Encoded]:
    """Return the columns of a block as they are stored, sorted by name."""
    low, high = entry.layout.block(entry.spec.rows[split], block)
    encoded = dict[str, Encoded]()
    for name, x in sorted(arrays.items()):
        check_column_name(name)
        if isinstance(x, Encoded):
            encoded[name] = x
            continue
        if x.dtype != np.float32 or x.ndim != 3 or len(x) != high - low or 0 in x.shape:
            expected = f"float32 of shape ({high - low}, tokens, width)"
            raise CacheError(f"column {name}: needs {expected}, not {x.dtype} {x.shape}")
        step = entry.layout.offset_rows
        encoded[name] = encode(x, entry.spec.store, column=name, first_row=low, offset_rows=step)
    return encoded


def _write(entry: Entry, split: str, block: int, encoded: Mapping[str, Encoded]) -> _Written:
    """Write columns of a claimed block as one shard, which `_list_shards` makes visible."""
    folder = entry.path / split
    page = entry.page(split, page_of(block))
    shapes = {name: Column(*column.values.shape[1:]) for name, column in encoded.items()}
    _check_shapes(page, shapes)
    # The lowest part number that no undamaged shard has, so that a rerun after an interruption or a
    # repair makes the same names, and replaces an unlisted file of a killed run.
    of_block = [shard for shard in page.shards if shard.block == block]
    taken = {shard.file for shard in of_block if has_listed_size(folder, shard)}
    file = next(name for part in range(len(taken) + 1) if (name := f"{block:05d}-{part}.h5") not in taken)
    content, crc32 = shard_content(entry.header(split, block), encoded, entry.spec.store)
    published = publish(folder / file, *content, crc32=crc32, sync_folder=False)
    line = Shard(file, block, *published, {name: column.crc32 for name, column in encoded.items()})
    return _Written(split, line, shapes, {shard.file for shard in of_block} - taken)


def _list_shards(entry: Entry, group: Sequence[_Written]) -> None:
    """List shards in the pages of their splits, each of which is written once."""
    by_page: dict[tuple[str, int], list[_Written]] = {}
    for written in group:
        by_page.setdefault((written.split, page_of(written.line.block)), []).append(written)
    # The names of the shards must be on disk before a page that lists them.
    for split in dict.fromkeys(split for split, _ in by_page):
        sync(entry.path / split)
    for (split, number), shards in by_page.items():
        with entry_locks(entry.path).mutex():
            page = entry.page(split, number)
            for written in shards:
                _check_shapes(page, written.shapes)
                page = page.without(written.unsound).with_shard(written.line, written.shapes)
            page.write(entry.path / split, number)


def _check_shapes(page: Manifest, shapes: Mapping[str, Column]) -> None:
    """Raise CacheError if a column has another shape than in the blocks that a page lists."""
    for name, shape in shapes.items():
        listed = page.columns.get(name)
        if listed is not None and listed != shape:
            own_shape = (shape.tokens, shape.width)
            listed_shape = (listed.tokens, listed.width)
            raise CacheError(
                f"column {name}: shape {own_shape} per row, but other blocks have {listed_shape}"
            )
