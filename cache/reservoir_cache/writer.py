"""Writing shards in a thread of their own, while the next block computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError
from reservoir_cache.locks import entry_locks

_Item = tuple[str, int, Mapping[str, NDArray[np.float32]]]


class ShardWriter:
    """A writer thread behind a bounded queue; use it as a context manager.

    A block given to ``put`` stays claimed until it is on disk. Leaving the context waits for the queue: also after an
    exception, since every block in it is complete. An error in the thread is raised by the next ``put``, or on leaving.

    Parameters
    ----------
    entry : Entry
    maxsize : int, default 4
        Blocks that may wait; ``put`` blocks when as many do.

    Attributes
    ----------
    bytes_written : int
        Bytes on disk so far.
    """

    def __init__(self, entry: Entry, maxsize: int = 4) -> None:
        self.bytes_written = 0
        self._entry = entry
        self._locks = entry_locks(entry.path)
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize)
        self._stack = ExitStack()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="shard-writer", daemon=True)

    def __enter__(self) -> ShardWriter:
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
        """Hand a block over; the arrays must not be changed afterwards.

        Parameters
        ----------
        split : str
        block : int
        arrays : mapping of column to ndarray of shape (rows of the block, tokens, width), float32

        Raises
        ------
        CacheError
            What went wrong with this block or an earlier one.
        """
        self._raise()
        number = self._entry.block_number(split, block)
        if not self._locks.share(number):
            raise CacheError(f"{self._entry.path}: block {block} of {split} is being written by another run")
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
                    self.bytes_written += self._entry.write_block(split, block, arrays)
            except BaseException as error:  # raised again in the thread that puts
                self._error = error
            finally:
                self._locks.release(self._entry.block_number(split, block))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
