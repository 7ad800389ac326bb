"""The HDF5 writes and reads that everything here is made of, and how they fail."""

from __future__ import annotations

import io
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]
from numpy.typing import NDArray

TARGET_RANKS = {"y": 3, "lengths": 1, "index": 1, "groups": 1}
"""Number of dimensions of each dataset of ``targets.h5``, in the order in which they are written; groups may lack."""

# What HDF5 and h5py raise on a damaged file: CacheError, which says more, is a ValueError.
UNREADABLE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)


@contextmanager
def new_file(path: Path) -> Iterator[h5py.File]:
    """Make an HDF5 file in memory and write it to ``path``, which must not exist.

    HDF5 itself never meets a full disk: after a failed write it cannot close the file, and crashes the process later.
    """
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        yield file
    with path.open("xb") as disk:
        disk.write(image.getbuffer())


def read_array(group: h5py.Group, name: str) -> NDArray:
    """Read a whole dataset of numbers; raises KeyError if it is absent, or its values do not lie in this very file.

    A dataset may name other files (virtual and external storage), and one without storage reads as any number of zeros.
    """
    item = member(group, name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biufc":
        raise KeyError(f"{name} is not a dataset of numbers")
    properties = item.id.get_create_plist()
    contiguous = properties.get_layout() == h5py.h5d.CONTIGUOUS and not properties.get_external_count()
    if not contiguous or item.id.get_storage_size() != item.nbytes:
        raise KeyError(f"{name} does not lie in the file in one piece")
    return np.asarray(item[()])


def read_targets(path: Path) -> dict[str, NDArray]:
    """Read y, lengths, index and, where they are, groups of ``targets.h5``."""
    with h5py.File(path, "r", locking=False) as file:
        return {name: read_array(file, name) for name in target_ranks(file)}


def target_ranks(names: Container[str]) -> dict[str, int]:
    """Return the numbers of dimensions that datasets of targets must have, with groups where these are among them."""
    return {name: rank for name, rank in TARGET_RANKS.items() if name != "groups" or name in names}


def read_attribute(group: h5py.HLObject, name: str) -> str | int:
    """Read an attribute that is a whole number or a fixed-length ASCII string; raises KeyError if it is absent."""
    value = group.attrs[name]
    return value.decode("ascii") if isinstance(value, bytes) else int(value)  # pyright: ignore[reportArgumentType]


def member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return a group or dataset of this very file; raises KeyError if it is absent or reached through a link only."""
    path = ""
    for part in name.split("/"):
        path += f"/{part}" if path else part
        if group.id.links.get_info(path.encode()).type != h5l.TYPE_HARD:
            raise KeyError(f"{name} is not in the file itself")
    item = group[name]
    if not isinstance(item, h5py.Group | h5py.Dataset):
        raise KeyError(f"{name} is neither a group nor a dataset")
    return item


def names(file: h5py.File, name: str = "") -> list[str]:
    """Return the names in a group of this very file, or in the file itself."""
    group = member(file, name) if name else file
    if not isinstance(group, h5py.Group):
        raise KeyError(f"{name} is not a group")
    return [str(part) for part in group]
