"""Write blocks and labels: encode, publish and list them, in threads, during the forward pass."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import (
    TARGETS_FILE,
    Entry,
    Manifest,
    Shard,
    StoredColumn,
    TargetFile,
    check_column_name,
    has_listed_size,
    page_of,
)
from reservoir_cache.errors import CacheError, UnstorableError
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import publish, sync
from reservoir_cache.reader import SplitFeatures
from reservoir_cache.shard import (
    TARGET_RANKS,
    UNREADABLE,
    Encoded,
    encode,
    file_content,
    numbers_of_ids,
    open_hdf5,
    places_in_text,
    read_array,
    shard_content,
)

Arrays = Mapping[str, NDArray[np.float32] | Encoded]
"""Features by column, (rows of the block, tokens, width) each, perhaps encoded."""

WRITERS = 3  # threads that encode and write blocks: one may wait for the disk while the others compute
# Datasets that may hold texts: the names of rows, or of the texts whose tokens are rows, and of the groups of rows.
NAME_DATASETS = ("ids", "text_ids", "group_names")
# The datasets of targets that are part of neither the data's digest nor the key: an entry that lacks them, or has
# others, is given them.
RENEWED = (*NAME_DATASETS, "stretches", "numbers_in_text")
PENDING = 6  # blocks that may be in memory and not on disk yet
# Size of the shards that are listed in one write of their page, because pages take three of the four fsyncs of a shard.
GROUP_BYTES = 2**26


def write_targets(entry: Entry, split: str, targets: Mapping[str, NDArray]) -> None:
    """Write the labels, lengths and row numbers of a split, unless they exist with the same `RENEWED` datasets.

    ``targets`` has ``y`` (rows, readout_tokens, outputs), ``lengths`` and ``index`` (rows,), perhaps ``groups``,
    ``group_names`` and ``stretches``, and perhaps ``ids`` (rows,) of texts or integers. If rows are tokens of texts, it
    has ``pointers`` (texts + 1,), ``token_ids`` (rows,), ``spans`` (rows, 2), perhaps ``numbers_in_text`` (rows,), and
    perhaps ``text_ids`` (texts,) instead of ``ids``.
    """
    folder = entry.path / split
    arrays = {name: np.asarray(targets[name]) for name in TARGET_RANKS if name in targets}
    # If all words of the texts are rows, the pointers give the numbers.
    if "numbers_in_text" in arrays:
        has_all_words = np.array_equal(arrays["numbers_in_text"], places_in_text(arrays["pointers"]))
        if has_all_words:
            del arrays["numbers_in_text"]
    arrays |= {name: numbers_of_ids(arrays[name]) for name in NAME_DATASETS if name in arrays}
    exists = has_listed_size(folder, entry.page(split, 0).targets)
    if exists and _is_current(folder / TARGETS_FILE, arrays):
        return  # without a lock, because taking one needs write permission
    locks = entry_locks(entry.path)
    with locks.at_work(), locks.mutex():
        page = entry.page(split, 0)  # the first page lists the labels
        # If the file is replaced, the page first stops listing it, so that after a crash it never lists a checksum of
        # other content.
        if page.targets:
            replace(page, targets=None).write(folder, 0)
        size, crc32 = publish(folder / TARGETS_FILE, *file_content(arrays))
        line = TargetFile(TARGETS_FILE, size, crc32)
        replace(page, targets=line).write(folder, 0)


def _is_current(path: Path, arrays: Mapping[str, NDArray]) -> bool:
    """Return whether a file of targets stores the `RENEWED` datasets of these arrays; False if it cannot be read."""
    try:
        with open_hdf5(path) as file:
            stored = {name: read_array(file, name) for name in RENEWED if name in file}
    except UNREADABLE:
        return False
    expected = {name: arrays[name] for name in RENEWED if name in arrays}
    return stored.keys() == expected.keys() and all(
        np.array_equal(array, expected[name]) for name, array in stored.items()
    )


@dataclass(frozen=True)
class _Written:
    """A shard whose content is on disk, and that no page lists yet."""

    split: str
    line: Shard  # what the page will list
    shapes: dict[str, StoredColumn]  # of the columns of the shard


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
        self._error: BaseException | None = None  # the last error of a thread; None while there is none
        self._guard = threading.Lock()  # held while the two fields below are read and changed
        self._group = list[_Written]()  # written blocks that are to be listed together
        self._unwritten = 0  # number of blocks that are queued, or that a thread writes

    def __enter__(self) -> "ShardWriter":
        self._at_work.__enter__()
        # All threads start here: one that Ctrl-C meets while ``put`` starts it would not be waited for on leaving. Each
        # thread takes one of these calls, because the barrier holds it until all threads have come.
        started = threading.Barrier(WRITERS)
        list(self._threads.map(lambda _: started.wait(), range(WRITERS)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._threads.shutdown()  # waits for the queued blocks
        # The group still has blocks if ``put`` was interrupted after it counted a block and before it queued it: the
        # group then waits for that block.
        self._list(self._group)
        self._group = []
        # Claims of blocks that were never queued.
        for number in self._claimed:
            self._locks.release(number)
        self._at_work.__exit__(None, None, None)
        # An error of the caller goes first; it is raised after this method.
        if kind is None and self._error:
            raise self._error

    @property
    def bytes_written(self) -> int:
        """Size of all shards that have been written."""
        return sum(self._sizes)

    def claim(self, split: str, block: int, columns: Iterable[str]) -> tuple[str, ...]:
        """Claim a block until it is on disk, and return which of the columns it lacks.

        The result is empty, and the block is not claimed, if another run has claimed it or it lacks none.
        """
        number = self._entry.block_number(split, block)
        if not self._locks.claim(number):
            return ()
        self._claimed.add(number)
        # Only now nobody else changes the block; another run may have just published it.
        lacking = self._entry.lacking(split, block, columns)
        if not lacking:
            self._release(split, block)
        return lacking

    def put(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Queue the columns that a claimed block lacks; if ``arrays`` is a function, a thread of the writer calls it.

        Raises the error of an earlier block, if a thread had one.
        """
        self._room.acquire()  # waits while too many blocks are queued; `_work` releases it
        if self._error:
            self._room.release()
            raise self._error
        # The block is counted before it is queued, because its thread may finish and subtract it at once. If the caller
        # is interrupted between the two, the block stays counted: the last group is then listed on leaving the
        # context, which also releases the claim of this block.
        with self._guard:
            self._unwritten += 1
        self._threads.submit(self._work, split, block, arrays)

    def _work(self, split: str, block: int, arrays: Arrays | Callable[[], Arrays]) -> None:
        """Encode and write a block, in a thread of the writer; after an error, blocks are only released."""
        written: _Written | None = None  # None if an error, of this or an earlier block, keeps it unwritten
        try:
            if self._error is None:
                encoded = _encode(self._entry, split, block, arrays() if callable(arrays) else arrays)
                written = _write(self._entry, split, block, encoded)
                self._sizes.append(written.line.bytes)
        except UnstorableError as error:
            self._error = CacheError(f"{_row_text(self._entry, split, error.row)}, {error.problem}")
        except BaseException as error:  # raised again by ``put`` or on leaving
            self._error = error
        if written is None:
            self._release(split, block)
        self._list(self._finished_group(written))
        self._room.release()

    def _finished_group(self, written: _Written | None) -> list[_Written]:
        """Count a block as written, and return the group of blocks to list now; it is empty while the group grows.

        The block joins the group, unless ``written`` is None because of an error.
        """
        with self._guard:
            self._unwritten -= 1
            if written:
                self._group.append(written)
            is_large = sum(block.line.bytes for block in self._group) >= GROUP_BYTES
            more_blocks_come = self._unwritten > 0
            if more_blocks_come and not is_large:
                return []
            finished_group = self._group
            self._group = []
            return finished_group

    def _list(self, group: Sequence[_Written]) -> None:
        """List the blocks of a group in their pages, and release them, after an error too."""
        try:
            _list_shards(self._entry, group)
        except BaseException as error:  # raised again by ``put`` or on leaving
            self._error = error
        finally:
            for written in group:
                self._release(written.split, written.line.block)

    def _release(self, split: str, block: int) -> None:
        """Give up the claim of a block."""
        number = self._entry.block_number(split, block)
        self._claimed.remove(number)
        self._locks.release(number)


