"""A cache of features in HDF5 shards that are complete or absent; FORMAT.md describes the format."""

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
from reservoir_cache.entry import Entry, check_column_name
from reservoir_cache.errors import CacheError, Problem
from reservoir_cache.locks import is_file_locked, locked, open_lock, untracked
from reservoir_cache.paths import file_crc32, open_regular, path_below, read_regular, refuse_links
from reservoir_cache.publish import (
    make_folder,
    new_folder,
    publish_json,
    read_json,
    remove_leftovers,
    replace_file,
    sync,
    temporary_folder,
)
from reservoir_cache.remote import is_url, without_credentials
from reservoir_cache.spec import (
    FORMAT,
    STORES,
    BackboneSpec,
    DataSpec,
    InitSpec,
    InputSpec,
    Layout,
    Spec,
    rows_per_block,
)

if TYPE_CHECKING:
    from reservoir_cache.copying import Copied, copy_from, copy_to
    from reservoir_cache.derived import load_arrays, load_input, move_input, save_arrays, save_input
    from reservoir_cache.reader import FeatureRows, FeatureStore, SplitFeatures
    from reservoir_cache.shard import STORED_DTYPE, Encoded, encode, new_hdf5, open_hdf5
    from reservoir_cache.verification import repair, verify
    from reservoir_cache.writer import Arrays, ShardWriter, write_targets

__all__ = [
    "FORMAT",
    "STORED_DTYPE",
    "STORES",
    "Arrays",
    "BackboneSpec",
    "CacheError",
    "Copied",
    "DataSpec",
    "Encoded",
    "Entry",
    "EntrySummary",
    "FeatureRows",
    "FeatureStore",
    "InitSpec",
    "InputSpec",
    "Layout",
    "Problem",
    "ShardWriter",
    "Spec",
    "SplitFeatures",
    "broken_entries",
    "check_column_name",
    "check_space",
    "copy_from",
    "copy_to",
    "encode",
    "file_crc32",
    "folder_bytes",
    "is_file_locked",
    "is_url",
    "last_entry",
    "list_entries",
    "load_arrays",
    "load_input",
    "locked",
    "make_folder",
    "move_input",
    "new_folder",
    "new_hdf5",
    "open_hdf5",
    "open_lock",
    "open_regular",
    "path_below",
    "prunable",
    "publish_json",
    "read_json",
    "read_regular",
    "refuse_links",
    "remove",
    "remove_leftovers",
    "repair",
    "replace_file",
    "required_bytes",
    "rows_per_block",
    "save_arrays",
    "save_input",
    "summarize",
    "sync",
    "temporary_folder",
    "untracked",
    "verify",
    "without_credentials",
    "write_targets",
]

# Modules that are imported when a name in them is first used, because h5py would slow down the
# command line's start.
_LATER = ("derived", "reader", "shard", "verification", "writer", "copying")


def __getattr__(name: str) -> Any:
    """Return what a public name stands for in a module of `_LATER`; Python asks for names that are not found above."""
    if name in __all__:
        for module in _LATER:
            if value := getattr(import_module(f"{__name__}.{module}"), name, None):
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
