"""The named tasks of square images: scikit-learn's digits, MNIST, and CIFAR-10 in colour or in grey.

Each is an `ImageSource`, whose tokens are patches or overlapping, whitened windows. CIFAR-10 has patches in colour;
in grey it has one pixel per token, as in Long Range Arena.
"""

import gzip
import math
import pickletools
import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.patches import LEVELS, MARGIN, augmented, joined, patches, whitened_windows
from reservoir.tasks.rows import SHARES, held_out, stratified
from reservoir.tasks.source import Piece, Source, classes_of, find_file, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

MNIST_FOLDERS = ("", "mnist", "MNIST/raw")
MNIST_MAX_ROWS = 100_000  # more than any file of MNIST has; limits what a packed file is unpacked to
CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR_BATCH_ROWS = 10_000  # images of each of its files
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32  # bytes of a label and an image
CIFAR_MAX_BYTES = 64 * 2**20  # bytes read from a file; twice the size of a batch
CIFAR_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Images converted at once, so that their intermediate values stay in the processor's cache.
GREY_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class ImageSource(Source):
    """Square images of ten classes. Each token is a patch, or an overlapping, whitened window."""

    data: Path | None = None  # the folder of the files
    window: int = 0  # side of the windows in pixels; 0 for patches
    stride: int = 2  # pixels from one window to the next, down and to the right

    name: ClassVar[str]
    raw = "images of whole numbers, or "
    shape: ClassVar[tuple[int, ...]]  # shape of an image as published: (side, side) or (side, side, 3)
    channels: ClassVar[int] = 1  # values of a pixel in a token
    patch: ClassVar[int] = 4  # side of a patch in pixels
    labels: ClassVar[tuple[str, ...]] = ()
    white: ClassVar[int] = 255  # the largest value
    # constants that standardise each channel, for values from 0 to 1
    mean: ClassVar[tuple[float, ...]] = (0.0,)
    deviation: ClassVar[tuple[float, ...]] = (1.0,)
    border = 0  # pixels of zero padding at each edge

    @property
    def task(self) -> Task:
        """The description of the task; parameters that differ from the default are part of the cache key."""
        side = self.shape[0]
        own = [item for item in fields(self) if item.name not in ("data", "window", "stride")]
        parameters = {
            item.name: value for item in own if (value := getattr(self, item.name)) != item.default
        }
        size = self.patch
        grid = (side + 2 * self.border) // self.patch  # tokens in a row of the image
        if self.window:
            # Windows must fill the image and its margin exactly: steps of the stride, without a rest.
            size = self.window
            steps, rest = divmod(side + 2 * MARGIN - size, max(self.stride, 1))
            if not (2 <= size <= side and 1 <= self.stride <= size) or rest:
                start = (
                    f"task {self.name!r}: windows of {size} pixels with stride {self.stride} do not fill"
                )
                raise InputError(f"{start} {side} + {2 * MARGIN} pixels", "try window=6 and stride=2")
            grid = steps + 1
            parameters |= {"window": size, "stride": self.stride}
        return Task(
            name=self.name,
            form=Vectors(size**2 * self.channels),
            max_tokens=grid**2,
            classes=10,
            parameters=parameters,
            labels=self.labels,
        )

    def scaling(self) -> Scaling:
        """Return the map from stored bytes to standardised or whitened values."""
        if self.window:
            return Scaling.constant(1 / LEVELS, self.window**2 * self.channels, offset=128)
        # A patch holds the channels of each of its pixels; bytes reach from 0 to `white`, the constants to 1.
        pixels = self.patch**2
        offset = self.white * np.tile(self.mean, pixels)
        deviation = self.white * np.tile(self.deviation, pixels)
        return Scaling(offset=offset.astype(np.float32), scale=(1 / deviation).astype(np.float32))

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, *shape) of whole numbers, or sequences, as sequences."""
        if x.shape[1:] == self.shape and x.dtype.kind in "uif" and np.array_equal(x, x.astype(np.uint8)):
            x = self.tokens(x.astype(np.uint8))
        return super().encode(x)

    def tokens(self, images: np.ndarray) -> np.ndarray:
        """Return the sequences (rows, tokens, dim) of images (rows, *shape), all of bytes."""
        images = images.reshape(*images.shape[:3], -1)
        if self.window:
            return whitened_windows(images, self.window, self.stride)
        edges = (self.border, self.border)
        return patches(np.pad(images, ((0, 0), edges, edges, (0, 0))), self.patch)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, side, side, channels) of values 0 to 255."""
        if self.window:
            raise InputError(
                "whitened windows cannot be converted back to images", "choose a task without window"
            )
        inside = slice(self.border, self.border + self.shape[0])
        images = joined(x, self.shape[0] + 2 * self.border, self.patch)[:, inside, inside]
        return np.rint(images * (255 / self.white)).astype(np.uint8)

    def split(self, path: Path, images: np.ndarray, labels: np.ndarray, first: int = 0) -> Split:
        """Return images and labels (rows,) from a file as rows of the task; ``first`` is the id of the first."""
        largest = labels.max(initial=0)
        if not 0 < len(images) == len(labels) or largest > 9:
            contents = f"{len(images)} images and {len(labels)} labels up to {largest}"
            raise InputError(
                f"{path}: {contents}, instead of a label from 0 to 9 for each image",
                "fetch the files again",
            )
        x = self.tokens(images)
        return Split(x=x, y=classes_of(labels), lengths=full_lengths(x), ids=first + np.arange(len(x)))


@dataclass(frozen=True, kw_only=True)
class Digits(ImageSource):
    """The 1,797 handwritten digits of scikit-learn: 16 tokens of 2x2 pixels from 0 to 16, split 60/20/20 by class."""

    name = "digits"
    shape = (8, 8)
    patch = 2
    white = 16

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

    name = "mnist"
    shape = (28, 28)
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
        return [find_file("mnist", self.data, MNIST_FOLDERS, (name, f"{name}.gz")) for name in names]


