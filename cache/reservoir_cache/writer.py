"""Writing blocks and labels: encode, publish a file, list it in the manifest, in a thread beside the forward pass."""

import io
import queue
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import TARGETS_FILE, Column, Entry, Shard, Targets, check_column_name, is_sound, page_of
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import CacheError, publish
from reservoir_cache.shard import ShardHeader, encode, shard_image, target_ranks
from reservoir_cache.spec import FORMAT


def write_block(entry: Entry, split: str, block: int, arrays: Mapping[str, NDArray[np.float32]]) -> int:
    """Write one shard with those of the columns that a block lacks; return the bytes written.

    ``arrays`` maps columns to float32 arrays of shape (rows of the block, tokens, width).
    """
    number, locks = _share(entry, split, block), entry_locks(entry.path)
    try:
        with locks.run(), locks.writing:
            return _write_claimed(entry, split, block, arrays)
    finally:
        locks.release(number)


def _share(entry: Entry, split: str, block: int) -> int:
    """Join this process's claim on a block and return its number; raises CacheError if another run writes it."""
    number = entry.block_number(split, block)
    if not entry_locks(entry.path).share(number):
        raise CacheError(f"{entry.path}: block {block} of {split} is being written by another run; wait for it")
    return number


def write_targets(entry: Entry, split: str, targets: Mapping[str, NDArray]) -> None:
    """Write the labels, lengths and source row numbers of a split, unless they are there.

    ``targets`` has ``y`` (rows, readout_tokens, outputs), ``lengths`` (rows,) and ``index`` (rows,); and ``groups``
    (rows,), the same number for rows that belong together, where there are any.
    """
    folder, rows = entry.path / split, entry.page(split, 0).rows
    arrays = {name: np.ascontiguousarray(array) for name, array in targets.items()}
    ranks = target_ranks(arrays)
    if arrays.keys() != ranks.keys():
        raise CacheError(f"targets of {split}: need {', '.join(ranks)}, not {', '.join(arrays)}")
    for name, array in arrays.items():
        if array.ndim != ranks[name] or len(array) != rows or array.dtype.kind not in "biuf":
            raise CacheError(
                f"targets of {split}: {name} has shape {array.shape} and type {array.dtype}; "
                f"it needs {ranks[name]} dimensions, {rows} rows, and numbers"
            )

    if is_sound(folder, entry.page(split, 0).targets):
        return  # before any lock is taken, which needs the right to write
    locks = entry_locks(entry.path)
    with locks.run(), locks.mutex():
        if not is_sound(folder, entry.page(split, 0).targets):
            image = io.BytesIO()
            with h5py.File(image, "w") as file:
                for name in ranks:
                    file.create_dataset(name, data=arrays[name], track_times=False)
            line = Targets(TARGETS_FILE, *publish(folder / TARGETS_FILE, image.getbuffer()))
            replace(entry.page(split, 0), targets=line).write(folder, 0)


class ShardWriter:
    """A writer thread behind a bounded queue; use it as a context manager.

    A block given to ``put`` stays claimed until it is on disk. Leaving the context waits for the queue, even after an
    exception, since every block in it is complete. An error in the thread is raised by the next ``put`` or on leaving.

    ``put`` blocks when ``maxsize`` blocks wait. ``bytes_written`` counts the bytes that are on disk.
    """

    def __init__(self, entry: Entry, maxsize: int = 4) -> None:
        self.bytes_written = 0
        self._entry = entry
        self._locks = entry_locks(entry.path)
        self._queue: queue.Queue[tuple[str, int, Mapping[str, NDArray[np.float32]]] | None] = queue.Queue(maxsize)
        self._stack = ExitStack()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="shard-writer", daemon=True)

    def __enter__(self) -> "ShardWriter":
        self._stack.enter_context(self._locks.run())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._queue.put(None)
        self._thread.join()
        self._stack.close()
        if kind is None:
            self._raise()

    def put(self, split: str, block: int, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Queue a block with the arguments of ``write_block``; the arrays must not be changed afterwards."""
        self._raise()
        number = _share(self._entry, split, block)
        try:
            self._queue.put((split, block, arrays))
        except BaseException:  # interrupted while waiting: the block will not be written
            self._locks.release(number)
            raise

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            split, block, arrays = item
            try:
                if self._error is None:
                    self.bytes_written += write_block(self._entry, split, block, arrays)
            except BaseException as error:  # raised again in the thread that puts
                self._error = error
            finally:
                self._locks.release(self._entry.block_number(split, block))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _write_claimed(entry: Entry, split: str, block: int, arrays: Mapping[str, NDArray[np.float32]]) -> int:
    """Write those columns of a claimed block that it lacks as one shard.

    The shard is ``<block>-<part>.h5``, with the lowest part that no sound shard of the block has: so a rerun after
    any interruption or repair makes the same names, and an unlisted file that a killed run left is replaced.
    """
    folder, number = entry.path / split, page_of(block)
    page, (low, high) = entry.page(split, number), entry.layout.block(entry.spec.rows[split], block)
    of_block = page.of_block(block)
    sound = [shard for shard in of_block if is_sound(folder, shard)]
    present = {name for shard in sound for name in shard.columns}
    new = {name: x for name, x in arrays.items() if name not in present}
    if not new:
        return 0
    known = page.columns if new.keys() <= page.columns.keys() else entry.page(split, 0).columns | page.columns
    for name, x in new.items():
        check_column_name(name)
        if x.dtype != np.float32 or x.ndim != 3 or len(x) != high - low or 0 in x.shape:
            raise CacheError(
                f"column {name}: needs float32 of shape ({high - low}, tokens, width), not {x.dtype} {x.shape}"
            )
        if name in known and Column(*x.shape[1:]) != known[name]:
            other = known[name].tokens, known[name].width
            raise CacheError(f"column {name}: shape {x.shape[1:]} per row, but other blocks have {other}")
    store, step = entry.spec.store, entry.layout.offset_rows
    encoded = {name: encode(x, store, column=name, first_row=low, offset_rows=step) for name, x in new.items()}
    header = ShardHeader(FORMAT, entry.key, split, block, low, high)
    taken = {shard.file for shard in sound}
    file = next(name for part in range(len(taken) + 1) if (name := f"{block:05d}-{part}.h5") not in taken)
    size, crc = publish(folder / file, shard_image(header, encoded, store))
    line = Shard(file, block, size, crc, {name: each.crc32 for name, each in sorted(encoded.items())})
    shapes = {name: Column(*x.shape[1:]) for name, x in new.items()}
    unsound = {shard.file for shard in of_block} - taken
    with entry_locks(entry.path).mutex():
        entry.page(split, number).without(unsound).with_shard(line, shapes).write(folder, number)
    return line.bytes
