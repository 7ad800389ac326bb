"""The arrays of an HDF5 file, by stretches of rows; the library works in a process of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.isolated import Isolated, limit
from reservoir.tasks.own.columns import NAMES, Columns, check_expansion

PIECE_ROWS = 4096

PIECE_BYTES = 2**28
"""Rows that are read at a time have no more bytes than this."""


class Hdf5(Columns):
    """The datasets at the root of an HDF5 file."""

    def __init__(self, path: Path):
        super().__init__({})
        self._file = Isolated(__name__, path)
        found = self._file.ask()
        self.shapes = {name: tuple(shape) for name, (shape, _) in found.items()}
        self.dtypes = {name: np.dtype(dtype) for name, (_, dtype) in found.items()}
        row = math.prod(self.shapes["x"][1:]) * self.dtypes["x"].itemsize if "x" in found else 1
        self.piece_rows = min(PIECE_ROWS, max(1, PIECE_BYTES // max(row, 1)))

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of a dataset."""
        answer = self._file.ask(name=name, lo=lo, hi=hi)
        return np.array(answer, dtype=str) if isinstance(answer, list) else answer


def answer(path: Path, request: dict[str, Any]) -> Any:
    """Return the shapes and types of all arrays, or rows of one: called in the process that may die of it."""
    import h5py

    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise InputError(f"{path}: no readable HDF5 file ({error}); write it again") from None
    with file:
        if "name" not in request:
            return {name: _checked(path, file, name) for name in file if name in NAMES}
        dataset, lo, hi = file[request["name"]], request["lo"], request["hi"]
        assert isinstance(dataset, h5py.Dataset)
        row = dataset.nbytes // max(len(dataset), 1)
        limit(row * (min(hi, len(dataset)) - lo))
        if h5py.check_string_dtype(dataset.dtype) is not None:
            return np.asarray(dataset.asstr()[lo:hi]).tolist()
        return dataset[lo:hi]


def _checked(path: Path, file: Any, name: str) -> tuple[tuple[int, ...], str]:
    """Return the shape and the type of a dataset that lies wholly in this file and is as large as it says."""
    import h5py

    dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name!r} is no dataset of this file alone; copy the values into it, without links")
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not text and dataset.dtype.kind not in "biuf":
        what = "ragged; pad it and give lengths" if dataset.dtype.hasobject else f"of type {dataset.dtype}"
        raise InputError(f"{path}: dataset {name!r} is {what}; give numbers or strings")
    check_expansion(path, name, dataset.nbytes, dataset.id.get_storage_size())
    return dataset.shape, "U1" if text else dataset.dtype.str
