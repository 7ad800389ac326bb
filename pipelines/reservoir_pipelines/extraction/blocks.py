"""Compute blocks of rows and write them: read, compute, encode and write, each step in its own thread."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from reservoir_cache import Arrays, Encoded, Entry, ShardWriter, ahead

from reservoir import devices

Load = Callable[[str, int, int], Iterable[Any]]
"""Function of a split and a range of rows that yields them in parts, in a separate thread."""

Compute = Callable[[Any, Sequence[str], Callable[[int], None]], Callable[[], Arrays]]
"""Function that starts to compute columns of a part; calling its result returns their values, encoded or not.

It may call its third argument with the number of rows of each batch, which counts them for the progress.
"""

Advance = Callable[[int, int | None], None]
"""Function that counts rows for the progress, with the number of bytes written so far, or None between blocks."""

LOADED_AHEAD = 2  # parts of a block that are loaded before the model needs them
POLL = 0.5  # seconds between checks of the blocks that other processes have claimed


def missing_blocks(entry: Entry, splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Return the split and the number of every block that lacks one of the columns."""
    return [(split, block) for split in splits for block in sorted(entry.missing(split, columns))]


def row_count(entry: Entry, blocks: Sequence[tuple[str, int]]) -> int:
    """Return the number of rows of some blocks."""
    ranges = (entry.layout.block(entry.spec.rows[split], block) for split, block in blocks)
    return sum(high - low for low, high in ranges)


def compute_blocks(
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute the blocks that no other process has claimed; return the number of rows computed."""
    # Loading, encoding and writing run in three other threads, so that a GPU need not wait.
    computed, layout = 0, entry.layout
    with devices.exact_products(), ShardWriter(entry) as writer:

        def claimed() -> Iterator[tuple[tuple[str, int], tuple[str, ...], Any]]:
            for split, block in blocks:
                lacking = writer.claim(split, block, columns)
                parts = read(split, *layout.block(entry.spec.rows[split], block)) if lacking else (None,)
                yield from (((split, block), lacking, part) for part in parts)

        with closing(ahead(claimed(), LOADED_AHEAD)) as loaded:
            for (split, block), parts in groupby(loaded, itemgetter(0)):
                low, high = layout.block(entry.spec.rows[split], block)
                left = high - low  # rows that the progress has not counted

                def count(rows: int) -> None:
                    nonlocal left
                    left -= rows
                    advance(rows, None)

                launched = [compute(part, lacking, count) for _, lacking, part in parts if lacking]
                if launched:
                    writer.put(split, block, partial(_joined, launched))
                    computed += high - low
                advance(left, writer.bytes_written)
    return computed


def _joined(launched: Sequence[Callable[[], Any]]) -> Arrays:
    """Return the columns of a block from those of its parts, which are encoded if there are several."""
    parts = [fetch() for fetch in launched]
    if len(parts) == 1:
        return parts[0]
    return {column: Encoded.joined([part[column] for part in parts]) for column in parts[0]}


def compute_missing(
    entry: Entry,
    splits: Sequence[str],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute the missing blocks, and wait for those of other processes; return the number of rows computed here."""
    computed = 0
    while todo := missing_blocks(entry, splits, columns):
        rows = compute_blocks(entry, todo, columns, read, compute, advance)
        computed += rows
        if not rows and missing_blocks(entry, splits, columns):
            time.sleep(POLL)
    return computed
