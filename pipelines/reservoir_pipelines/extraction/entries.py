"""Fill an entry: create or open it with its labels, list the blocks that it lacks, compute and write them.

A run that is killed leaves whole shards, and claims on blocks that end with the process; the next run computes what
`missing_blocks` lists. Reading, computing, encoding and writing each have their own thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from reservoir_cache import (
    STORES,
    Arrays,
    CacheError,
    Encoded,
    Entry,
    Layout,
    ShardWriter,
    Spec,
    SplitFeatures,
    check_space,
    path_below,
    repair,
    required_bytes,
    rows_per_block,
    verify,
    write_targets,
)

from reservoir.errors import InputError
from reservoir.file_checks import fits
from reservoir.tasks.task import Task
from reservoir_pipelines.output import count_text, notify, size_text
from reservoir_pipelines.preparation.prepared import (
    Prepared,
    PreparedSplit,
    data_digest,
    draw_rows,
    scaling_to_json,
)

if TYPE_CHECKING:
    from reservoir.plan.resolved import Plan

# Most tokens of a block of several parts. A killed run loses its last block: a minute of GPT-2 on two cores, or seconds
# on a GPU.
MAX_TOKENS = {"cpu": 2**17, "cuda": 2**22}
# Bytes of a shard. A GPU fills 16 MiB in a hundredth of a second, as long as HDF5 needs to make a file.
SHARD_BYTES = {"cpu": 2**24, "cuda": 2**26}
MIN_BLOCKS = 8  # fewest blocks of an entry whose blocks have several parts, so that workers can share them
PART_BYTES = 2**28  # bytes of the float32 features of words or tokens that are computed together
MIN_PART_TOKENS = 2**10  # words or tokens of a part, which then has several texts
MAX_PART_TOKENS = 2**15  # so that a killed run loses little
LOADED_AHEAD = 2  # parts of a block that are loaded before the model needs them
POLL = 0.5  # seconds between checks of the blocks that other processes have claimed

# The targets of words or tokens that name neither texts nor groups, except the labels.
UNNAMED_TARGETS = ("lengths", "index", "groups", "pointers", "token_ids", "spans", "numbers_in_text")

Item = TypeVar("Item")

Load = Callable[[str, int, int], Iterable[Any]]
"""Function of a split and a range of rows ``[low, high)`` that yields them in parts, in a separate thread."""

Compute = Callable[[Any, Sequence[str], Callable[[int], None]], Callable[[], Arrays]]
"""Function that starts to compute columns of a part; calling its result returns their values, encoded or not.

It may call its third argument with the number of rows of each batch, which counts them for the progress.
"""

Advance = Callable[[int, int | None], None]
"""Function that counts rows for the progress, with the number of bytes written so far, or None between blocks."""


def new_layout(plan: Plan, max_tokens: int, rows: int) -> Layout:
    """Return the division into files of a new entry of ``rows`` rows in all, each of up to ``max_tokens`` tokens."""
    # The rows of a block of the plan are computed together and share an offset. A file, which is a block of the layout,
    # holds as many of the plan's blocks as its bytes, the loss when a run is killed, and workers that share the entry
    # allow, but at least one.
    row_bytes = STORES[plan.store] * sum(tokens * width for tokens, width in plan.shapes.values())
    kind = _device_kind(plan)
    max_rows = min(MAX_TOKENS[kind] // max_tokens, rows // MIN_BLOCKS)
    block_rows = rows_per_block(row_bytes, plan.block_rows, max_rows, SHARD_BYTES[kind])
    return Layout(block_rows=block_rows, batch_rows=plan.batch_rows, offset_rows=plan.block_rows)


def token_layout(plan: Plan, rows: int) -> Layout:
    """Return the division into files of a new entry whose ``rows`` rows are words or tokens of texts."""
    # A sequence on the border of two parts is computed in both, so a part has many rows, as far as memory allows.
    row_values = sum(tokens * width for tokens, width in plan.shapes.values())
    rows_in_memory = PART_BYTES // (4 * row_values)  # of float32
    part_rows = min(MAX_PART_TOKENS, max(MIN_PART_TOKENS, rows_in_memory))
    stored_row_bytes = STORES[plan.store] * row_values
    block_rows = rows_per_block(
        stored_row_bytes, part_rows, rows // MIN_BLOCKS, SHARD_BYTES[_device_kind(plan)]
    )
    return Layout(block_rows=block_rows, batch_rows=plan.batch_rows, offset_rows=part_rows)


def _device_kind(plan: Plan) -> str:
    """Return the kind of a plan's device, ``cpu`` or ``cuda``."""
    import torch  # which opening an entry does not need

    from reservoir import devices

    return devices.kind(torch.device(plan.device))


