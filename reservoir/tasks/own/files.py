"""Arrays by name, whatever file or function they come from; ``.npz`` and ``.h5`` are read here."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.tables import read_csv, read_function, read_parquet

BOMB_RATIO = 1000
"""Deflate cannot shrink by more than 1,032; an array said to be larger than its bytes by this is not data."""

BOMB_BYTES = 2**30
"""Below this an array may shrink as it likes: rows of zeros are harmless."""


class Columns(Protocol):
    """Named arrays with one row per sequence."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    piece_rows: int

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        ...


def open_columns(origin: str) -> Columns:
    """Return the arrays of a file by its suffix, or of ``module:function``.

    Raises
    ------
    InputError
        If there is no such file, no such format, or the file is damaged.
    """
    readers: dict[str, Callable[[Path], Columns]] = {
        ".npz": Npz,
        ".h5": Hdf5,
        ".hdf5": Hdf5,
        ".csv": read_csv,
        ".parquet": read_parquet,
    }
    path = Path(origin)
    if ":" in path.name and not path.exists():
        return read_function(origin)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of your data")
    if path.suffix not in readers:
        raise InputError(f"{path}: files of type {path.suffix!r} are not read; give one of {', '.join(readers)}")
    return readers[path.suffix](path)


def check_size(path: Path, name: str, size: int, stored: int) -> None:
    """Refuse an array that would unpack to far more than what is stored of it."""
    if size > BOMB_BYTES and size > BOMB_RATIO * max(stored, 1):
        raise InputError(f"{path}: array {name!r} claims {size} bytes and {stored} are stored; the file is damaged")


class Npz:
    """The arrays of a ``.npz`` archive. It unpacks an array as a whole, so all rows are one piece."""

    def __init__(self, path: Path):
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if member.filename.endswith(".npy"):
                        self._header(archive, member)
        except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: no readable .npz archive ({error}); write it again with numpy.savez") from None
        self.piece_rows = 2**62

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return archive[name][lo:hi]
        except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
            raise InputError(f"{self.path}: array {name!r} cannot be read ({error}); write the file again") from None

    def _header(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
        if dtype.hasobject:
            raise InputError(f"{self.path}: array {name!r} holds Python objects; give numbers or strings of one shape")
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        check_size(self.path, name, max(size, member.file_size), member.compress_size)
        if size != member.file_size - start:
            raise InputError(
                f"{self.path}: array {name!r} of shape {shape} needs {size} bytes and has {member.file_size - start}; "
                "the file is damaged: write it again"
            )
        self.shapes[name], self.dtypes[name] = shape, dtype


class Hdf5:
    """The datasets at the root of an HDF5 file, read by stretches of rows."""

    def __init__(self, path: Path):
        import h5py

        self.path, self.piece_rows = path, 4096
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype] = {}
        try:
            with h5py.File(path, "r", locking=False) as file:
                for name, dataset in file.items():
                    if isinstance(dataset, h5py.Dataset):
                        text = h5py.check_string_dtype(dataset.dtype) is not None
                        if dataset.dtype.hasobject and not text:
                            raise InputError(f"{path}: dataset {name!r} is ragged; pad it and give lengths")
                        check_size(path, name, dataset.nbytes, dataset.id.get_storage_size())
                        self.shapes[name], self.dtypes[name] = dataset.shape, np.dtype("S1") if text else dataset.dtype
        except OSError as error:
            raise InputError(f"{path}: no readable HDF5 file ({error}); write it again") from None

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of a dataset."""
        import h5py

        try:
            with h5py.File(self.path, "r", locking=False) as file:
                dataset = file[name]
                assert isinstance(dataset, h5py.Dataset)
                text = h5py.check_string_dtype(dataset.dtype) is not None
                return np.asarray(dataset.asstr()[lo:hi], dtype=str) if text else dataset[lo:hi]
        except OSError as error:
            raise InputError(f"{self.path}: dataset {name!r} cannot be read ({error}); write the file again") from None
