"""The idx files in which MNIST and its successors are published."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from reservoir.errors import InputError

MOST_ROWS = 1_000_000
"""More rows than any published idx set has; a header that claims more is damaged or hostile."""


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped or not.

    The header is two zero bytes, the type (8: unsigned byte), the number of dimensions, and each of them as a
    big-endian 32-bit integer. Exactly as many bytes as it promises must follow: no more than that is ever unpacked.

    Parameters
    ----------
    path : Path
        The file; gzipped if it begins as gzip files do, whatever its name.
    dimensions : int
        1 for labels, 3 for images.

    Returns
    -------
    ndarray of uint8
        Of the shape in the header.

    Raises
    ------
    InputError
        Naming the file and the sizes, if it is no such file, is cut short or goes on after its end.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            shape = _shape(path, file.read(4 + 4 * dimensions), dimensions)
            size = int(np.prod(shape, dtype=np.int64))
            body = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged or cut short ({error}); fetch the file again") from None
    if len(body) != size:
        found = "more" if len(body) > size else f"{len(body)}"
        raise InputError(
            f"{path}: its header promises {size} bytes {shape}, and {found} follow; the file is damaged: fetch it again"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)


def _shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"{path}: {len(header)} bytes, too short for an idx header; fetch the file again")
    if header[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{path}: begins with {header[:4].hex()}, not with {bytes((0, 0, 8, dimensions)).hex()} as an idx file of "
            f"{dimensions} dimension(s) does; check that images and labels are not exchanged"
        )
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if shape[0] > MOST_ROWS or any(not 0 < side <= 4096 for side in shape[1:]):
        raise InputError(f"{path}: its header claims the shape {shape}; the file is damaged: fetch it again")
    return shape
