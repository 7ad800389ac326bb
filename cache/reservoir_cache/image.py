"""An HDF5 file in memory that refers to large arrays and does not copy them."""

import io
import zlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0xEDB88320  # the polynomial of CRC-32, with reversed bits


class Image(io.BytesIO):
    """A file for h5py to write, which refers to large arrays instead of copying them."""

    def __init__(self) -> None:
        super().__init__()
        self.next: tuple[NDArray, int] | None = None  # the array that is written next, and its CRC-32
        self._arrays = list[tuple[int, NDArray, int]]()  # position in this buffer, array, and CRC-32

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position in the whole file."""
        return super().seek(self._place(offset), whence)

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the whole file to a size."""
        return super().truncate(self._place(size or 0))

    def write(self, data: Any) -> int:
        """Write bytes, unless they are those of the array in ``next``."""
        written = np.frombuffer(data, np.uint8)
        if self.next and self.next[0].nbytes == len(written) and np.may_share_memory(self.next[0], written):
            self._arrays.append((self.tell(), *self.next))
            return len(written)
        return super().write(data)

    def pieces(self) -> tuple[list[memoryview], int]:
        """Return the content of the whole file in pieces, and its CRC-32."""
        content, found, crc, start = self.getbuffer(), list[memoryview](), 0, 0
        for place, array, of_array in self._arrays:
            found += [content[start:place], array.data]
            crc = combined_crc32(zlib.crc32(content[start:place], crc), of_array, array.nbytes)
            start = place
        return [*found, content[start:]], zlib.crc32(content[start:], crc)

    def _place(self, offset: int) -> int:
        for place, array, _ in self._arrays:
            offset -= array.nbytes if offset > place else 0
        return offset


def combined_crc32(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two concatenated pieces from their CRC-32s; ``size`` is the second's size in bytes."""
    return _product(first, _shift(size)) ^ second


@cache
def _shift(size: int) -> int:
    """Return x to the power of 8 * ``size`` modulo the polynomial; bits are reversed everywhere."""
    found, power = 1 << 31, 1 << 23
    while size:
        found = _product(found, power) if size & 1 else found
        power, size = _product(power, power), size >> 1
    return found


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials modulo the polynomial of CRC-32."""
    found = 0
    for bit in range(31, -1, -1):
        found ^= b if a >> bit & 1 else 0
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return found
