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
from reservoir.tasks.pictures import LEVELS, MARGIN, augmented, joined, patches, whitened_windows
from reservoir.tasks.rows import SPLIT_SHARES, held_out, stratified
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
    labels: ClassVar[tuple[str, ...]] = ()  # names of the classes; empty if they are digits
    white: ClassVar[int] = 255  # the largest value of a pixel
    # constants that standardise each channel, for values from 0 to 1
    mean: ClassVar[tuple[float, ...]] = (0.0,)
    deviation: ClassVar[tuple[float, ...]] = (1.0,)
    border = 0  # pixels of zero padding at each edge

    @property
    def task(self) -> Task:
        """The description of the task; parameters that differ from the default are part of the cache key.

        Raise `InputError` if windows do not fill the image.
        """
        side, *_ = self.shape
        # The parameters of subclasses; windows are added below.
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        defaults = {item.name: item.default for item in fields(self)}
        parameters = {
            name: value
            for name, value in values.items()
            if name not in ("data", "window", "stride") and value != defaults[name]
        }
        if self.window:
            tokens_along_side = self._windows_along(side)
            token_side = self.window
            parameters |= {"window": self.window, "stride": self.stride}
        else:
            tokens_along_side = (side + 2 * self.border) // self.patch
            token_side = self.patch
        return Task(
            name=self.name,
            form=Vectors(token_side**2 * self.channels),
            max_tokens=tokens_along_side**2,
            classes=10,
            parameters=parameters,
            labels=self.labels,
        )

    def _windows_along(self, side: int) -> int:
        """Return the number of windows along a side of ``side`` pixels; raise `InputError` unless they fill it."""
        # Steps of the stride lead from the first window, which begins with the margin, to the last, which ends with it.
        steps, remainder = divmod(side + 2 * MARGIN - self.window, max(self.stride, 1))
        is_valid = 2 <= self.window <= side and 1 <= self.stride <= self.window
        if not is_valid or remainder:
            start = (
                f"task {self.name!r}: windows of {self.window} pixels with stride {self.stride} do not fill"
            )
            raise InputError(f"{start} {side} + {2 * MARGIN} pixels", "try window=6 and stride=2")
        return steps + 1

    def scaling(self) -> Scaling:
        """Return the map from stored bytes to standardised or whitened values."""
        if self.window:  # the inverse of how `whitened_windows` stores values
            return Scaling.constant(1 / LEVELS, self.window**2 * self.channels, offset=128)
        # A patch holds the channels of each of its pixels; bytes reach from 0 to `white`, the constants to 1.
        pixels = self.patch**2
        offset = self.white * np.tile(self.mean, pixels)
        deviation = self.white * np.tile(self.deviation, pixels)
        return Scaling(offset=offset.astype(np.float32), scale=(1 / deviation).astype(np.float32))

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, *shape) of whole numbers, or sequences, as sequences with their lengths.

        All sequences have the same length, so ``lengths`` is not read.
        """
        has_shape = x.shape[1:] == self.shape and x.dtype.kind in "uif"
        are_images = has_shape and np.array_equal(x, x.astype(np.uint8))
        if are_images:
            x = self.tokens(x.astype(np.uint8))
        return super().encode(x)

    def tokens(self, images: np.ndarray) -> np.ndarray:
        """Return the sequences (rows, tokens, dim) of images (rows, *shape), all of bytes."""
        images = images.reshape(*images.shape[:3], -1)  # with an axis of channels, also if they are grey
        if self.window:
            return whitened_windows(images, self.window, self.stride)
        edges = (self.border, self.border)
        return patches(np.pad(images, ((0, 0), edges, edges, (0, 0))), self.patch)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return stored sequences (rows, tokens, dim) as images (rows, side, side, channels) of values 0 to 255."""
        if self.window:
            raise InputError(
                "whitened windows cannot be converted back to images", "choose a task without window"
            )
        side, *_ = self.shape
        inside = slice(self.border, self.border + side)
        images = joined(x, side + 2 * self.border, self.patch)[:, inside, inside]
        return np.rint(images * (255 / self.white)).astype(np.uint8)

    def split(self, path: Path, images: np.ndarray, labels: np.ndarray, first: int = 0) -> Split:
        """Return images (rows, *shape) and labels (rows,) from a file as rows of the task.

        ``first`` is the id of the first row. Raise `InputError`, which names the file, if images and labels do not fit.
        """
        largest_label = labels.max(initial=0)
        has_label_per_image = 0 < len(images) == len(labels)
        if not has_label_per_image or largest_label > 9:
            contents = f"{len(images)} images and {len(labels)} labels up to {largest_label}"
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
        split_of_row = stratified(labels, SPLIT_SHARES)
        return {name: rows.take(split_of_row == name) for name in SPLIT_SHARES}


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
        """Return the split test, or train and valid; valid is about a tenth of the training file."""
        images, labels = self._pair(piece.part)
        rows = self.split(images, read_idx(images, (28, 28)), read_idx(labels))
        if piece.part == "t10k":
            return {"test": rows}
        is_valid = held_out(np.arange(len(rows)))
        return {"train": rows.take(~is_valid), "valid": rows.take(is_valid)}

    def _pair(self, part: str) -> list[Path]:
        """Return the files of images and of labels of the part ``train`` or ``t10k``, the test set."""
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        return [find_file("mnist", self.data, MNIST_FOLDERS, (name, f"{name}.gz")) for name in names]


