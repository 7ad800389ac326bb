"""CIFAR-10: in colour as patches; and in grey, one pixel per token, as in Long Range Arena."""

import pickletools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import as_input_error
from reservoir.tasks.images.patches import augmented, patches
from reservoir.tasks.images.source import ImageSource
from reservoir.tasks.rows import held_out
from reservoir.tasks.source import Piece, find_file
from reservoir.tasks.task import Split

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
BATCH_ROWS = 10_000
RECORD = 1 + 3 * 32 * 32  # bytes of a label and an image
MAX_BYTES = 64 * 2**20  # bytes read from a file; twice the size of a batch
FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BLOCK = 128  # images converted at once, so that their intermediate values stay in the processor's cache


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3) and labels (rows,), as bytes, from a file of binary records or a pickle."""
    with (
        as_input_error(f"{path}: not a batch of CIFAR-10", "fetch the file again"),
        path.open("rb") as file,
    ):
        data = file.read(MAX_BYTES)
        if path.suffix == ".bin":  # a record is a label and the red, green and blue values, a byte each
            records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
            values, labels = records[:, 1:], records[:, 0]
        else:
            stored, numbers = read_pickle(data)
            values, labels = np.frombuffer(stored, np.uint8), np.array(numbers, np.uint8)
        return values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def read_pickle(data: bytes) -> tuple[bytes, list[int]]:
    """Return the images of a pickled batch (its longest string) and the labels; raises many types of errors."""
    longest: str | bytes | bytearray = b""
    labels, key = [], ""
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
    for lo in range(0, len(images), BLOCK):
        red, green, blue = (images[lo : lo + BLOCK, ..., channel].astype(np.uint32) for channel in range(3))
        luma[lo : lo + BLOCK] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageSource):
    """CIFAR-10 as 64 tokens of 4x4 pixels in three colours, standardised by the usual constants."""

    views: int = 0  # augmented copies of each training row, added after the training rows

    augments = True
    name, shape, channels, labels = "cifar10", (32, 32, 3), 3, CLASSES
    mean, deviation = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def files(self) -> list[Path]:
        """Return the six batches; binary files are preferred to pickles."""
        return [find_file(self.name, self.data, FOLDERS, (f"{batch}.bin", batch)) for batch in BATCHES]

    def pieces(self) -> list[Piece]:
        """Return one piece per batch and view."""
        train = [Piece("train", i, i + 1) for i in range(5)]
        views = [piece._replace(view=view) for view in range(1, self.views + 1) for piece in train]
        return [*train, Piece("test", 5, 6), *views]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return test, or train and valid, which is about a tenth of the rows, or a view of train."""
        path = self.files()[piece.lo]
        images, labels = read_batch(path)
        rows = BATCH_ROWS * piece.lo + np.arange(len(images))
        if piece.view:
            images = augmented(images, rows, piece.view)
        if piece.part == "test":
            return {"test": self.split(path, images, labels)}
        # ids count through the five training batches; views of an image have its id
        found, valid = self.split(path, images, labels, BATCH_ROWS * piece.lo), held_out(rows)
        return {"train": found.take(~valid)} | ({} if piece.view else {"valid": found.take(valid)})

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one augmented view of stored sequences (rows, tokens, dim) with these row numbers."""
        # Grey is linear in the colours and black is 0, so rotating the grey image equals rotating the coloured one.
        return patches(augmented(self.images(x), rows, view), self.patch)


@dataclass(frozen=True, kw_only=True)
class Cifar10Lra(Cifar10):
    """CIFAR-10 in grey, one pixel per token: 1,024 tokens, scaled to [-1, 1]."""

    name, channels, patch = "cifar10-lra", 1, 1
    mean, deviation = (0.5,), (0.5,)

    def tokens(self, images: np.ndarray) -> np.ndarray:
        """Return the sequences (rows, 1024, 1) of images (rows, 32, 32, 3), all of bytes."""
        return super().tokens(grey(images))
