"""The blocks of columns that an entry lacks: claimed, computed and published one by one, beside other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from reservoir_cache import Entry, ShardWriter

Compute = Callable[[str, int, int, Sequence[str]], Mapping[str, np.ndarray]]
"""From a split, its rows from the first up to the last, and columns to their values (rows, tokens, width)."""

POLL = 0.5  # seconds until we look again for what other processes have in hand


def missing_blocks(entry: Entry, splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Return the split and the number of every block that lacks one of the columns."""
    return [(split, block) for split in splits for block in sorted(entry.missing(split, columns))]


def compute_blocks(
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    compute: Compute,
    advance: Callable[[int, int], None] = lambda rows, written: None,
) -> int:
    """Compute those of the blocks that nobody else has in hand; return the rows that were computed here."""
    taken = 0
    with ShardWriter(entry) as writer:
        for split, block in blocks:
            low, high = entry.layout.block(entry.spec.rows[split], block)
            with entry.claim(split, block) as mine:
                # Another run may have published it since it was listed.
                lacking = entry.lacking(split, block, columns) if mine else ()
                if lacking:
                    writer.put(split, block, dict(compute(split, low, high, lacking)))
                    taken += high - low
            advance(high - low, writer.bytes_written)
    return taken


def compute_missing(
    entry: Entry,
    splits: Sequence[str],
    columns: Sequence[str],
    compute: Compute,
    advance: Callable[[int, int], None] = lambda rows, written: None,
) -> int:
    """Compute what is missing, or wait for who has it in hand; return the rows that were computed here."""
    computed = 0
    while todo := missing_blocks(entry, splits, columns):
        taken = compute_blocks(entry, todo, columns, compute, advance)
        computed += taken
        if not taken and missing_blocks(entry, splits, columns):
            time.sleep(POLL)
    return computed
