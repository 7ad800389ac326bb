"""CIFAR-10, in colour patches and, as in Long Range Arena, pixel by pixel in grey.

The authors publish these forms:

==================  ====================================  =============================
form                as a folder                           as an archive
==================  ====================================  =============================
binary              ``cifar-10-batches-bin/*.bin``        ``cifar-10-binary.tar.gz``
pickled (Python)    ``cifar-10-batches-py/*``             ``cifar-10-python.tar.gz``
==================  ====================================  =============================
"""

import gzip
import math
import pickletools
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.images.patches import Windows2d, augmented, image_split, joined, patches
from reservoir.tasks.rows import held_out
from reservoir.tasks.source import REMEDY, Piece, Source, check_sequences, data_folder, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
BATCH_ROWS = 10_000
RECORD = 1 + 3072

MOST_BYTES = 64 * 2**20  # twice the size of a batch; a member of an archive that claims more is damaged or hostile
MOST_UNPACKED = 2**28  # largest number of unpacked bytes; the whole archive has 184 million
MOST_MEMBERS = 100

FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10")


@dataclass(frozen=True)
class Batches:
    """The six batches: six files or one archive, with binary records or pickles."""

    paths: tuple[Path, ...]
    binary: bool

    @property
    def packed(self) -> bool:
        """Whether the batches are in an archive, which can only be read from its beginning."""
        return len(self.paths) == 1


def find_batches(task: str, data: Path | None) -> Batches:
    """Return the batches below a data folder; folders come before archives, binary files before pickles."""
    wanted = "cifar-10-batches-bin, cifar-10-batches-py, cifar-10-binary.tar.gz or cifar-10-python.tar.gz"
    data = data_folder(task, data, wanted)
    for suffix in (".bin", ""):
        for folder in FOLDERS:
            paths = tuple(data / folder / f"{batch}{suffix}" for batch in BATCHES)
            missing = [path for path in paths if not path.is_file()]
            if not missing:
                return Batches(paths, suffix == ".bin")
            if len(missing) < len(paths):
                raise InputError(f"task {task!r}: {missing[0]} is missing; unpack the archive again")
    for name in ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"):
        for folder in FOLDERS:
            if (data / folder / name).is_file():
                return Batches((data / folder / name,), "binary" in name)
    raise InputError(f"task {task!r}: none of {wanted} in {data}; {REMEDY}")


