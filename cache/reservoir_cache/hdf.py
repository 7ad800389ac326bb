"""The HDF5 writes and reads that everything here is made of, and how they fail."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

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
    """Read a whole dataset.

    Raises
    ------
    KeyError
        If there is no dataset of that name.
    """
    item = group[name]
    if not isinstance(item, h5py.Dataset):
        raise KeyError(f"{name} is not a dataset")
    return np.asarray(item[()])


def read_attribute(group: h5py.HLObject, name: str) -> str | int:
    """Read an attribute that is a whole number or a fixed-length ASCII string; raises KeyError if it is absent."""
    value = group.attrs[name]
    return value.decode("ascii") if isinstance(value, bytes) else int(value)  # pyright: ignore[reportArgumentType]
