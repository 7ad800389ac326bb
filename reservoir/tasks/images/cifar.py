"""CIFAR-10, in colour patches and, as in Long Range Arena, pixel by pixel in grey."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.images.cifar_files import BATCH_ROWS, Batches, find_batches, read_batches
from reservoir.tasks.images.patches import Windows2d, augmented, image_split, joined, patches
from reservoir.tasks.rows import held_out
from reservoir.tasks.source import Piece, Source, check_sequences, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SIDE = 32
"""Pixels of a side."""

BLOCK = 128
"""Images converted at once, so that their intermediate values stay in the processor's cache."""


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

    data: Path | None = None  # the folder with the files; see `reservoir.tasks.images.cifar_files` for the forms
    views: int = 0
    window: int = 0
    stride: int = 2
    augments = True

    def __post_init__(self) -> None:
        if self.window and (self.views or type(self) is not Cifar10):
            raise InputError("window goes with cifar10, mnist and fashion-mnist, without --views")
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
        return Scaling.uniform(1 / 127.5, 1, offset=127.5)

    def augmented(self, x: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
        """Return one view of stored sequences (rows, tokens, 1) with these row numbers."""
        # Grey is linear in the colours and black is 0 in both, so rotating the grey image equals rotating the coloured
        # one.
        return patches(augmented(joined(x, SIDE, 1), rows, view), 1)

    def _tokens(self, images: np.ndarray) -> np.ndarray:
        return patches(grey(images), 1)