def start_entry(
    root: Path,
    title: str,
    spec: Spec,
    layout: Layout,
    shapes: Mapping[str, tuple[int, int]],
    splits: Sequence[str],
    made_with: Mapping[str, Any],
    add_labels: Callable[[Entry], None],
) -> tuple[Entry, list[tuple[str, int]]]:
    """Create or open an entry, call ``add_labels`` to write its labels, and drop damaged blocks.

    Return the entry, and the split and number of each block of ``splits`` that lacks a column. If there are some, print
    what is to be computed; raise an error if the disk lacks the space.
    """
    # The disk must have space for a new entry before its folder appears.
    if not entry_folder(root, title, spec).is_dir():
        check_space(root, required_bytes(spec, layout, spec.rows, shapes))
    entry = Entry.create(root, title, spec, layout, made_with)
    repair(entry, verify(entry, contents=False))  # damaged blocks become missing ones
    add_labels(entry)
    missing = missing_blocks(entry, splits, tuple(shapes))
    if missing:
        # The missing columns need their space on disk in proportion to the rows that lack them.
        rows = row_count(entry, missing)
        missing_columns = {
            column for split, block in missing for column in entry.lacking(split, block, shapes)
        }
        bytes_of_all_rows = required_bytes(
            spec, layout, spec.rows, {column: shapes[column] for column in missing_columns}
        )
        space = bytes_of_all_rows * rows // sum(spec.rows.values())
        columns = count_text(len(missing_columns), "column")
        notify(f"{spec.task_name} x {title}: {rows:,} rows, {columns}, {size_text(space)} on disk")
        check_space(root, space)
    return entry, missing


def entry_folder(root: Path, title: str, spec: Spec) -> Path:
    """Return the folder of an entry in the cache ``root``, whether or not it exists."""
    return root / "features" / spec.task_name / f"{title}-{spec.key[:16]}"


def write_labels(entry: Entry, prepared: Prepared, rows: Mapping[str, np.ndarray]) -> None:
    """Write labels, lengths, groups and their names, ids and stretches of an entry, unless it has them.

    ``rows`` has the numbers of the entry's rows in each split of the prepared data.
    """
    for split, index in rows.items():
        prepared_split = prepared.split(split)
        targets = {"y": prepared_split.y, "lengths": prepared_split.lengths, "ids": prepared_split.ids}
        if prepared_split.groups is not None:
            targets["groups"] = prepared_split.groups
        if prepared_split.group_names is not None:
            targets["group_names"] = prepared_split.group_names
        if prepared_split.stretches is not None:
            targets["stretches"] = prepared_split.stretches
        has_all_rows = len(index) == len(prepared_split)  # the arrays then need not be copied
        if not has_all_rows:
            targets = {name: array[index] for name, array in targets.items()}
        # An entry without ids names its rows by their numbers.
        if np.array_equal(targets["ids"], index):
            del targets["ids"]
        write_targets(entry, split, targets | {"index": index})


