"""A cache of features in HDF5 shards that are complete or absent; FORMAT.md describes the format."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reservoir_cache.ahead import ahead
from reservoir_cache.catalog import (
    EntrySummary,
    broken_entries,
    check_space,
    folder_bytes,
    last_entry,
    list_entries,
    prunable,
    remove,
    required_bytes,
    summarize,
)
from reservoir_cache.entry import Entry, check_column_name
from reservoir_cache.locks import untracked
from reservoir_cache.publish import (
    CacheError,
    Problem,
    file_crc32,
    make_folder,
    open_lock,
    open_regular,
    path_below,
    publish_json,
    read_json,
    read_regular,
    refuse_links,
    sync,
)
from reservoir_cache.spec import FORMAT, STORES, Layout, Spec, rows_per_block

if TYPE_CHECKING:
    from reservoir_cache.derived import load_arrays, save_arrays
    from reservoir_cache.hdf5 import open_hdf5
    from reservoir_cache.reader import FeatureStore, SplitFeatures
    from reservoir_cache.shard import STORED_DTYPE, Encoded, encode, new_file
    from reservoir_cache.verification import repair, verify
    from reservoir_cache.writer import Arrays, ShardWriter, write_targets

__all__ = [
    "EntrySummary",
    "broken_entries",
    "check_space",
    "folder_bytes",
    "last_entry",
    "list_entries",
    "prunable",
]
__all__ += ["CacheError", "Entry", "Problem", "check_column_name", "remove", "required_bytes"]
__all__ += [
    "file_crc32",
    "make_folder",
    "open_lock",
    "path_below",
    "publish_json",
    "read_json",
    "summarize",
]
__all__ += ["FORMAT", "STORES", "Layout", "Spec", "load_arrays", "rows_per_block", "save_arrays", "sync"]
__all__ += [
    "FeatureStore",
    "SplitFeatures",
    "ahead",
    "new_file",
    "open_hdf5",
    "refuse_links",
    "repair",
    "untracked",
    "verify",
]
__all__ += [
    "STORED_DTYPE",
    "Arrays",
    "Encoded",
    "ShardWriter",
    "encode",
    "open_regular",
    "read_regular",
    "write_targets",
]

# Modules that are imported when a name in them is first used, because h5py would slow down the
# command line's start.
_LATER = ("derived", "hdf5", "reader", "shard", "verification", "writer")


def __getattr__(name: str) -> Any:
    for module in _LATER if name in __all__ else ():
        if found := getattr(import_module(f"{__name__}.{module}"), name, None):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
