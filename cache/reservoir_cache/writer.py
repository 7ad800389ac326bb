"""Write blocks and labels: encode, publish and list them, in threads, during the forward pass."""

import queue
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.ahead import ahead
from reservoir_cache.entry import TARGETS_FILE, Column, Entry, Shard, Targets, check_column_name, is_sound, page_of
from reservoir_cache.image import Image
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import CacheError, publish
from reservoir_cache.shard import Encoded, encode, shard_pieces, target_ranks

Arrays = Mapping[str, NDArray[np.float32]]
"""Features by column, (rows of the block, tokens, width) each."""

WRITERS = 2
"""Threads that write blocks: while one waits until the disk has its block, the other copies the next."""


def write_block(entry: Entry, split: str, block: int, arrays: Arrays) -> int:
    """Write the columns that a block lacks as one shard; return the bytes written."""
    locks, number = entry_locks(entry.path), entry.block_number(split, block)
    if not locks.claim(number):
        raise CacheError(f"{entry.path}: block {block} of {split} is being written by another run; wait for it")
    try:
        return _write_encoded(entry, split, block, _encode(entry, split, block, arrays))
    finally:
        locks.release(number)


def write_targets(entry: Entry, split: str, targets: Mapping[str, NDArray]) -> None:
    """Write the labels, lengths and source row numbers of a split, unless they exist.

    ``targets`` has ``y`` (rows, readout_tokens, outputs), ``lengths`` and ``index`` (rows,), perhaps ``groups``.
    """
    folder, rows = entry.path / split, entry.page(split, 0).rows
    arrays = {name: np.ascontiguousarray(array) for name, array in targets.items()}
    ranks = target_ranks(arrays)
    if arrays.keys() != ranks.keys():
        raise CacheError(f"targets of {split}: need {', '.join(ranks)}, not {', '.join(arrays)}")
    for name, array in arrays.items():
        if array.ndim != ranks[name] or len(array) != rows or array.dtype.kind not in "biuf":
            problem = f"targets of {split}: {name} has shape {array.shape} and type {array.dtype}"
            raise CacheError(f"{problem}; it needs {ranks[name]} dimensions, {rows} rows, and numbers")

    if is_sound(folder, entry.page(split, 0).targets):
        return  # without a lock, because taking one needs write permission
    locks = entry_locks(entry.path)
    with locks.run(), locks.mutex():
        if not is_sound(folder, entry.page(split, 0).targets):
            image = Image()
            with h5py.File(image, "w") as file:
                for name in ranks:
                    image.next = arrays[name], zlib.crc32(arrays[name].data)
                    file.create_dataset(name, data=arrays[name], track_times=False)
            pieces, crc32 = image.pieces()
            line = Targets(TARGETS_FILE, *publish(folder / TARGETS_FILE, *pieces, crc32=crc32))
            replace(entry.page(split, 0), targets=line).write(folder, 0)


class ShardWriter:
    """Context manager with a thread that encodes and two that write, behind a queue of ``maxsize`` blocks.

    A block given to ``put`` stays claimed until it is on disk. Leaving the context waits for the queue, even after an
    exception, because every block in it is complete. An error in a thread is raised by the next ``put`` or on leaving.
    """

    def __init__(self, entry: Entry, maxsize: int = 3) -> None:
        self._sizes = list[int]()
        self._entry = entry
        self._locks = entry_locks(entry.path)
        self._queue: queue.Queue[tuple[str, int, Arrays | Callable[[], Arrays]] | None] = queue.Queue(maxsize)
        self._stack = ExitStack()
        self._claimed = set[int]()
        self._error: BaseException | None = None
        self._blocks, self._next = ahead(self._encoded()), threading.Lock()
        self._writers = [threading.Thread(target=self._work, name="shard-writer", daemon=True) for _ in range(WRITERS)]

    def __enter__(self) -> "ShardWriter":
        self._stack.enter_context(self._locks.run())
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._queue.put(None)
        for writer in self._writers:
            writer.join()
        for number in self._claimed:
            self._locks.release(number)
        self._stack.close()
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
        """Queue a claimed block; the encoding thread calls ``arrays`` if callable. ``arrays`` must not change later."""
        if self._error:
            raise self._error
        self._queue.put((split, block, arrays))  # if this is interrupted, the claim ends with the context

    def _encoded(self) -> Iterator[tuple[str, int, dict[str, Encoded]]]:
        """Yield the encoded blocks of the queue; after an error, blocks without columns."""
        while (item := self._queue.get()) is not None:
            split, block, arrays = item
            found = dict[str, Encoded]()
            try:
                if self._error is None:
                    found = _encode(self._entry, split, block, arrays() if callable(arrays) else arrays)
            except BaseException as error:  # raised again by ``put`` or on leaving
                self._error = error
            del item, arrays  # frees their memory before the next item is awaited
            yield split, block, found

    def _take(self) -> tuple[str, int, dict[str, Encoded]] | None:
        with self._next:
            return next(self._blocks, None)

    def _work(self) -> None:
        while item := self._take():
            split, block, encoded = item
            try:
                if encoded:
                    self._sizes.append(_write_encoded(self._entry, split, block, encoded))
            except BaseException as error:  # raised again by ``put`` or on leaving
                self._error = error
            finally:
                self._release(self._entry.block_number(split, block))

    def _release(self, number: int) -> None:
        self._claimed.remove(number)
        self._locks.release(number)


