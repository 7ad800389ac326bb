"""CIFAR-10: in colour as patches; and in grey, one pixel per token, as in Long Range Arena."""

import math
import pickletools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.images.patches import Windows2d, augmented, image_split, joined, patches
from reservoir.tasks.rows import held_out
from reservoir.tasks.source import REMEDY, Piece, Source, check_sequences, data_folder, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
BATCH_ROWS = 10_000
RECORD = 1 + 3072

MAX_BYTES = 64 * 2**20  # twice the size of a batch

FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10")


def find_batches(task: str, data: Path | None) -> list[Path]:
    """Return the files of the six batches below a data folder; binary files are preferred to pickles."""
    wanted = "cifar-10-batches-bin or cifar-10-batches-py"
    data = data_folder(task, data, wanted)
    for suffix in (".bin", ""):
        for folder in FOLDERS:
            paths = [data / folder / f"{batch}{suffix}" for batch in BATCHES]
            missing = [path for path in paths if not path.is_file()]
            if not missing:
                return paths
            if len(missing) < len(paths):
                raise InputError(f"task {task!r}: {missing[0]} is missing; unpack the archive again")
    raise InputError(f"task {task!r}: no {wanted} in {data}; unpack the archive there, or {REMEDY}")


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3) and labels (rows,), as bytes, from a file of binary records or a pickle."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, not the 31 million of a batch; check the file")
    data = path.read_bytes()
    if path.suffix == ".bin":  # a record is a label and the red, green and blue values, a byte each
        if not data or len(data) % RECORD or len(data) > BATCH_ROWS * RECORD:
            raise InputError(f"{path}: {len(data)} bytes, not 1 to {BATCH_ROWS} records of {RECORD}; fetch it again")
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        images, labels = records[:, 1:], records[:, 0]
    else:
        with as_input_error(f"{path}: not a pickled batch of CIFAR-10", "fetch the file again"):
            stored, numbers = read_pickle(data)
        if not stored or len(stored) % (RECORD - 1):
            raise InputError(f"{path}: no array 'data' of bytes (rows, 3072); check that it is a batch of CIFAR-10")
        images = np.frombuffer(stored, np.uint8)
        rows = len(images) // (RECORD - 1)
        if len(numbers) != rows or not all(0 <= label < 256 for label in numbers):
            raise InputError(f"{path}: {rows} images need as many 'labels' from 0 to 9; fetch the file again")
        labels = np.array(numbers, np.uint8)
    if labels.max() > 9:
        row = int(np.argmax(labels > 9))
        raise InputError(f"{path}, row {row}: label {labels[row]} is not in 0..9; fetch the file again")
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


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


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SIDE = 32  # pixels of a side
BLOCK = 128  # images converted at once, so that their intermediate values stay in the processor's cache


def grey(images: np.ndarray) -> np.ndarray:
    """Return the luma (ITU-R BT.601) of images (..., 3) of bytes, rounded, in fixed point as in Pillow."""
    luma = np.empty(images.shape[:-1], np.uint8)
    for lo in range(0, len(images), BLOCK):
        red, green, blue = (images[lo : lo + BLOCK, ..., channel].astype(np.uint32) for channel in range(3))
        luma[lo : lo + BLOCK] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma


