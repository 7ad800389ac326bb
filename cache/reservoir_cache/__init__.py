"""Where features live: a cache of HDF5 shards that are finished or absent. FORMAT.md is the format.

Nothing here imports h5py until it is used, so that a command line may import this package and stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_cache.catalog import (
        EntrySummary,
        broken_entries,
        check_space,
        entry_bytes,
        last_entry,
        list_entries,
        prune,
        remove,
        required_bytes,
        summarize,
    )
    from reservoir_cache.derived import load_arrays, save_arrays
    from reservoir_cache.entry import Entry
    from reservoir_cache.errors import CacheError, Problem
    from reservoir_cache.hdf import new_file
    from reservoir_cache.publish import file_crc32, publish_file, publish_json, read_json
    from reservoir_cache.reader import FeatureStore, SplitFeatures
    from reservoir_cache.spec import FORMAT, STORES, Layout, Spec, difference
    from reservoir_cache.verification import repair, verify
    from reservoir_cache.writer import ShardWriter, write_block, write_targets

_HOME = {
    "catalog": (
        *("EntrySummary", "broken_entries", "check_space", "entry_bytes", "last_entry", "list_entries", "prune"),
        *("remove", "required_bytes", "summarize"),
    ),
    "derived": ("load_arrays", "save_arrays"),
    "entry": ("Entry",),
    "errors": ("CacheError", "Problem"),
    "hdf": ("new_file",),
    "publish": ("file_crc32", "publish_file", "publish_json", "read_json"),
    "reader": ("FeatureStore", "SplitFeatures"),
    "spec": ("FORMAT", "STORES", "Layout", "Spec", "difference"),
    "verification": ("repair", "verify"),
    "writer": ("ShardWriter", "write_block", "write_targets"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "FORMAT",
    "STORES",
    "CacheError",
    "Entry",
    "EntrySummary",
    "FeatureStore",
    "Layout",
    "Problem",
    "ShardWriter",
    "Spec",
    "SplitFeatures",
    "broken_entries",
    "check_space",
    "difference",
    "entry_bytes",
    "file_crc32",
    "last_entry",
    "list_entries",
    "load_arrays",
    "new_file",
    "prune",
    "publish_file",
    "publish_json",
    "read_json",
    "remove",
    "repair",
    "required_bytes",
    "save_arrays",
    "summarize",
    "verify",
    "write_block",
    "write_targets",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
