"""Archives of NumPy arrays, ``.npz``."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.file_checks import check_expansion
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.array_axes import read_axes
from reservoir_pipelines.data.rows import ARRAY_NAMES, Rows, rows_of_arrays

SUFFIXES = (".npz",)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of an archive with the arrays of `ARRAY_NAMES`."""
    rows = rows_of_arrays(origin, read_arrays(Path(origin), ARRAY_NAMES))
    return read_axes(origin, rows, options, task)


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an archive with some ``names``, by default all; refuse a damaged or a malicious one.

    Nothing is unpacked before its size is known. Byte strings become texts.
    """
    arrays = {}
    with (
        as_input_error(f"{path}: not a readable .npz archive", "write it again"),
        zipfile.ZipFile(path) as archive,
    ):
        # NumPy calls both the members "x" and "x.npy" x.
        members = [(member, member.removesuffix(".npy")) for member in archive.namelist()]
        read_members = [(member, name) for member, name in members if names is None or name in names]
        for member, _ in read_members:
            check_header(path, archive, member)
        for member, name in read_members:
            if name in arrays:
                raise ValueError(f"several arrays are called {name!r}")
            with archive.open(member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # reading on to the end makes ``zipfile`` compare the checksum
            arrays[name] = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    return arrays


def check_header(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Refuse a ``member`` of an archive that is no array of plain values, or whose size is not that of its shape."""
    name = member.removesuffix(".npy")
    entry = archive.getinfo(member)
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise InputError(
            f"{path}: array {name!r} has an unsupported compression", "write it with numpy.savez"
        )
    # The archive itself may claim that more bytes are stored than the file has.
    check_expansion(path, name, entry.file_size, min(entry.compress_size, path.stat().st_size))
    with archive.open(entry) as file:
        npy = np.lib.format
        version = npy.read_magic(file)  # consumes the first bytes
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)  # NumPy refuses a long header, which it would parse slowly
        stored_size = entry.file_size - file.tell()  # bytes after the header
    if dtype.hasobject:
        raise InputError(
            f"{path}: array {name!r} holds Python objects",
            "give numbers or strings of one shape, with shorter rows padded by 0, and their lengths in an array "
            "'lengths'",
        )
    size = math.prod(shape) * dtype.itemsize
    has_possible_shape = dtype.itemsize > 0 and min(shape, default=0) >= 0
    if size != stored_size or not has_possible_shape:
        raise InputError(
            f"{path}: array {name!r} of shape {shape} needs {size} bytes and has {stored_size}",
            "the file is damaged: write it again",
        )