def read_idx(path: Path, sides: tuple[int, ...] = ()) -> np.ndarray:
    """Return the unsigned bytes (rows, *sides) of an idx file of MNIST, gzipped or not; labels have no sides."""
    remedy = "check that images and labels are not swapped, or fetch the file again"
    with as_input_error(f"{path}: not a complete idx file of MNIST", remedy):
        with path.open("rb") as raw:
            is_gzipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzipped else path.open("rb") as file:
            # The header consists of 32-bit integers. The first has two zero bytes, the type (8: unsigned byte) and the
            # number of dimensions; the others are the sizes of the dimensions, rows first.
            dimensions = 1 + len(sides)
            kind, rows, *shape = struct.unpack(f">{1 + dimensions}I", file.read(4 * (1 + dimensions)))
            has_kind = kind == 0x800 + dimensions
            if not has_kind or tuple(shape) != sides or rows > MNIST_MAX_ROWS:
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
        # The first five batches; the sixth is the test set.
        train = [Piece("train", i, i + 1) for i in range(5)]
        views = [piece._replace(view=view) for view in range(1, self.views + 1) for piece in train]
        return [*train, Piece("test", 5, 6), *views]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the split test, or train and valid (about a tenth of the rows), or an augmented view of train."""
        path = self.files()[piece.lo]
        images, labels = read_batch(path)
        # Row numbers count through all batches in order. They are the ids of training rows; a view has its image's id.
        first_row = CIFAR_BATCH_ROWS * piece.lo
        rows = first_row + np.arange(len(images))
        if piece.view:
            images = augmented(images, rows, piece.view)
        if piece.part == "test":
            return {"test": self.split(path, images, labels)}
        batch = self.split(path, images, labels, first_row)
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
            stored_images, stored_labels = read_pickle(data)
            labels = np.array(stored_labels, np.uint8)
            values = np.frombuffer(stored_images, np.uint8)
        # Both formats store the colours one after the other: (rows, channels, height, width).
        return values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def read_pickle(data: bytes) -> tuple[bytes, list[int]]:
    """Return the images of a pickled batch, which are its longest string, and the labels.

    A damaged file raises errors of many types.
    """
    # Python's unpickler would call any function that a file names; pickletools only splits it into instructions. The
    # batch is a dictionary: a string that numbers follow is their key.
    longest_string: str | bytes | bytearray = b""
    labels: list[Any] = []
    last_string: Any = ""
    for instruction, argument, _ in pickletools.genops(data):
        if isinstance(argument, str | bytes | bytearray):
            longest_string = max(longest_string, argument, key=len)
            if argument != "latin1":  # Python 3 writes this encoding after each key
                last_string = argument
        elif last_string in ("labels", b"labels") and instruction.name.startswith("BININT"):
            labels.append(argument)
    # Pickles of Python 2 have bytes, which pickletools may return as text of one letter per byte.
    images = longest_string.encode("latin-1") if isinstance(longest_string, str) else bytes(longest_string)
    return images, labels


def grey(images: np.ndarray) -> np.ndarray:
    """Return the luma (ITU-R BT.601) of images (rows, ..., 3) of bytes, rounded, (rows, ...) of bytes, as in Pillow."""
    luma = np.empty(images.shape[:-1], np.uint8)
    for lo in range(0, len(images), GREY_BLOCK):
        block = slice(lo, lo + GREY_BLOCK)
        red, green, blue = (images[block, ..., channel].astype(np.uint32) for channel in range(3))
        # The weights 0.299, 0.587 and 0.114 in units of 2**-16, and a half to round to the nearest.
        luma[block] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma
