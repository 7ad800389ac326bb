"""Small files in the publishers' formats, made on the spot."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def mnist_files(folder: Path, train: int = 60, test: int = 12, *, packed: bool = False) -> dict[str, np.ndarray]:
    """Write the four files and return their arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(rows) % 10).astype(np.uint8)
    for name, array in arrays.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return arrays
