"""The arrays of an HDF5 file, by stretches of rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.own.arrays import NAMES, Arrays, check_expansion

if TYPE_CHECKING:
    import h5py

PIECE_ROWS = 4096
PIECE_BYTES = 2**28  # rows that are read at a time have no more bytes than this


class Hdf5(Arrays):
    """The datasets at the root of an HDF5 file."""

    def __init__(self, path: Path):
        super().__init__({})
        self._path = path
        with _opened(path) as file:
            for name in (name for name in file if name in NAMES):
                self.shapes[name], self.dtypes[name] = _shape_and_type(path, file, name)
        row = math.prod(self.shapes["x"][1:]) * self.dtypes["x"].itemsize if "x" in self.shapes else 0
        self.piece_rows = min(PIECE_ROWS, max(1, PIECE_BYTES // max(1, row)))

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of a dataset."""
        import h5py

        with _opened(self._path) as file:
            dataset: Any = file[name]
            if h5py.check_string_dtype(dataset.dtype) is not None:
                return np.asarray(dataset.asstr()[lo:hi]).astype(str)
            return dataset[lo:hi]


@contextmanager
def _opened(path: Path) -> "Iterator[h5py.File]":
    import h5py

    unreadable = as_input_error(f"{path}: not a readable HDF5 file", "write it again")
    with unreadable, h5py.File(path, "r", locking=False) as file:
        yield file


def _shape_and_type(path: Path, file: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    import h5py

    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name!r} is not stored in this file alone; copy the values into it, without links")
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not text and dataset.dtype.kind not in "biuf":
        what = "ragged; pad it and give lengths" if dataset.dtype.hasobject else f"of type {dataset.dtype}"
        raise InputError(f"{path}: dataset {name!r} is {what}; give numbers or strings")
    check_expansion(path, name, dataset.nbytes, dataset.id.get_storage_size())
    return dataset.shape, np.dtype("U1" if text else dataset.dtype.str)
