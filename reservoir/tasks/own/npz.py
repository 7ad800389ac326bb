"""The arrays of a ``.npz`` archive; nothing is unpacked before its size is known."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, first_line
from reservoir.tasks.own.arrays import NAMES, Arrays, check_expansion

MOST_HEADER = 10_000
"""Bytes of an array's header; a plain array needs about a hundred, and NumPy's parser is slow on long ones."""

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Npz(Arrays):
    """The arrays of an archive. It unpacks an array as a whole, so all rows are one piece."""

    def __init__(self, path: Path):
        super().__init__({})
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                members = [member.filename for member in archive.infolist()]
                for name in NAMES:
                    given = [member for member in members if member in {name, f"{name}.npy"}]
                    if len(given) > 1:
                        raise InputError(f"{path}: {len(given)} arrays are called {name!r}; write the file again")
                    if given == [f"{name}.npy"]:
                        self.shapes[name], self.dtypes[name] = self._header(archive, name)
        except InputError:
            raise
        # A damaged archive makes zipfile and NumPy raise nearly anything.
        except Exception as error:
            raise InputError(
                f"{path}: not a readable .npz archive ({first_line(error)}); write it again with numpy.savez"
            ) from None

    def read(self, name: str, lo: int, hi: int) -> np.ndarray:
        """Return the rows ``lo`` to ``hi`` of an array."""
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(f"{name}.npy") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # the checksum is compared at the end
        except Exception as error:
            raise InputError(
                f"{self._path}: array {name!r} cannot be read ({first_line(error)}); write the file again"
            ) from None
        return self._decoded(name, array[lo:hi]) if array.dtype.kind == "S" else array[lo:hi]

    def _decoded(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return an array of bytes as text."""
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._path}: array {name!r} holds the bytes {error.object[:40]!r}, which are not UTF-8; "
                "save it as text (dtype str)"
            ) from None

    def _header(self, archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type not in METHODS:
            raise InputError(f"{self._path}: array {name!r} is packed otherwise than numpy.savez does; write it again")
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            width = 2 if version == (1, 0) else 4
            length = int.from_bytes(file.read(width), "little")
            if length > MOST_HEADER:
                raise InputError(
                    f"{self._path}: the header of array {name!r} has {length:,} bytes, more than {MOST_HEADER:,}; "
                    "the file is damaged: write it again"
                )
            file.seek(-width, 1)
            shape, _, dtype = read(file)
            start = file.tell()
        if dtype.hasobject:
            raise InputError(
                f"{self._path}: array {name!r} holds Python objects; give numbers or strings of one shape, "
                "rows of unequal length filled up with 0 and an array lengths beside"
            )
        size = math.prod(shape) * dtype.itemsize
        stored = min(member.compress_size, self._path.stat().st_size)
        check_expansion(self._path, name, max(size, member.file_size), stored)
        if size != member.file_size - start or not dtype.itemsize or min(shape, default=0) < 0:
            raise InputError(
                f"{self._path}: array {name!r} of shape {shape} needs {size} bytes and has {member.file_size - start}; "
                "the file is damaged: write it again"
            )
        return shape, dtype