def read_batches(found: Batches, wanted: slice) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images (rows, 32, 32, 3) and labels (rows,), bytes, of some of the six batches."""
    if found.packed:
        members = _unpack(found.paths[0], [f"{b}.bin" if found.binary else b for b in BATCHES[wanted]])
        return [_parse(f"{found.paths[0]}: {name}", data, found.binary) for name, data in members.items()]
    batches = []
    for path in found.paths[wanted]:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: {path.stat().st_size} bytes; a batch has 31 million; check that it is one")
        batches.append(_parse(str(path), path.read_bytes(), found.binary))
    return batches


def _unpack(path: Path, names: list[str]) -> dict[str, bytes]:
    """Return members of an archive by their names without folders; nothing is written to disk."""
    found: dict[str, bytes] = {}
    damaged = as_input_error(f"{path}: damaged or cut short", "fetch the archive again")
    # Skipping a member unpacks it, too, so all bytes are counted, not only those that are kept.
    with damaged, gzip.open(path) as packed, tarfile.open(fileobj=_Counted(packed), mode="r|") as archive:  # pyright: ignore
        for number, member in enumerate(archive):
            if number > MOST_MEMBERS:
                raise OSError(f"more than {MOST_MEMBERS} members")
            name = member.name.rsplit("/", 1)[-1]
            if name in names and member.isfile():
                if member.size > MOST_BYTES:
                    raise InputError(f"{path}: {member.name} claims {member.size} bytes; a batch has 31 million")
                file = archive.extractfile(member)
                found[name] = file.read() if file else b""
    for name in names:
        if name not in found:
            raise InputError(f"{path}: holds no {name}; fetch the archive again")
    return {name: found[name] for name in names}


class _Counted:
    """A file of which no more than `MOST_UNPACKED` bytes can be read."""

    def __init__(self, file: IO[bytes]):
        self._file, self._left = file, MOST_UNPACKED

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"more than {MOST_UNPACKED} bytes unpacked")
        return data


def _parse(where: str, data: bytes, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    if binary:  # a record is a label and the red, green and blue values, a byte each
        if not data or len(data) % RECORD or len(data) > BATCH_ROWS * RECORD:
            raise InputError(f"{where}: {len(data)} bytes are not 1 to {BATCH_ROWS} records of {RECORD}; fetch again")
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        images, labels = records[:, 1:], records[:, 0]
    else:
        with as_input_error(f"{where}: no pickle of a batch of CIFAR-10", "fetch the file again"):
            stored, numbers = read_pickle(data)
        if not stored or len(stored) % (RECORD - 1):
            raise InputError(f"{where}: no array 'data' of bytes (rows, 3072); is it a batch of CIFAR-10?")
        images = np.frombuffer(stored, np.uint8)
        rows = len(images) // (RECORD - 1)
        if len(numbers) != rows or not all(0 <= label < 256 for label in numbers):
            raise InputError(f"{where}: {rows} images need as many 'labels' from 0 to 9; fetch the file again")
        labels = np.array(numbers, np.uint8)
    if labels.max() > 9:
        row = int(np.argmax(labels > 9))
        raise InputError(f"{where}, row {row}: label {labels[row]} is not in 0..9; fetch the file again")
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def read_pickle(data: bytes) -> tuple[bytes, list[int]]:
    """Return the bytes of the images and the labels of a pickled batch: its longest text, and the numbers of a list.

    Python's unpickler would call what a file names, and build what it asks for. Here `pickletools` only splits the
    pickle into instructions, and raises many types of errors for a damaged one.
    """
    longest: str | bytes | bytearray = b""
    labels, key = [], ""
    for instruction, argument, _ in pickletools.genops(data):
        if isinstance(argument, str | bytes | bytearray):
            longest = max(longest, argument, key=len)
            if argument != "latin1":  # the encoding of the key before it, which Python 3 writes as a text
                key = argument
        elif key in ("labels", b"labels") and instruction.name.startswith("BININT"):
            labels.append(argument)
    return longest.encode("latin-1") if isinstance(longest, str) else bytes(longest), labels


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SIDE = 32  # pixels of a side
BLOCK = 128  # images converted at once, so that their intermediate values stay in the processor's cache


def grey(images: np.ndarray) -> np.ndarray:
    """Return the luma of images (..., 3) of bytes by ITU-R BT.601, rounded, in fixed point as Pillow converts."""
    luma = np.empty(images.shape[:-1], np.uint8)
    for lo in range(0, len(images), BLOCK):
        red, green, blue = (images[lo : lo + BLOCK, ..., channel].astype(np.uint32) for channel in range(3))
        luma[lo : lo + BLOCK] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma


@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10 as 64 tokens of 4x4 pixels in three colours, standardised by the usual constants.

    About a tenth of the training rows, by `reservoir.tasks.rows.held_out`, is the validation split. With ``views``,
    this number of augmented copies of each training row is added after the training rows, view by view. With ``window``
    the tokens are overlapping, whitened windows; see `reservoir.tasks.images.patches.Windows2d`.
    """

    data: Path | None = None  # the folder with the files; see `reservoir.tasks.images.cifar` for the forms
    views: int = 0
    window: int = 0
    stride: int = 2
    augments = True

    def __post_init__(self) -> None:
        if self.window and type(self) is not Cifar10:
            raise InputError("window goes with cifar10, mnist and fashion-mnist")
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
        """Return the six batches, or the archive."""
        return list(self._batches.paths)

    def pieces(self) -> list[Piece]:
        """Return one piece per batch and view; of an archive, the training batches are one piece."""
        train = [Piece("train", 0, 5)] if self._batches.packed else [Piece("train", i, i + 1) for i in range(5)]
        views = [piece._replace(view=view) for view in range(1, self.views + 1) for piece in train]
        return [*train, Piece("test", 5, 6), *views]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return train and valid, or test, or a view of train."""
        batches = read_batches(self._batches, slice(piece.lo, piece.hi))
        # One batch is left as it lies in memory, colour by colour: it converts to grey twice as fast.
        images, labels = batches[0] if len(batches) == 1 else map(np.concatenate, zip(*batches, strict=True))
        if piece.part == "test":
            return {"test": image_split(self._tokens(images), labels)}
        rows = np.concatenate(
            [BATCH_ROWS * (piece.lo + i) + np.arange(len(labels)) for i, (_, labels) in enumerate(batches)]
        )
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

    def pictures(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, 32, 32, 3) of bytes, or (rows, 32, 32, 1) of grey."""
        if self.window:
            raise InputError("whitened windows cannot be converted back to images; choose a task without window")
        return joined(x, SIDE, SIDE // math.isqrt(x.shape[1])).astype(np.uint8)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one view of stored sequences (rows, tokens, dim) with these row numbers."""
        if self.window:
            raise InputError("whitened windows cannot be augmented in training; choose a task without window")
        return patches(augmented(joined(x, SIDE, 4), rows, view), 4)

    def _task(self, name: str, form: Vectors, tokens: int) -> Task:
        parameters = {"views": self.views} if self.views else {}
        return Task(name=name, form=form, max_tokens=tokens, classes=10, parameters=parameters, labels=CLASSES)

    @cached_property
    def _batches(self) -> Batches:
        return find_batches(self.task.name, self.data)

    def _tokens(self, images: np.ndarray) -> np.ndarray:
        return self._windows(images) if self.window else patches(images, 4)


@dataclass(frozen=True, kw_only=True)
class Cifar10Lra(Cifar10):
    """CIFAR-10 in grey, one pixel a token: 1,024 tokens, scaled to [-1, 1]."""

    @property
    def task(self) -> Task:
        """The description of the task."""
        return self._task("cifar10-lra", Vectors(1), SIDE * SIDE)

    def scaling(self) -> Scaling:
        """Return the standardisation by mean 0.5 and deviation 0.5, for bytes."""
        return Scaling.constant(1 / 127.5, 1, offset=127.5)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one view of stored sequences (rows, tokens, 1) with these row numbers."""
        # Grey is linear in the colours and black is 0 in both, so rotating the grey image equals rotating the coloured
        # one.
        return patches(augmented(joined(x, SIDE, 1), rows, view), 1)

    def _tokens(self, images: np.ndarray) -> np.ndarray:
        return patches(grey(images), 1)