def _encode(entry: Entry, split: str, block: int, arrays: Arrays) -> dict[str, Encoded]:
    """Return the columns of a block as they are stored, sorted by name, with their checksums."""
    (low, high), found = entry.layout.block(entry.spec.rows[split], block), dict[str, Encoded]()
    for name, x in sorted(arrays.items()):
        check_column_name(name)
        if x.dtype != np.float32 or x.ndim != 3 or len(x) != high - low or 0 in x.shape:
            raise CacheError(
                f"column {name}: needs float32 of shape ({high - low}, tokens, width), not {x.dtype} {x.shape}"
            )
        step = entry.layout.offset_rows
        found[name] = encode(x, entry.spec.store, column=name, first_row=low, offset_rows=step)
        found[name].crc32  # noqa: B018, the checksum is computed here and not in the writing thread
    return found


def _write_encoded(entry: Entry, split: str, block: int, arrays: Mapping[str, Encoded]) -> int:
    """Write the columns that a claimed block lacks as one shard; return the bytes written."""
    locks, folder, number = entry_locks(entry.path), entry.path / split, page_of(block)
    with locks.run():
        of_block = entry.page(split, number).of_block(block)
        sound = [shard for shard in of_block if is_sound(folder, shard)]
        present = {name for shard in sound for name in shard.columns}
        new = {name: encoded for name, encoded in arrays.items() if name not in present}
        if not new:
            return 0
        shapes = {name: Column(*encoded.values.shape[1:]) for name, encoded in new.items()}
        _check_shapes(entry, split, number, shapes)
        # The lowest part number that no undamaged shard has, so that a rerun after an interruption or a repair makes
        # the same names, and replaces an unlisted file of a killed run.
        taken = {shard.file for shard in sound}
        file = next(name for part in range(len(taken) + 1) if (name := f"{block:05d}-{part}.h5") not in taken)
        pieces, crc32 = shard_pieces(entry.header(split, block), new, entry.spec.store)
        size, crc = publish(folder / file, *pieces, crc32=crc32)
        line = Shard(file, block, size, crc, {name: encoded.crc32 for name, encoded in new.items()})
        unsound = {shard.file for shard in of_block} - taken
        with locks.mutex():
            _check_shapes(entry, split, number, shapes)  # another thread may have listed a first block meanwhile
            entry.page(split, number).without(unsound).with_shard(line, shapes).write(folder, number)
        return line.bytes


def _check_shapes(entry: Entry, split: str, number: int, shapes: Mapping[str, Column]) -> None:
    """Raise CacheError if a column has another shape in the blocks that are listed."""
    page = entry.page(split, number)
    known = page.columns if shapes.keys() <= page.columns.keys() else entry.page(split, 0).columns | page.columns
    for name, shape in shapes.items():
        if shape != (other := known.get(name, shape)):
            each = f"{(shape.tokens, shape.width)} per row, but other blocks have {(other.tokens, other.width)}"
            raise CacheError(f"column {name}: shape {each}")
