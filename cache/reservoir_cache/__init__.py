"""Where features live: a cache of HDF5 shards that are finished or absent. FORMAT.md is the format.

Nothing here imports h5py until it is used, so that a command line may import this package and stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_cache.catalog import (
        broken_entries,
        check_space,
        last_entry,
        list_entries,
        near_matches,
        remove,
        required_bytes,
    )
    from reservoir_cache.entry import Entry
    from reservoir_cache.errors import CacheError, Problem
    from reservoir_cache.reader import FeatureStore, SplitFeatures
    from reservoir_cache.spec import FORMAT, Layout, Spec, difference
    from reservoir_cache.writer import ShardWriter

__all__ = [
    "FORMAT",
    "CacheError",
    "Entry",
    "FeatureStore",
    "Layout",
    "Problem",
    "ShardWriter",
    "Spec",
    "SplitFeatures",
    "broken_entries",
    "check_space",
    "difference",
    "last_entry",
    "list_entries",
    "near_matches",
    "remove",
    "required_bytes",
]

_HOME = {
    **dict.fromkeys(("CacheError", "Problem"), "errors"),
    **dict.fromkeys(("FORMAT", "Layout", "Spec", "difference"), "spec"),
    "Entry": "entry",
    "ShardWriter": "writer",
    **dict.fromkeys(("FeatureStore", "SplitFeatures"), "reader"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'catalog')}"), name)
