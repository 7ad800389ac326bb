"""Reading and writing HDF5: only numbers that lie in the file itself, and no write that HDF5 itself could fail."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]
from numpy.typing import NDArray

TARGET_RANKS = {"y": 3, "lengths": 1, "index": 1, "groups": 1}
"""Dimensions of each dataset of ``targets.h5``, in the order in which they are written; groups are optional."""

# What HDF5 and h5py raise on a damaged file: CacheError, which says more, is a ValueError.
UNREADABLE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Extent:
    """The bytes of a file that hold an array: their position, and its shape and data type."""

    position: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, group: h5py.Group, name: str) -> Extent:
        """Find a dataset of numbers; raises KeyError if it is absent, or its values do not lie in this very file.

        A dataset may name other files (virtual and external storage), and one without storage reads as zeros.
        """
        item = member(group, name)
        if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biufc":
            raise KeyError(f"{name} is not a dataset of numbers")
        properties = item.id.get_create_plist()
        contiguous = properties.get_layout() == h5py.h5d.CONTIGUOUS and not properties.get_external_count()
        position = item.id.get_offset()
        if not contiguous or item.id.get_storage_size() != item.nbytes or (position is None and item.nbytes):
            raise KeyError(f"{name} does not lie in the file in one piece")
        return cls(position or 0, item.shape, item.dtype)

    @property
    def length(self) -> int:
        """Number of rows; 1 if there is but one, without a dimension of its own."""
        return self.shape[0] if len(self.shape) > 1 else 1

    def read_rows(self, file: BinaryIO, rows: Iterable[int]) -> NDArray:
        """Read some rows of the array from the open file; raises OSError if the file ends before one does."""
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        parts = [os.pread(file.fileno(), size, self.position + int(row) * size) for row in rows]
        if any(len(part) < size for part in parts):
            raise OSError("the file ends too early")
        return np.frombuffer(b"".join(parts), self.dtype).reshape(-1, *self.shape[1:])

    def read(self, file: BinaryIO) -> NDArray:
        """Read the array from the open file; raises OSError if the file ends before it does."""
        count = math.prod(self.shape)
        file.seek(self.position)
        found = np.fromfile(file, self.dtype, count)
        if len(found) < count:
            raise OSError("the file ends too early")
        return found.reshape(self.shape)


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
    """Read a whole dataset of numbers; raises KeyError if it is absent, or its values do not lie in this very file."""
    Extent.of(group, name)
    return np.asarray(group[name][()])  # pyright: ignore[reportIndexIssue]


def read_targets(path: Path) -> dict[str, NDArray]:
    """Read y, lengths, index and, if they are there, groups of ``targets.h5``."""
    with h5py.File(path, "r", locking=False) as file:
        return {name: read_array(file, name) for name in target_ranks(file)}


def target_ranks(names: Container[str]) -> dict[str, int]:
    """Return the numbers of dimensions that datasets of targets must have, with groups if these are among them."""
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
