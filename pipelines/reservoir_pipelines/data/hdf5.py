"""The arrays of an HDF5 file, by ranges of rows.

A damaged file can make the HDF5 library run forever (6 of 3,000 mutated files did), and a file can
name a filter that the library loads as code. Therefore a child process with limits on memory and
processor time, which loads no filters, reads the whole file before this process opens it.
"""

import math
import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.size_limits import check_expansion
from reservoir_pipelines.data.arrays import NAMES, Arrays

PACKAGES = ("reservoir", "reservoir_cache", "reservoir_pipelines")
PIECE_ROWS = 4096
PIECE_BYTES = 2**28  # largest size of the rows that are read at a time
MEMORY = 2**31  # bytes that the checking process may allocate after its start
# processor time of the checking process, in addition to a second per `BYTES_PER_SECOND` of the file
SECONDS = 20
BYTES_PER_SECOND = 2 * 10**7


class Hdf5(Arrays):
    """The datasets at the root of an HDF5 file."""

    def __init__(self, path: Path, *, checked: bool = False):
        super().__init__({})
        self._path = path
        if not checked:
            _check_apart(path)
        from reservoir_cache import open_hdf5

        with open_hdf5(path) as file:
            for name in (name for name in file if name in NAMES):
                self.shapes[name], self.dtypes[name] = _shape_and_type(path, file, name)
        row = math.prod(self.shapes["x"][1:]) * self.dtypes["x"].itemsize if "x" in self.shapes else 0
        self.piece_rows = min(PIECE_ROWS, max(1, PIECE_BYTES // max(1, row)))

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of a dataset."""
        import h5py
        from reservoir_cache import open_hdf5

        with open_hdf5(self._path) as file:
            dataset: Any = file[name]
            if h5py.check_string_dtype(dataset.dtype) is not None:
                return np.asarray(dataset.asstr()[lo:hi]).astype(str)
            return dataset[lo:hi]


def dataset_of(file: Any, name: str) -> Any:
    """Return a dataset stored in the file itself, or None; links may lead to other files."""
    import h5py

    found = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    return None if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external else found


def _shape_and_type(path: Path, file: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    import h5py

    if (dataset := dataset_of(file, name)) is None or dataset.shape is None:
        raise InputError(
            f"{path}: {name!r} is not stored in this file alone", "copy the values into it, without links"
        )
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not text and dataset.dtype.kind not in "biuf":
        what = (
            "ragged; pad it and give lengths"
            if dataset.dtype.hasobject
            else f"{dataset.dtype}; use numbers or text"
        )
        raise InputError(f"{path}: dataset {name!r} is {what}")
    check_expansion(path, name, dataset.nbytes, dataset.id.get_storage_size())
    return dataset.shape, np.dtype("U1" if text else dataset.dtype.str)


# ---- the checking process


def _check_apart(path: Path) -> None:
    """Read the file in a child process; refuse the file if the process reports an error or dies."""
    # The process imports the same packages, also where they are folders that are not installed.
    folders = [str(Path(import_module(name).__file__ or "").resolve().parents[1]) for name in PACKAGES]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    code = f"import sys; from {__name__} import check; check(sys.argv[1])"
    command = [sys.executable, "-P", "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    if done.returncode == 1 and done.stdout:
        raise InputError(done.stdout.strip())
    if done.returncode:
        start = f"{path}: not a readable HDF5 file (reading it took too much memory or time, or crashed"
        raise InputError(f"{start}, code {done.returncode})", "write it again")


def check(name: str) -> None:
    """Read all datasets of a file once under limits; if one cannot be read, print why and exit with code 1."""
    path = Path(name)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: SECONDS + path.stat().st_size // BYTES_PER_SECOND,
    }
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limits[resource.RLIMIT_DATA] = pages * resource.getpagesize() + MEMORY
    for kind, value in limits.items():
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))
    try:
        read_once(path)
    except InputError as error:
        sys.stdout.write(str(error))
        sys.exit(1)


def read_once(path: Path) -> None:
    """Read all datasets of a file; raise an `InputError` if one cannot be read."""
    with as_input_error(f"{path}: not a readable HDF5 file", "write it again"):
        found = Hdf5(path, checked=True)
        for name, shape in found.shapes.items():
            begins = range(0, shape[0] if shape else 0, found.piece_rows)
            kinds = [found.read(name, lo, lo + found.piece_rows).dtype for lo in begins]
            longest = max((kind.itemsize // 4 for kind in kinds if kind.kind == "U"), default=0)
            # All texts are padded to the longest, and a few stored letters may be the text of many rows.
            check_expansion(path, name, math.prod(shape) * longest, path.stat().st_size)