def text_names(
    prepared: PreparedSplit, index: np.ndarray, text_of_row: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the targets that name the texts and groups of a split whose rows are words or tokens.

    ``index`` (texts,) has the numbers of the prepared texts, and ``text_of_row`` (rows,) the place in it of each row's
    text.
    """
    names = {}
    if prepared.group_names is not None:
        names["group_names"] = prepared.group_names[index][text_of_row]
    # An entry without ids names the texts by their numbers.
    text_ids = prepared.ids[index]
    if not np.array_equal(text_ids, index):
        names["text_ids"] = text_ids
    return names


def rename_texts(entry: Entry, prepared: Prepared, rows: Mapping[str, np.ndarray]) -> None:
    """Write the present ids and names of groups of an entry whose rows are words or tokens, unless it has them.

    ``rows`` has the numbers of the entry's texts in each split of the prepared data. The other targets stay as they
    are, because only a tokenizer could make them anew.
    """
    for split, index in rows.items():
        stored = SplitFeatures(entry, split)
        targets = {"y": stored.labels} | {name: getattr(stored, name) for name in UNNAMED_TARGETS}
        text_of_row = np.repeat(np.arange(len(index)), np.diff(targets["pointers"]))
        write_targets(entry, split, targets | text_names(prepared.split(split), index, text_of_row))


def data_record(prepared: Prepared) -> dict[str, Any]:
    """Return what an entry records of its prepared data, which is not part of the key."""
    return {
        "prepared": str(prepared.path.absolute()),
        "kept": {split: prepared.kept(split) for split in prepared.rows},
        "scaling": scaling_to_json(prepared.scaling),
    }


def prepared_folder(entry: Entry) -> Path | None:
    """Return the folder of the prepared data of an entry; None if it is missing, or if an import had none.

    This is the recorded folder. If it does not exist, because the cache was moved or the entry was copied, it is the
    folder of the same name in the cache that has the entry now, provided that it holds the data of the entry.
    """
    recorded = entry.made_with.get("prepared")  # "" or absent if features were imported without their data
    if not recorded:
        return None
    folder = Path(recorded)
    with suppress(OSError):  # it may be that of another user, whose folders cannot be read
        if folder.is_dir():
            return folder
    cache = cache_of(entry.path)
    if cache is None:
        return None
    # The last two names follow from the settings and the source files of the data, so every cache has them. A damaged
    # folder counts as missing, because `prepare` replaces it.
    with suppress(InputError, CacheError):
        folder_here = path_below(cache, "prepared", *folder.parts[-2:])
        if _is_data_of(entry, Prepared.open(folder_here, verify=False)):
            return folder_here
    return None


def cache_of(path: Path) -> Path | None:
    """Return the cache that has an entry, by the path of the entry; None if the entry lies outside a cache."""
    # An entry of a cache is the folder <cache>/features/<task>/<entry>.
    parents = path.resolve().parents
    is_in_cache = len(parents) > 2 and parents[1].name == "features"
    return parents[2] if is_in_cache else None


def _is_data_of(entry: Entry, prepared: Prepared) -> bool:
    """Return whether prepared data has the digest that an entry names."""
    # The digest is that of the data and of the rows that were drawn from it (`--limit`), whose number is that of the
    # entry's largest split. An entry of words or tokens does not count their texts, but records the option.
    limit: int | None = max(entry.spec.rows.values())
    if Task.from_dict(entry.spec.task).labels_text_tokens:
        settings = entry.made_with.get("call", {}).get("settings")
        limit = settings.get("limit") if isinstance(settings, dict) else None
        if not fits(limit, int | None):  # anyone may have changed the record
            return False
    return entry.spec.data.digest == data_digest(prepared, draw_rows(prepared, limit))


def ahead(items: Iterable[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items in order; another thread computes up to ``depth`` of them in advance.

    An error is raised in place of its item. Close the iterator to end the thread if you do not read
    all items.
    """
    iterator = iter(items)
    end = object()  # what `next` returns after the last item, and what no item is
    calls: Iterator[Callable[[], Any]] = repeat(partial(next, iterator, end))
    with closing(in_order(calls, threads=1, depth=depth)) as results:
        for item in results:
            if item is end:
                return
            yield item
            del item  # frees its memory before the next is awaited


def in_order(calls: Iterable[Callable[[], Item]], threads: int, depth: int) -> Generator[Item]:
    """Yield the results of calls in their order; ``threads`` compute up to ``depth`` of them in advance.

    An error is raised in place of its result. Close the iterator to end the threads if you do not read
    all results.
    """
    remaining = iter(calls)
    pool = ThreadPoolExecutor(threads)
    computing = deque[Future[Item]](pool.submit(call) for call in islice(remaining, depth))
    try:
        while computing:
            result = computing.popleft().result()
            # The next call, if any is left.
            computing.extend(pool.submit(call) for call in islice(remaining, 1))
            yield result
            del result  # frees its memory before the next is awaited
    finally:
        pool.shutdown(cancel_futures=True)


def missing_blocks(entry: Entry, splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Return the split and the number of every block that lacks one of the columns."""
    return [(split, block) for split in splits for block in sorted(entry.missing(split, columns))]


def has_features(entry: Entry) -> bool:
    """Return whether an entry has columns of any block."""
    return any(entry.manifest(split).shards for split in entry.splits)


def row_count(entry: Entry, blocks: Sequence[tuple[str, int]]) -> int:
    """Return the number of rows of some blocks."""
    ranges = (entry.layout.block(entry.spec.rows[split], block) for split, block in blocks)
    return sum(high - low for low, high in ranges)


@dataclass(frozen=True)
class _Part:
    """Some rows of a block to compute.

    A block that this process need not compute, because it lacks no column or another process has claimed it, is one
    part without ``columns`` and ``rows``.
    """

    split: str
    block: int  # number of the block in its split
    columns: tuple[str, ...]  # the columns to compute; empty if there are none
    rows: Any  # as `Load` yields them; None if there are no columns


def _claimed_parts(
    writer: ShardWriter, entry: Entry, blocks: Sequence[tuple[str, int]], columns: Sequence[str], read: Load
) -> Iterator[_Part]:
    """Claim the blocks one after the other, and yield the parts of each, at least one; see `_Part`."""
    for split, block in blocks:
        missing_columns = writer.claim(split, block, columns)
        if not missing_columns:
            yield _Part(split, block, columns=(), rows=None)  # so that the progress counts the block
            continue
        low, high = entry.layout.block(entry.spec.rows[split], block)
        for rows in read(split, low, high):
            yield _Part(split, block, missing_columns, rows)


def compute_blocks(
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute and write the blocks that no other process has claimed; return the number of rows computed.

    ``advance`` counts all rows of ``blocks``, also those of blocks that other processes compute.
    """
    from reservoir.devices import exact_products  # imports torch, which reading an entry does not need

    computed_rows = 0
    # Loading, encoding and writing run in other threads, so that a GPU need not wait.
    with exact_products(), ShardWriter(entry) as writer:
        parts = _claimed_parts(writer, entry, blocks, columns, read)
        with closing(ahead(parts, LOADED_AHEAD)) as loaded_parts:
            # The parts of a block follow each other.
            for (split, block), parts_of_block in groupby(loaded_parts, attrgetter("split", "block")):
                low, high = entry.layout.block(entry.spec.rows[split], block)
                uncounted_rows = high - low  # rows of the block that the progress has not counted

                def count(rows: int) -> None:
                    """Count the rows of a batch for the progress, while the block is computed."""
                    nonlocal uncounted_rows
                    uncounted_rows -= rows
                    advance(rows, None)

                # Start all parts; the writer's thread waits for their values and encodes them.
                waits = [compute(part.rows, part.columns, count) for part in parts_of_block if part.columns]
                if waits:
                    writer.put(split, block, partial(_columns_of_block, waits))
                    computed_rows += high - low
                advance(uncounted_rows, writer.bytes_written)
    return computed_rows


def _columns_of_block(waits: Sequence[Callable[[], Any]]) -> Arrays:
    """Return the columns of a block; each of ``waits`` waits for one of its parts and returns the part's columns."""
    parts = [wait() for wait in waits]
    if len(parts) == 1:
        return parts[0]
    # Only extractions have blocks of several parts, and they encode each part where it was computed.
    return {column: Encoded.joined([part[column] for part in parts]) for column in parts[0]}


def compute_missing(
    entry: Entry,
    splits: Sequence[str],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute the missing blocks, and wait for those of other processes.

    Return the number of rows that this process has computed.
    """
    computed_rows = 0
    # Blocks that another process has claimed are missing until it has written them, or are left to this one if it ends.
    while missing := missing_blocks(entry, splits, columns):
        new_rows = compute_blocks(entry, missing, columns, read, compute, advance)
        computed_rows += new_rows
        others_compute_the_rest = new_rows == 0 and missing_blocks(entry, splits, columns)
        if others_compute_the_rest:
            time.sleep(POLL)
    return computed_rows