@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10 as 64 tokens of 4x4 pixels in three colours, standardised by the usual constants.

    About a tenth of the training rows, chosen by `reservoir.tasks.rows.held_out`, is the validation split.
    """

    data: Path | None = None  # the folder with the unpacked files
    views: int = 0  # augmented copies of each training row, added after the training rows
    window: int = 0  # side in pixels of overlapping, whitened windows as tokens, see `Windows2d`; 0 for patches
    stride: int = 2
    augments = True

    def __post_init__(self) -> None:
        if self.window and type(self) is not Cifar10:
            raise InputError("window works only with cifar10 and mnist; leave it out")
        if not isinstance(self.views, int) or self.views < 0:
            raise InputError(f"views is {self.views}; give 0 or the number of augmented copies of each training row")

    @property
    def task(self) -> Task:
        """The description of the task."""
        plain = self._task("cifar10", Vectors(48), 64)
        return self._windows.task(plain, SIDE, 3) if self.window else plain

    @property
    def _windows(self) -> Windows2d:
        return Windows2d(window=self.window, stride=self.stride)

    def files(self) -> list[Path]:
        """Return the six batches."""
        return self._batches

    def pieces(self) -> list[Piece]:
        """Return one piece per batch and view."""
        train = [Piece("train", i, i + 1) for i in range(5)]
        views = [piece._replace(view=view) for view in range(1, self.views + 1) for piece in train]
        return [*train, Piece("test", 5, 6), *views]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return train and valid, or test, or a view of train."""
        images, labels = read_batch(self._batches[piece.lo])
        if piece.part == "test":
            return {"test": image_split(self._tokens(images), labels)}
        rows = BATCH_ROWS * piece.lo + np.arange(len(labels))
        valid = held_out(rows)
        if piece.view:
            viewed = augmented(images[~valid], rows[~valid], piece.view)
            return {"train": image_split(self._tokens(viewed), labels[~valid])}
        found = image_split(self._tokens(images), labels)
        return {"train": found.take(~valid), "valid": found.take(valid)}

    def scaling(self) -> Scaling:
        """Return the usual standardisation, for bytes, or that of whitened windows."""
        if self.window:
            return self._windows.scaling(3 * self.window**2)
        mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
        return Scaling(
            offset=np.tile(255 * mean, 16).astype(np.float32),
            scale=np.tile(1 / (255 * deviation), 16).astype(np.float32),
        )

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, 32, 32, 3) of bytes, or sequences, as sequences."""
        images = x.ndim == 4 and x.shape[1:] == (32, 32, 3) and x.dtype == np.uint8
        x = self._tokens(x) if images else check_sequences(self.task, x)
        return x, full_lengths(x)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, 32, 32, 3) of bytes, or (rows, 32, 32, 1) of grey."""
        if self.window:
            raise InputError("whitened windows cannot be converted back to images; choose a task without window")
        return joined(x, SIDE, SIDE // math.isqrt(x.shape[1])).astype(np.uint8)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one augmented view of stored sequences (rows, tokens, dim) with these row numbers."""
        if self.window:
            raise InputError("whitened windows cannot be augmented in training; choose a task without window")
        return patches(augmented(joined(x, SIDE, 4), rows, view), 4)

    def _task(self, name: str, form: Vectors, tokens: int) -> Task:
        parameters = {"views": self.views} if self.views else {}
        return Task(name=name, form=form, max_tokens=tokens, classes=10, parameters=parameters, labels=CLASSES)

    @cached_property
    def _batches(self) -> list[Path]:
        return find_batches(self.task.name, self.data)

    def _tokens(self, images: np.ndarray) -> np.ndarray:
        return self._windows(images) if self.window else patches(images, 4)


@dataclass(frozen=True, kw_only=True)
class Cifar10Lra(Cifar10):
    """CIFAR-10 in grey, one pixel per token: 1,024 tokens, scaled to [-1, 1]."""

    @property
    def task(self) -> Task:
        """The description of the task."""
        return self._task("cifar10-lra", Vectors(1), SIDE * SIDE)

    def scaling(self) -> Scaling:
        """Return the standardisation by mean 0.5 and standard deviation 0.5, for bytes."""
        return Scaling.constant(1 / 127.5, 1, offset=127.5)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one augmented view of stored sequences (rows, tokens, 1) with these row numbers."""
        # Grey is linear in the colours and black is 0, so rotating the grey image equals rotating the coloured one.
        return patches(augmented(joined(x, SIDE, 1), rows, view), 1)

    def _tokens(self, images: np.ndarray) -> np.ndarray:
        return patches(grey(images), 1)
