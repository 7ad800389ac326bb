"""Where features live: a cache of HDF5 shards that are finished or absent. FORMAT.md is the format.

Nothing here imports h5py or numpy until it is used, so that a command line may import this package and stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError, Problem
from reservoir_cache.fault_points import fault_point
from reservoir_cache.locks import untracked
from reservoir_cache.publish import (
    file_crc32,
    make_folder,
    open_lock,
    path_below,
    publish_json,
    read_json,
    refuse_links,
    sync,
)
from reservoir_cache.spec import FORMAT, STORES, Layout, Spec, rows_per_block

if TYPE_CHECKING:
    from reservoir_cache.derived import load_arrays, save_arrays
    from reservoir_cache.hdf import new_file
    from reservoir_cache.reader import FeatureStore, SplitFeatures
    from reservoir_cache.verification import repair, verify
    from reservoir_cache.writer import ShardWriter, write_block, write_targets

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
    "fault_point",
    "file_crc32",
    "folder_bytes",
    "last_entry",
    "list_entries",
    "load_arrays",
    "make_folder",
    "new_file",
    "open_lock",
    "path_below",
    "prunable",
    "publish_json",
    "read_json",
    "refuse_links",
    "remove",
    "repair",
    "required_bytes",
    "rows_per_block",
    "save_arrays",
    "summarize",
    "sync",
    "untracked",
    "verify",
    "write_block",
    "write_targets",
]

_LATER = {
    **dict.fromkeys(("load_arrays", "save_arrays"), "derived"),
    "new_file": "hdf",
    **dict.fromkeys(("FeatureStore", "SplitFeatures"), "reader"),
    **dict.fromkeys(("repair", "verify"), "verification"),
    **dict.fromkeys(("ShardWriter", "write_block", "write_targets"), "writer"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
