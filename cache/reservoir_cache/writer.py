"""Write blocks and labels: encode, publish and list them, in threads, during the forward pass."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import (
    TARGETS_FILE,
    Column,
    Entry,
    Shard,
    TargetFile,
    check_column_name,
    is_sound,
    page_of,
)
from reservoir_cache.errors import CacheError
from reservoir_cache.hdf5 import open_hdf5
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import publish
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


def write_targets(entry: Entry, split: str, targets: Mapping[str, NDArray]) -> None:
    """Write the labels, lengths and row numbers of a split, unless they exist with the same ids.

    ``targets`` has ``y`` (rows, readout_tokens, outputs), ``lengths`` and ``index`` (rows,), perhaps
    ``groups``, and perhaps ``ids`` (rows,) of texts or integers. If rows are tokens of texts, it has ``pointers``
    (texts + 1,), ``token_ids`` (rows,), ``spans`` (rows, 2), and perhaps ``text_ids`` (texts,) instead of ``ids``.
    """
    folder = entry.path / split
    arrays = {name: np.asarray(targets[name]) for name in TARGET_RANKS if name in targets}
    arrays |= {name: numbers_of_ids(arrays[name]) for name in ID_DATASETS if name in arrays}
    exists = is_sound(folder, entry.page(split, 0).targets)
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


class ShardWriter:
    """Context manager with threads that encode and write blocks.

    A block given to ``put`` stays claimed until it is on disk. Leaving the context waits for all
    blocks, even after an exception, because each of them is complete. An error in a thread is raised
    by the next ``put`` or on leaving.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._locks = entry_locks(entry.path)
        self._at_work = self._locks.at_work()
        self._threads = ThreadPoolExecutor(WRITERS)
        self._room = threading.Semaphore(PENDING)
        self._claimed = set[int]()
        self._sizes = list[int]()
        self._error: BaseException | None = None

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
            self._release(number)
        return lacking

    def put(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Queue the columns that a claimed block lacks; a thread calls ``arrays`` if callable."""
        self._room.acquire()  # waits while too many blocks are queued
        if self._error:
            raise self._error
        # If the caller is interrupted before this line, leaving the context releases the claim.
        self._threads.submit(self._work, split, block, arrays)

    def _work(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Encode and write a block, in a thread of the writer; after an error, blocks are only released."""
        try:
            if self._error is None:
                encoded = _encode(self._entry, split, block, arrays() if callable(arrays) else arrays)
                self._sizes.append(_write(self._entry, split, block, encoded))
        except BaseException as error:  # raised again by ``put`` or on leaving
            self._error = error
        finally:
            self._release(self._entry.block_number(split, block))
            self._room.release()

    def _release(self, number: int) -> None:
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


def _write(entry: Entry, split: str, block: int, encoded: Mapping[str, Encoded]) -> int:
    """Write columns of a claimed block as one shard; return the bytes written."""
    folder, number = entry.path / split, page_of(block)
    page = entry.page(split, number)
    shapes = {name: Column(*column.values.shape[1:]) for name, column in encoded.items()}
    for name, shape in shapes.items():
        if shape != (other := page.columns.get(name, shape)):
            own, others = (shape.tokens, shape.width), (other.tokens, other.width)
            raise CacheError(f"column {name}: shape {own} per row, but other blocks have {others}")
    # The lowest part number that no undamaged shard has, so that a rerun after an interruption or a
    # repair makes the same names, and replaces an unlisted file of a killed run.
    of_block = [shard for shard in page.shards if shard.block == block]
    taken = {shard.file for shard in of_block if is_sound(folder, shard)}
    file = next(name for part in range(len(taken) + 1) if (name := f"{block:05d}-{part}.h5") not in taken)
    content, crc32 = shard_content(entry.header(split, block), encoded, entry.spec.store)
    published = publish(folder / file, *content, crc32=crc32)
    line = Shard(file, block, *published, {name: column.crc32 for name, column in encoded.items()})
    unsound = {shard.file for shard in of_block} - taken
    with entry_locks(entry.path).mutex():
        entry.page(split, number).without(unsound).with_shard(line, shapes).write(folder, number)
    return line.bytes
