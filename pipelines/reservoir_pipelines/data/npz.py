"""Archives of NumPy arrays, ``.npz``."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.size_limits import check_expansion
from reservoir.tasks.task import Task
from reservoir_pipelines.data.array_axes import read_axes
from reservoir_pipelines.data.rows import NAMES, Rows, rows_of_arrays

SUFFIXES = (".npz",)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of an archive with the arrays of `NAMES`."""
    rows = rows_of_arrays(origin, read_arrays(Path(origin), NAMES))
    return read_axes(origin, rows, options, task)


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, by default all; nothing is unpacked before its size is known."""
    arrays = {}
    with (
        as_input_error(f"{path}: not a readable .npz archive", "write it again"),
        zipfile.ZipFile(path) as archive,
    ):
        # NumPy calls both the members "x" and "x.npy" x.
        members = [(member, member.removesuffix(".npy")) for member in archive.namelist()]
        chosen = [(member, name) for member, name in members if names is None or name in names]
        for member, _ in chosen:
            check_header(path, archive, member)
        for member, name in chosen:
            if name in arrays:
                raise ValueError(f"several arrays are called {name!r}")
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # the checksum is compared at the end
            arrays[name] = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    return arrays


def check_header(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Refuse an array of Python objects, and one whose header, shape and size do not match."""
    entry, name = archive.getinfo(member), member.removesuffix(".npy")
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise InputError(
            f"{path}: array {name!r} has an unsupported compression", "write it with numpy.savez"
        )
    # The archive itself may claim that more bytes are stored than the file has.
    check_expansion(path, name, entry.file_size, min(entry.compress_size, path.stat().st_size))
    with archive.open(entry) as file:
        npy = np.lib.format
        read_header = (
            npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)  # NumPy refuses a long header, which it would parse slowly
        stored = entry.file_size - file.tell()
    if dtype.hasobject:
        raise InputError(
            f"{path}: array {name!r} holds Python objects",
            "give numbers or strings of one shape, with shorter rows padded by 0, and their lengths in an array "
            "'lengths'",
        )
    size = math.prod(shape) * dtype.itemsize
    if size != stored or not dtype.itemsize or min(shape, default=0) < 0:
        raise InputError(
            f"{path}: array {name!r} of shape {shape} needs {size} bytes and has {stored}",
            "the file is damaged: write it again",
        )
