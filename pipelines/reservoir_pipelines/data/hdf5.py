"""The arrays of an HDF5 file, of which ranges of rows are read.

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
from reservoir.file_checks import check_expansion
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.array_axes import read_axes
from reservoir_pipelines.data.rows import ARRAY_NAMES, Rows, rows_of_arrays

SUFFIXES = (".h5", ".hdf5")
PACKAGES = ("reservoir", "reservoir_cache", "reservoir_pipelines")  # what the checking process imports
PIECE_ROWS = 4096  # most rows that are read at a time
PIECE_BYTES = 2**28  # largest size of the rows that are read at a time
MEMORY = 2**31  # bytes that the checking process may allocate after its start
# Limit of the processor time of the checking process: these seconds, and one more for each `BYTES_PER_SECOND` of the
# file.
SECONDS = 20
BYTES_PER_SECOND = 2 * 10**7


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of a file with the datasets of `ARRAY_NAMES` at its root; its ``x`` may be larger than memory."""
    path = Path(origin)
    _check_in_child(path)  # before this process opens the file
    arrays = datasets(path)
    rows = rows_of_arrays(origin, arrays, _piece_rows(arrays))
    return read_axes(origin, rows, options, task)


class Dataset:
    """A dataset at the root of a file, which is opened for each range of rows that is read.

    The ``dtype`` of texts is ``U1``, whatever their length, which is only known when they are read.
    """

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype = shape, dtype
        self._path, self._name = path, name

    def __getitem__(self, rows: slice) -> np.ndarray:
        import h5py
        from reservoir_cache import open_hdf5

        with open_hdf5(self._path) as file:
            dataset: Any = file[self._name]
            if h5py.check_string_dtype(dataset.dtype) is not None:
                return np.asarray(dataset.asstr()[rows]).astype(str)
            return dataset[rows]


def datasets(path: Path) -> dict[str, Dataset]:
    """Return the datasets of `ARRAY_NAMES` at the root of a file, without their values."""
    from reservoir_cache import open_hdf5

    with open_hdf5(path) as file:
        return {name: _dataset(path, file, name) for name in file if name in ARRAY_NAMES}


def _dataset(path: Path, file: Any, name: str) -> Dataset:
    """Return a dataset of an open file, without its values; refuse one that is stored elsewhere, or of other types."""
    import h5py

    dataset = dataset_of(file, name)
    if dataset is None or dataset.shape is None:
        raise InputError(
            f"{path}: {name!r} is not stored in this file alone", "copy the values into it, without links"
        )
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if not is_text and dataset.dtype.hasobject:
        raise InputError(f"{path}: dataset {name!r} is ragged", "pad it and give lengths")
    if not is_text and dataset.dtype.kind not in "biuf":
        raise InputError(f"{path}: dataset {name!r} is {dataset.dtype}", "use numbers or text")
    check_expansion(path, name, dataset.nbytes, dataset.id.get_storage_size())
    return Dataset(path, name, dataset.shape, np.dtype("U1" if is_text else dataset.dtype.str))


def dataset_of(file: Any, name: str) -> Any:
    """Return the dataset of a name if its values are stored in the open file itself, else None."""
    import h5py

    # A hard link is the dataset itself; soft and external links are names, perhaps in other files. The values of a
    # virtual or external dataset are in other files.
    is_linked_hard = isinstance(file.get(name, getlink=True), h5py.HardLink)
    item = file[name] if is_linked_hard else None
    is_stored_here = isinstance(item, h5py.Dataset) and not item.is_virtual and not item.external
    return item if is_stored_here else None


def _piece_rows(arrays: dict[str, Dataset]) -> int:
    """Return how many rows of ``x``, if there is one, are read at a time."""
    row_bytes = math.prod(arrays["x"].shape[1:]) * arrays["x"].dtype.itemsize if "x" in arrays else 0
    return min(PIECE_ROWS, max(1, PIECE_BYTES // max(1, row_bytes)))


# ---- the checking process


def _check_in_child(path: Path) -> None:
    """Read the file in a child process; refuse the file if the process reports an error or dies."""
    # The process imports the same packages, also where they are folders that are not installed: their parent folders
    # come first on its path.
    folders = [str(Path(import_module(name).__file__ or "").resolve().parents[1]) for name in PACKAGES]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    code = f"import sys; from {__name__} import check; check(sys.argv[1])"
    command = [sys.executable, "-P", "-c", code, str(path)]  # -P: import nothing from the working directory
    result = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    # `check` writes its message to stdout, and Python those of other errors to stderr.
    reports_error = result.returncode == 1 and result.stdout
    if reports_error:
        raise InputError(result.stdout.strip())
    if result.returncode:
        raise InputError(
            f"{path}: not a readable HDF5 file (reading it took too much memory or time, or crashed, "
            f"code {result.returncode})",
            "write it again",
        )


def check(name: str) -> None:
    """Read all datasets of the file ``name`` under limits; if one cannot be read, print why and exit with code 1.

    The limits are those of the whole process, so it must be one that does nothing else.
    """
    path = Path(name)
    # No core dump, and limited processor time, in seconds.
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: SECONDS + path.stat().st_size // BYTES_PER_SECOND,
    }
    if sys.platform == "linux":
        # The limit counts what this process has allocated already: the sixth number, in pages. Other systems do not
        # have this file.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limits[resource.RLIMIT_DATA] = pages * resource.getpagesize() + MEMORY
    # A process may lower its limits, but not raise them above the hard limit.
    for kind, value in limits.items():
        _, hard_limit = resource.getrlimit(kind)
        limit = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
        resource.setrlimit(kind, (limit, hard_limit))
    try:
        read_once(path)
    except InputError as error:
        sys.stdout.write(str(error))
        sys.exit(1)


def read_once(path: Path) -> None:
    """Read all datasets of a file in pieces; raise an `InputError` if one cannot be read, or is far too large."""
    with as_input_error(f"{path}: not a readable HDF5 file", "write it again"):
        arrays = datasets(path)
        step = _piece_rows(arrays)
        for name, dataset in arrays.items():
            row_count = dataset.shape[0] if dataset.shape else 0  # a single number has no rows
            starts = range(0, row_count, step)
            dtypes = [dataset[low : low + step].dtype for low in starts]
            # The letters of the longest text, each of which NumPy stores in four bytes; 0 for numbers.
            longest = max((dtype.itemsize // 4 for dtype in dtypes if dtype.kind == "U"), default=0)
            # All texts are padded to the longest, and a few stored letters may be the text of many rows.
            check_expansion(path, name, math.prod(dataset.shape) * longest, path.stat().st_size)
