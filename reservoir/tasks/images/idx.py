"""The idx files in which MNIST and its successors are published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from reservoir.errors import InputError

MOST_EXPANSION = 50
"""Published sets expand by less than a tenth of this; a large file that expands by more is damaged or hostile."""

FREE_BYTES = 2**26
"""Up to this size an array may expand by any factor: sorted labels compress to almost nothing."""


def read_idx(path: Path, sides: tuple[int, ...] = ()) -> np.ndarray:
    """Return the unsigned bytes (rows, *sides) of an idx file; gzipped if it begins as gzip does, whatever its name.

    The header is two zero bytes, the type (8: unsigned byte), the number of dimensions, and each of them as a
    big-endian 32-bit integer. Exactly as many bytes as it promises must follow: no more than that is ever unpacked.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            shape = _shape(path, file.read(8 + 4 * len(sides)), sides)
            size = math.prod(shape)
            if size > max(FREE_BYTES, MOST_EXPANSION * path.stat().st_size):
                raise InputError(f"{path}: its header claims the shape {shape}; the file is damaged: fetch it again")
            body = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged or cut short ({error}); fetch the file again") from None
    if len(body) != size:
        found = "more" if len(body) > size else f"{len(body)}"
        raise InputError(
            f"{path}: its header promises {size} bytes {shape}, and {found} follow; the file is damaged: fetch it again"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def _shape(path: Path, header: bytes, sides: tuple[int, ...]) -> tuple[int, ...]:
    dimensions = 1 + len(sides)
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"{path}: {len(header)} bytes, too short for an idx header; fetch the file again")
    if header[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{path}: begins with {header[:4].hex()}, not with {bytes((0, 0, 8, dimensions)).hex()} as an idx file of "
            f"{dimensions} dimension(s) does; check that images and labels are not exchanged"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if shape[1:] != sides:
        raise InputError(f"{path}: images of {shape[1:]} pixels, not {sides}; is it another data set?")
    return shape