def _row_text(entry: Entry, split: str, row: int) -> str:
    """Return in words what names a row of a split in its source; its number in the split if the entry has no labels."""
    row_id: int | str = row
    with suppress(CacheError):
        row_id = SplitFeatures(entry, split).ids[row].item()
    return f"{split}, row {row_id!r}"


def _encode(entry: Entry, split: str, block: int, arrays: Arrays) -> dict[str, Encoded]:
    """Return the columns of a block as they are stored, sorted by name; columns that are encoded stay as they are.

    Raises CacheError for a column of another shape or type, or with a value that cannot be stored.
    """
    low, high = entry.layout.block(entry.spec.rows[split], block)
    encoded = dict[str, Encoded]()
    for name, x in sorted(arrays.items()):
        check_column_name(name)
        if isinstance(x, Encoded):
            encoded[name] = x
            continue
        has_shape_of_block = x.ndim == 3 and len(x) == high - low and 0 not in x.shape
        if x.dtype != np.float32 or not has_shape_of_block:
            expected = f"float32 of shape ({high - low}, tokens, width)"
            raise CacheError(f"column {name}: needs {expected}, not {x.dtype} {x.shape}")
        offset_rows = entry.layout.offset_rows
        encoded[name] = encode(x, entry.spec.store, column=name, first_row=low, offset_rows=offset_rows)
    return encoded


