"""Your own images: files are stored as they are, and decoded when a model reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.images.pictures import PATCH, SIDE, TOKENS, check_pillow, decoded
from reservoir_pipelines.data.arrays import Arrays
from reservoir_pipelines.data.tables import BadRows

MAX_BYTES = 2**27


class Images(Arrays):
    """Images as ``x``, the bytes of each file, with other arrays; ``x`` has the shape of their patches."""

    piece_rows = 64
    unused_options = ("values", "symbols", "missing", "standardise", "rate", "waveform")

    def __init__(self, files: Sequence[Path], arrays: Mapping[str, np.ndarray], bad: BadRows):
        check_pillow()
        self._all_files, self._bad = list(files), bad
        if bad.skip:
            bad.read_files(files, lambda file: _stored_bytes(file).size)
        kept = bad.kept()
        arrays = {name: array[kept] for name, array in arrays.items()}
        super().__init__(arrays, x=((int(kept.sum()), TOKENS, 3 * PATCH**2), np.dtype(np.uint8)))
        self.files = [file for file, good in zip(files, kept, strict=True) if good]
        self.notes = [f"backbones that do not read images get {SIDE}x{SIDE} pixels in {TOKENS} patches"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the files of the rows ``lo`` to ``hi``, (rows,) of arrays."""
        try:
            return np.fromiter(map(_stored_bytes, self.files[lo:hi]), object)
        except InputError:
            # The error counts all unreadable files.
            self._bad.read_files(self._all_files, lambda file: _stored_bytes(file).size)
            self._bad.kept()
            raise


def _stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of an image file, after checking that they can be decoded."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}", "check that it is an image"
        )
    found = np.frombuffer(path.read_bytes(), np.uint8)
    decoded(found, str(path), rough=True)
    return found