def read_idx(path: Path, sides: tuple[int, ...] = ()) -> np.ndarray:
    """Return the unsigned bytes (rows, *sides) of an idx file of MNIST, gzipped or not."""
    remedy = "check that images and labels are not swapped, or fetch the file again"
    with as_input_error(f"{path}: not a complete idx file of MNIST", remedy):
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            # Two zero bytes, the type (8: unsigned byte), the number of dimensions, and their sizes.
            dimensions = 1 + len(sides)
            kind, rows, *shape = struct.unpack(f">{1 + dimensions}I", file.read(4 * (1 + dimensions)))
            if kind != 0x800 + dimensions or tuple(shape) != sides or rows > MNIST_MAX_ROWS:
                raise ValueError(f"its header is {kind:08x}, with {rows:,} rows of shape {tuple(shape)}")
            # One byte more, if there is one, so that `reshape` refuses a file that is too long.
            body = file.read(rows * math.prod(sides) + 1)
        return np.frombuffer(body, np.uint8).reshape(rows, *sides)


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageSource):
    """CIFAR-10 as 64 tokens of 4x4 pixels in three colours, standardised by the usual constants."""

    views: int = 0  # augmented copies of each training row, added after the training rows

    augments = True
    name = "cifar10"
    shape = (32, 32, 3)
    channels = 3
    labels = CIFAR_CLASSES
    mean = (0.4914, 0.4822, 0.4465)  # of the training rows, by channel, as most publications have them
    deviation = (0.2023, 0.1994, 0.2010)

    def files(self) -> list[Path]:
        """Return the six batches; binary files are preferred to pickles."""
        return [
            find_file(self.name, self.data, CIFAR_FOLDERS, (f"{batch}.bin", batch))
            for batch in CIFAR_BATCHES
        ]

    def pieces(self) -> list[Piece]:
        """Return one piece per batch and view; its ``lo`` is the number of the batch in `files`."""
        train = [Piece("train", i, i + 1) for i in range(5)]
        views = [piece._replace(view=view) for view in range(1, self.views + 1) for piece in train]
        return [*train, Piece("test", 5, 6), *views]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return test, or train and valid, which is about a tenth of the rows, or a view of train."""
        path = self.files()[piece.lo]
        images, labels = read_batch(path)
        rows = CIFAR_BATCH_ROWS * piece.lo + np.arange(len(images))
        if piece.view:
            images = augmented(images, rows, piece.view)
        if piece.part == "test":
            return {"test": self.split(path, images, labels)}
        # ids count through the five training batches; views of an image have its id
        batch = self.split(path, images, labels, CIFAR_BATCH_ROWS * piece.lo)
        is_valid = held_out(rows)
        train = {"train": batch.take(~is_valid)}
        return train if piece.view else {**train, "valid": batch.take(is_valid)}

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one augmented view of stored sequences (rows, tokens, dim) with these row numbers."""
        # Grey is linear in the colours and black is 0, so rotating the grey image equals rotating the coloured one.
        return patches(augmented(self.images(x), rows, view), self.patch)


@dataclass(frozen=True, kw_only=True)
class Cifar10Lra(Cifar10):
    """CIFAR-10 in grey, one pixel per token: 1,024 tokens, scaled to [-1, 1]."""

    name = "cifar10-lra"
    channels = 1
    patch = 1
    mean = (0.5,)
    deviation = (0.5,)

    def tokens(self, images: np.ndarray) -> np.ndarray:
        """Return the sequences (rows, 1024, 1) of images (rows, 32, 32, 3), all of bytes."""
        return super().tokens(grey(images))


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3) and labels (rows,), as bytes, from a file of binary records or a pickle."""
    with (
        as_input_error(f"{path}: not a batch of CIFAR-10", "fetch the file again"),
        path.open("rb") as file,
    ):
        data = file.read(CIFAR_MAX_BYTES)
        if path.suffix == ".bin":  # a record is a label and the red, green and blue values, a byte each
            records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD_BYTES)
            labels = records[:, 0]
            values = records[:, 1:]
        else:
            stored, numbers = read_pickle(data)
            labels = np.array(numbers, np.uint8)
            values = np.frombuffer(stored, np.uint8)
        return values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def read_pickle(data: bytes) -> tuple[bytes, list[int]]:
    """Return the images of a pickled batch (its longest string) and the labels; raises many types of errors."""
    longest: str | bytes | bytearray = b""
    labels: list[Any] = []
    key: Any = ""  # the last string, which is a key of the dictionary if numbers follow
    # Python's unpickler would call any function that a file names; pickletools only splits it into instructions.
    for instruction, argument, _ in pickletools.genops(data):
        if isinstance(argument, str | bytes | bytearray):
            longest = max(longest, argument, key=len)
            if argument != "latin1":  # Python 3 writes this encoding after each key
                key = argument
        elif key in ("labels", b"labels") and instruction.name.startswith("BININT"):
            labels.append(argument)
    return longest.encode("latin-1") if isinstance(longest, str) else bytes(longest), labels


def grey(images: np.ndarray) -> np.ndarray:
    """Return the luma (ITU-R BT.601) of images (..., 3) of bytes, rounded, in fixed point as in Pillow."""
    luma = np.empty(images.shape[:-1], np.uint8)
    for lo in range(0, len(images), GREY_BLOCK):
        red, green, blue = (
            images[lo : lo + GREY_BLOCK, ..., channel].astype(np.uint32) for channel in range(3)
        )
        luma[lo : lo + GREY_BLOCK] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma
