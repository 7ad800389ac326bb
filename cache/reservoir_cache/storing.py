"""Storing one block: encode, publish one shard, list it in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.encoding import encode
from reservoir_cache.locks import entry_locks
from reservoir_cache.manifest import Column, Shard, is_sound, shard_name
from reservoir_cache.publish import file_crc32, publish
from reservoir_cache.shard import ShardHeader, check_column, verify_shard, write_shard
from reservoir_cache.spec import FORMAT

if TYPE_CHECKING:
    from reservoir_cache.entry import Entry


def store_block(entry: Entry, split: str, block: int, arrays: Mapping[str, NDArray[np.float32]], run: str) -> int:
    """Write those columns of a block that it lacks as one shard; the caller holds the block's claim.

    The shard is ``<block>-<part>.h5``, with the lowest part that no sound shard of the block has: so a rerun after
    any interruption or repair makes the same names, and an unlisted file that a killed run left is replaced.

    Parameters
    ----------
    entry : Entry
    split : str
    block : int
    arrays : mapping of column to ndarray of shape (rows of the block, tokens, width), float32
    run : str
        Identity of the writing process.

    Returns
    -------
    int
        Bytes written; 0 if every column was there.

    Raises
    ------
    CacheError
        If a shape or value cannot be stored, or the disk fails.
    """
    folder, manifest = entry.path / split, entry.manifest(split)
    low, high = entry.blocks(split)[block]
    of_block = manifest.of_block(block)
    sound = [shard for shard in of_block if is_sound(folder, shard)]
    present = {name for shard in sound for name in shard.columns}
    new = {name: x for name, x in arrays.items() if name not in present}
    if not new:
        return 0
    for name, x in new.items():
        check_column(name, x, high - low, manifest.columns.get(name))
    store = entry.spec.store
    encoded = {name: encode(x, store, column=name, first_row=low) for name, x in new.items()}
    header = ShardHeader(FORMAT, entry.key, split, block, low, high)
    taken = {shard.file for shard in sound}
    path = folder / next(name for part in range(len(taken) + 1) if (name := shard_name(block, part)) not in taken)
    publish(
        path,
        run,
        lambda temporary: write_shard(temporary, header, encoded, store),
        lambda temporary: verify_shard(temporary, header, encoded, store),
    )
    crcs = {name: each.crc32() for name, each in sorted(encoded.items())}
    line = Shard(path.name, block, path.stat().st_size, file_crc32(path), crcs)
    shapes = {name: Column(*x.shape[1:]) for name, x in new.items()}
    unsound = {shard.file for shard in of_block} - taken
    with entry_locks(entry.path).mutex():
        entry.manifest(split).without(unsound).with_shard(line, shapes).write(folder, run)
    return line.bytes
