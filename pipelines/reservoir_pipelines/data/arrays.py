"""The arrays that every reader of your own data returns, one row per sequence; and ``.npz`` files."""

import math
import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.size_limits import check_expansion, check_padding

COLUMN_FLAGS = ("label", "id", "time", "group", "text", "drop", "labels")
NAMES = ("x", "y", "lengths", "split", "groups", "ids")  # the arrays that are read; a file may hold others
Skipped = dict[int, tuple[str | int | None, str]]
"""The rows of a source that cannot be read, by their numbers: the id, if rows have ids, and the reason."""


class Arrays:
    """Named arrays with one row per sequence, and notes on how they were read."""

    piece_rows = 2**62  # rows that `sequences` reads at a time, in subclasses whose x is not in memory
    label = "y"  # name of the labels in messages
    letters = False  # whether x holds the code points of texts
    unused_options: tuple[str, ...] = ("rate", *COLUMN_FLAGS)  # options that do not apply to such data

    def __init__(self, arrays: Mapping[str, np.ndarray], x: tuple[tuple[int, ...], np.dtype] | None = None):
        self._arrays = dict(arrays)
        self.files: list[Path] = []  # files that are read in addition to the named one
        self.notes: list[str] = []
        self.skipped: Skipped = {}
        self.chosen: dict[str, Any] = {}  # choices of the rules, which are needed to read new data
        self.shapes = ({"x": x[0]} if x else {}) | {name: array.shape for name, array in arrays.items()}
        self.dtypes = ({"x": x[1]} if x else {}) | {name: array.dtype for name, array in arrays.items()}

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        if name in self._arrays:
            return self._arrays[name][lo:hi]
        return self.sequences(lo, min(hi, self.shapes["x"][0]))

    @cached_property
    def ids(self) -> np.ndarray:
        """What names each row, (rows,): texts or int64 of an array ``ids``, else the row's number in the file.

        The numbers are from 0, and rows that are skipped count, too.
        """
        rows = self.shapes["x"][0]
        if "ids" not in self.shapes:
            return np.setdiff1d(np.arange(rows + len(self.skipped)), [*self.skipped])
        ids = self.read("ids", 0, rows)
        whole = ids.dtype.kind in "iu" and np.can_cast(ids.dtype, np.int64)
        return ids.astype(np.int64 if whole else str)

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an ``x`` that is not in memory."""
        raise NotImplementedError


def padded(where: str, sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (tokens, ...) of several lengths as one array with zeros at the ends, and their lengths."""
    lengths = np.array([len(one) for one in sequences], np.int64)
    kind = np.result_type(*sequences)
    check_padding(where, lengths, kind.itemsize)
    x = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), kind)
    for row, one in enumerate(sequences):
        x[row, : len(one)] = one
    return x, lengths


def read_npz(path: Path) -> Arrays:
    """Return the arrays of a ``.npz`` archive; nothing is unpacked before its size is known."""
    arrays = {}
    with (
        as_input_error(f"{path}: not a readable .npz archive", "write it again"),
        zipfile.ZipFile(path) as archive,
    ):
        members = [member.filename for member in archive.infolist()]
        for name in NAMES:
            if members.count(f"{name}.npy") + members.count(name) > 1:
                raise ValueError(f"several arrays are called {name!r}")
            if f"{name}.npy" not in members:
                continue
            check_header(path, archive, f"{name}.npy")
            with archive.open(f"{name}.npy") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # the checksum is compared at the end
            arrays[name] = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    return Arrays(arrays)


def check_header(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an array of Python objects, and one whose header, shape and size do not match."""
    member, name = archive.getinfo(name), name.removesuffix(".npy")
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise InputError(
            f"{path}: array {name!r} has an unsupported compression", "write it with numpy.savez"
        )
    check_expansion(path, name, member.file_size, min(member.compress_size, path.stat().st_size))
    with archive.open(member) as file:
        npy = np.lib.format
        read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)  # NumPy refuses a long header, which it would parse slowly
        stored = member.file_size - file.tell()
    if dtype.hasobject:
        problem = f"{path}: array {name!r} holds Python objects; give numbers or strings of one shape, with"
        raise InputError(f"{problem} shorter rows padded by 0, and their lengths in an array 'lengths'")
    size = math.prod(shape) * dtype.itemsize
    if size != stored or not dtype.itemsize or min(shape, default=0) < 0:
        raise InputError(
            f"{path}: array {name!r} of shape {shape} needs {size} bytes and has {stored}",
            "the file is damaged: write it again",
        )
