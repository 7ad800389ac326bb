"""Small grey images as sequences of patches: scikit-learn's handwritten digits, and MNIST."""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.images.patches import Windows2d, image_split, joined, patches
from reservoir.tasks.rows import SHARES, held_out, stratified
from reservoir.tasks.source import Piece, Source, check_protocol, check_sequences, find_file, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

FOLDERS = ("", "mnist", "MNIST/raw")
MAX_EXPANSION = 50
"""Largest accepted expansion of a large file; files of published data sets expand by less than a tenth of this."""

FREE_BYTES = 2**26  # up to this size an array may expand by any factor: sorted labels compress to almost nothing


@dataclass(frozen=True)
class Digits(Source):
    """The 1,797 handwritten digits of scikit-learn: 16 tokens of 2x2 pixels from 0 to 16, split 60/20/20 by class."""

    data: Path | None = None  # not used: scikit-learn contains the digits

    @property
    def task(self) -> Task:
        """The description of the task."""
        return Task(name="digits", form=Vectors(4), max_tokens=16, classes=10)

    def pieces(self) -> list[Piece]:
        """Return one piece: all rows."""
        return [Piece("all", 0, 1797)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the three splits."""
        from sklearn.datasets import load_digits

        images, labels = (np.asarray(array) for array in load_digits(return_X_y=True))
        x, _ = self.encode(images.reshape(-1, 8, 8)[piece.lo : piece.hi].astype(np.uint8))
        split = stratified(labels, SHARES)
        rows = image_split(x, labels)
        return {name: rows.take(split == name) for name in SHARES}

    def scaling(self) -> Scaling:
        """Return the map from 0..16 to [0, 1]."""
        return Scaling.constant(1 / 16, 4)

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, 8, 8) of values 0 to 16, or sequences (rows, 16, 4), as sequences."""
        x = patches(x, 2) if x.ndim == 3 and x.shape[1:] == (8, 8) else check_sequences(self.task, x)
        return x, full_lengths(x)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, 8, 8) of values 0 to 255."""
        return np.rint(joined(x, 8, 2)[..., 0] * (255 / 16)).astype(np.uint8)


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST from its four idx files: 28x28 images, zero-padded to 32x32, as 64 tokens of 4x4 pixels.

    About a tenth of the training file, chosen by `reservoir.tasks.rows.held_out`, is the validation split.
    """

    data: Path | None = None  # the folder with the files, gzipped or not
    window: int = 0  # side in pixels of overlapping, whitened windows as tokens, see `Windows2d`; 0 for patches
    stride: int = 2
    protocol: str = "ours"  # "paper": images are not padded and have 49 tokens, as in the authors' code

    def __post_init__(self) -> None:
        check_protocol("mnist", self.protocol)

    @property
    def task(self) -> Task:
        """The description of the task."""
        parameters = {} if self._border else {"protocol": "paper"}
        tokens = (7 + self._border) ** 2
        plain = Task(name="mnist", form=Vectors(16), max_tokens=tokens, classes=10, parameters=parameters)
        return self._windows.task(plain, 28, 1) if self.window else plain

    @property
    def _border(self) -> int:
        """Number of tokens that zero padding adds to height and width: 1 (two pixels at each edge), or 0."""
        return int(self.protocol != "paper")

    @property
    def _windows(self) -> Windows2d:
        return Windows2d(window=self.window, stride=self.stride)

    def files(self) -> list[Path]:
        """Return the four files: images and labels of the training set, then of the test set."""
        return [path for part in ("train", "t10k") for path in self._pair(part)]

    def pieces(self) -> list[Piece]:
        """Return one piece per image file: a gzipped file can only be read from its beginning."""
        return [Piece("train", 0, 60_000), Piece("t10k", 0, 10_000)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return train and valid, or test."""
        image_path, label_path = self._pair(piece.part)
        images, labels = read_idx(image_path, (28, 28)), read_idx(label_path)
        if len(images) != len(labels):
            problem = f"{image_path} has {len(images)} images and {label_path} {len(labels)} labels"
            raise InputError(f"{problem}; use a matching pair")
        if labels.size and labels.max() > 9:
            row = int(np.argmax(labels > 9))
            raise InputError(f"{label_path}, row {row}: label {labels[row]} is not in 0..9; fetch the file again")
        x, _ = self.encode(images)
        rows, valid = image_split(x, labels), held_out(np.arange(len(x)))
        return {"test": rows} if piece.part == "t10k" else {"train": rows.take(~valid), "valid": rows.take(valid)}

    def scaling(self) -> Scaling:
        """Return the map from 0..255 to [0, 1], or that of whitened windows."""
        if self.window:
            return self._windows.scaling(self.window**2)
        return Scaling.constant(1 / 255, 16)

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, 28, 28) of values 0 to 255, or sequences (rows, tokens, 16), as sequences."""
        if x.ndim != 3 or x.shape[1:] != (28, 28):
            x = check_sequences(self.task, x)
        elif self.window:
            x = self._windows(x)
        else:
            x = patches(np.pad(x, ((0, 0), *[(2 * self._border,) * 2] * 2)), 4)
        return x, full_lengths(x)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, 28, 28) of bytes, as published."""
        if self.window:
            raise InputError("whitened windows cannot be converted back to images; choose a task without window")
        edge = 2 * self._border
        return joined(x, 28 + 2 * edge, 4)[:, edge : edge + 28, edge : edge + 28, 0].astype(np.uint8)

    def _pair(self, part: str) -> list[Path]:
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        return [find_file("mnist", self.data, FOLDERS, (name, f"{name}.gz")) for name in names]


def read_idx(path: Path, sides: tuple[int, ...] = ()) -> np.ndarray:
    """Return the unsigned bytes (rows, *sides) of an idx file, gzipped or not."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    # Header: two zero bytes, the type (8: unsigned byte), the number of dimensions, their sizes as big-endian uint32.
    begin = bytes((0, 0, 8, 1 + len(sides)))
    with (
        as_input_error(f"{path}: damaged or cut short", "fetch the file again"),
        gzip.open(path) if packed else path.open("rb") as file,
    ):
        header = file.read(8 + 4 * len(sides))
        if len(header) < 8 + 4 * len(sides):
            raise InputError(f"{path}: {len(header)} bytes, too short for an idx header; fetch the file again")
        if header[:4] != begin:
            expected = f"{begin.hex()} as an idx file of {begin[3]} dimension(s) does"
            problem = f"{path}: begins with {header[:4].hex()}, not with {expected}"
            raise InputError(f"{problem}; check that images and labels are not swapped")
        shape = struct.unpack(f">{begin[3]}I", header[4:])
        if shape[1:] != sides:
            raise InputError(f"{path}: images of {shape[1:]} pixels, not {sides}; check that it is a file of MNIST")
        size = math.prod(shape)
        if size > max(FREE_BYTES, MAX_EXPANSION * path.stat().st_size):
            raise InputError(f"{path}: its header claims the shape {shape}; the file is damaged: fetch it again")
        body = file.read(size + 1)  # no more is unpacked, however long the file claims to be
    if len(body) != size:
        found = "more" if len(body) > size else f"{len(body)}"
        raise InputError(f"{path}: its header declares {size} bytes, but {found} follow; fetch the file again")
    return np.frombuffer(body, np.uint8).reshape(shape)