def _write(entry: Entry, split: str, block: int, encoded: Mapping[str, Encoded]) -> _Written:
    """Write columns of a claimed block as one shard, which `_list_shards` makes visible."""
    folder = entry.path / split
    page_number = page_of(block)
    page = entry.page(split, page_number)
    shapes = {name: StoredColumn(*column.values.shape[1:]) for name, column in encoded.items()}
    _check_shapes(page, shapes)
    # The lowest part number that no undamaged shard has, so that a rerun after an interruption or a
    # repair makes the same names, and replaces an unlisted file of a killed run.
    shards_of_block = [shard for shard in page.shards if shard.block == block]
    undamaged_files = {shard.file for shard in shards_of_block if has_listed_size(folder, shard)}
    damaged_files = {shard.file for shard in shards_of_block} - undamaged_files
    # A damaged file may be replaced below. The page first stops listing it, so that after a crash it never lists the
    # size and checksum of other content.
    if damaged_files:
        with entry_locks(entry.path).mutex():
            entry.page(split, page_number).without(damaged_files).write(folder, page_number)
    part = 0
    while (file := f"{block:05d}-{part}.h5") in undamaged_files:
        part += 1
    content, crc = shard_content(entry.header(split, block), encoded, entry.spec.store)
    # `_list_shards` syncs the folder, once for several shards.
    size, crc32 = publish(folder / file, *content, crc32=crc, sync_folder=False)
    crc32_of_columns = {name: column.crc32 for name, column in encoded.items()}
    line = Shard(file, block, size, crc32, crc32_of_columns)
    return _Written(split, line, shapes)


def _list_shards(entry: Entry, group: Sequence[_Written]) -> None:
    """List shards in the pages of their splits, each of which is written once.

    Raises CacheError if a column has another shape than in a page.
    """
    shards_of_page: dict[tuple[str, int], list[_Written]] = {}  # by split and number of the page
    for written in group:
        page_number = page_of(written.line.block)
        shards_of_page.setdefault((written.split, page_number), []).append(written)
    # The names of the shards must be on disk before a page that lists them.
    splits = dict.fromkeys(split for split, _ in shards_of_page)
    for split in splits:
        sync(entry.path / split)
    for (split, page_number), shards in shards_of_page.items():
        with entry_locks(entry.path).mutex():
            page = entry.page(split, page_number)
            for written in shards:
                # Another run may have listed a column of the page meanwhile.
                _check_shapes(page, written.shapes)
                page = page.with_shard(written.line, written.shapes)
            page.write(entry.path / split, page_number)


def _check_shapes(page: Manifest, shapes: Mapping[str, StoredColumn]) -> None:
    """Raise CacheError if a column has another shape than in the blocks that a page lists."""
    for name, shape in shapes.items():
        listed = page.columns.get(name)
        if listed is not None and listed != shape:
            new_shape = (shape.tokens, shape.width)
            listed_shape = (listed.tokens, listed.width)
            raise CacheError(
                f"column {name}: shape {new_shape} per row, but other blocks have {listed_shape}"
            )
