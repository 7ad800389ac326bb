"""Small grey images as sequences of patches: scikit-learn's handwritten digits, and MNIST."""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import as_input_error
from reservoir.tasks.images.source import ImageSource
from reservoir.tasks.rows import SHARES, held_out, stratified
from reservoir.tasks.source import Piece, find_file
from reservoir.tasks.task import Split

FOLDERS = ("", "mnist", "MNIST/raw")
MAX_ROWS = 100_000  # more than any file of MNIST has; limits what a packed file is unpacked to


@dataclass(frozen=True, kw_only=True)
class Digits(ImageSource):
    """The 1,797 handwritten digits of scikit-learn: 16 tokens of 2x2 pixels from 0 to 16, split 60/20/20 by class."""

    name, shape, patch, white = "digits", (8, 8), 2, 16

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the three splits."""
        from sklearn.datasets import load_digits

        images, labels = (np.asarray(array) for array in load_digits(return_X_y=True))
        rows = self.split(Path("digits"), images.reshape(-1, 8, 8).astype(np.uint8), labels)
        split = stratified(labels, SHARES)
        return {name: rows.take(split == name) for name in SHARES}


@dataclass(frozen=True, kw_only=True)
class Mnist(ImageSource):
    """MNIST from its four idx files: 28x28 images, zero-padded to 32x32, as 64 tokens of 4x4 pixels."""

    name, shape = "mnist", (28, 28)
    border = 2

    def files(self) -> list[Path]:
        """Return the four files: images and labels of the training set, then of the test set."""
        return [path for part in ("train", "t10k") for path in self._pair(part)]

    def pieces(self) -> list[Piece]:
        """Return one piece per image file: a gzipped file can only be read from its beginning."""
        return [Piece("train", 0, 60_000), Piece("t10k", 0, 10_000)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return test, or train and valid, which is about a tenth of the training file."""
        images, labels = self._pair(piece.part)
        rows = self.split(images, read_idx(images, (28, 28)), read_idx(labels))
        if piece.part == "t10k":
            return {"test": rows}
        valid = held_out(np.arange(len(rows)))
        return {"train": rows.take(~valid), "valid": rows.take(valid)}

    def _pair(self, part: str) -> list[Path]:
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        return [find_file("mnist", self.data, FOLDERS, (name, f"{name}.gz")) for name in names]


def read_idx(path: Path, sides: tuple[int, ...] = ()) -> np.ndarray:
    """Return the unsigned bytes (rows, *sides) of an idx file of MNIST, gzipped or not."""
    remedy = "check that images and labels are not swapped, or fetch the file again"
    with as_input_error(f"{path}: not a complete idx file of MNIST", remedy):
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            # Two zero bytes, the type (8: unsigned byte), the number of dimensions, and their sizes.
            kind, rows, *found = struct.unpack(f">{2 + len(sides)}I", file.read(8 + 4 * len(sides)))
            if kind != 0x801 + len(sides) or tuple(found) != sides or rows > MAX_ROWS:
                raise ValueError(f"its header is {kind:08x}, with {rows:,} rows of shape {tuple(found)}")
            body = file.read(rows * math.prod(sides) + 1)
        return np.frombuffer(body, np.uint8).reshape(rows, *sides)
