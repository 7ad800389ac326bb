"""CRC-32 of bytes, and of two joined pieces from the CRC-32 of each."""

import zlib
from collections.abc import Sequence
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from operator import xor

# isal computes the same values, about six times as fast (28 against 4 GB/s on one core of a server).
crc32_of = import_module("isal.isal_zlib").crc32 if find_spec("isal") else zlib.crc32


def joined_crc32(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two joined pieces from those of each; the second piece has ``size`` bytes."""
    # As in zlib's crc32_combine: the first one, moved by the linear map of ``size`` zero bytes, plus (xor) the second.
    return _sum_of_set_bits(first, _after_zeros(size)) ^ second


@cache
def _after_zeros(size: int) -> tuple[int, ...]:
    """Return the linear part of the map from a CRC-32 to the one after ``size`` further zero bytes.

    It is represented by what each of the 32 bits becomes; a CRC-32 becomes the sum of what its set bits become.
    """
    if size == 0:
        return tuple(1 << bit for bit in range(32))
    if size == 1:
        # Minus (xor) what a CRC-32 without set bits becomes, which is the constant part of the map.
        return tuple(crc32_of(b"\0", 1 << bit) ^ crc32_of(b"\0") for bit in range(32))
    # Apply the map of half as many bytes twice, and for an odd number that of a single byte once more: this needs
    # log2(``size``) steps.
    half = _after_zeros(size // 2)
    even = tuple(_sum_of_set_bits(image, half) for image in half)
    return tuple(_sum_of_set_bits(image, _after_zeros(1)) for image in even) if size % 2 else even


def _sum_of_set_bits(crc: int, values: Sequence[int]) -> int:
    """Return the sum without carry (xor) of those of 32 values whose bit in a CRC-32 is set."""
    return reduce(xor, (value for bit, value in enumerate(values) if crc >> bit & 1), 0)
