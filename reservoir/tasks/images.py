"""Small grey images as sequences of patches: scikit-learn's handwritten digits, MNIST and Fashion-MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.idx import read_idx
from reservoir.tasks.rows import SHARES, held_out, stratified
from reservoir.tasks.source import Piece, find_file, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def patches(images: np.ndarray, size: int) -> np.ndarray:
    """Cut images into square patches, one token each, row by row.

    Parameters
    ----------
    images : ndarray, (rows, height, width) or (rows, height, width, channels)
        Both sides divisible by ``size``.
    size : int
        Side of a patch, in pixels.

    Returns
    -------
    ndarray, (rows, height * width / size**2, size**2 * channels)
        The values of a token run over its rows, its columns and its channels, the channels fastest.
    """
    rows, height, width = images.shape[:3]
    grid = images.reshape(rows, height // size, size, width // size, size, -1)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(rows, (height // size) * (width // size), -1)


def pixels(scale: float, dim: int, offset: float = 0.0) -> Scaling:
    """Return the scaling ``(x - offset) * scale``, the same for every value of a token."""
    return Scaling(offset=np.full(dim, offset, np.float32), scale=np.full(dim, scale, np.float32))


def classes_of(rows: np.ndarray) -> np.ndarray:
    """Return class numbers (rows,) as labels (rows, 1, 1)."""
    return rows.astype(np.int64)[:, None, None]


def image_split(x: np.ndarray, labels: np.ndarray) -> Split:
    """Return sequences that all have the full length, with one class each."""
    return Split(x=x, y=classes_of(labels), lengths=full_lengths(x))


def sequences(task: Task, x: np.ndarray) -> np.ndarray:
    """Return ``x`` if it is an array of this task's sequences (rows, tokens, dim), or refuse it."""
    assert isinstance(task.form, Vectors)
    if x.ndim != 3 or x.shape[1:] != (task.max_tokens, task.form.dim) or x.dtype.kind not in "uif":
        raise InputError(
            f"task {task.name!r}: inputs of shape {x.shape} and type {x.dtype}; give raw images, or sequences of shape "
            f"(rows, {task.max_tokens}, {task.form.dim})"
        )
    return x


@dataclass(frozen=True)
class Digits:
    """The 1,797 handwritten digits that come with scikit-learn: 16 tokens of 2x2 pixels.

    The split is 60/20/20, stratified by class and fixed. Pixels are stored as published, 0 to 16, and scaled to [0, 1].

    Parameters
    ----------
    data : Path, optional
        Not used: scikit-learn carries the digits.
    """

    data: Path | None = None
    task = Task(name="digits", form=Vectors(4), max_tokens=16, classes=10)

    def files(self) -> list[Path]:
        """Return no files."""
        return []

    def pieces(self) -> list[Piece]:
        """Return one piece: all rows."""
        return [Piece("all", 0, 1797)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the three splits."""
        from sklearn.datasets import load_digits

        images, labels = (np.asarray(array) for array in load_digits(return_X_y=True))
        x, _ = self.encode(images.reshape(-1, 8, 8)[piece.lo : piece.hi].astype(np.uint8))
        split = stratified(labels, SHARES)
        return {name: image_split(x[split == name], labels[split == name]) for name in SHARES}

    def scaling(self) -> Scaling:
        """Return the map from 0..16 to [0, 1]."""
        return pixels(1 / 16, 4)

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, 8, 8) of values 0 to 16, or sequences (rows, 16, 4), as sequences."""
        x = patches(x, 2) if x.ndim == 3 and x.shape[1:] == (8, 8) else sequences(self.task, x)
        return x, full_lengths(x)


@dataclass(frozen=True)
class Mnist:
    """MNIST from its four idx files: 28x28 images, zero-padded to 32x32, as 64 tokens of 4x4 pixels.

    About a tenth of the training file, by `reservoir.tasks.rows.held_out`, is the validation split.

    Parameters
    ----------
    data : Path, optional
        The folder with the files, or with a folder ``mnist`` that holds them; each may be gzipped.
    """

    data: Path | None = None
    task = Task(name="mnist", form=Vectors(16), max_tokens=64, classes=10)
    folders = ("", "mnist", "MNIST/raw")

    def files(self) -> list[Path]:
        """Return the four files: images and labels, first of the training set."""
        return [path for part in ("train", "t10k") for path in self._pair(part)]

    def pieces(self) -> list[Piece]:
        """Return one piece per image file: a gzipped file can only be read from its beginning."""
        return [Piece("train", 0, 60_000), Piece("t10k", 0, 10_000)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return train and valid, or test."""
        image_path, label_path = self._pair(piece.part)
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if images.shape[1:] != (28, 28):
            raise InputError(
                f"{image_path}: images of {images.shape[1:]} pixels, not (28, 28); is it another data set?"
            )
        if len(images) != len(labels):
            raise InputError(
                f"{image_path} has {len(images)} images and {label_path} {len(labels)} labels; take both from one place"
            )
        if labels.size and labels.max() > 9:
            row = int(np.argmax(labels > 9))
            raise InputError(f"{label_path}, row {row}: label {labels[row]} is not in 0..9; fetch the file again")
        x, _ = self.encode(images)
        if piece.part == "t10k":
            return {"test": image_split(x, labels)}
        valid = held_out(np.arange(len(x)))
        return {"train": image_split(x[~valid], labels[~valid]), "valid": image_split(x[valid], labels[valid])}

    def scaling(self) -> Scaling:
        """Return the map from 0..255 to [0, 1]."""
        return pixels(1 / 255, 16)

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, 28, 28) of values 0 to 255, or sequences (rows, 64, 16), as sequences."""
        images = x.ndim == 3 and x.shape[1:] == (28, 28)
        x = patches(np.pad(x, ((0, 0), (2, 2), (2, 2))), 4) if images else sequences(self.task, x)
        return x, full_lengths(x)

    def _pair(self, part: str) -> tuple[Path, Path]:
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        images, labels = (self._find(name) for name in names)
        return images, labels

    def _find(self, name: str) -> Path:
        return find_file(self.task.name, self.data, self.folders, (name, f"{name}.gz"))


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Fashion-MNIST: clothes in MNIST's format, and under the same file names.

    So that MNIST is not taken for it, its files are looked for in a folder that is called ``fashion...`` itself, or in
    ``fashion-mnist`` or ``FashionMNIST/raw`` below the data folder.

    Parameters
    ----------
    data : Path, optional
        The folder with the files.
    """

    task = Task(name="fashion-mnist", form=Vectors(16), max_tokens=64, classes=10, labels=CLOTHES)
    folders = ("fashion-mnist", "fashion_mnist", "fashion", "FashionMNIST/raw")

    def _find(self, name: str) -> Path:
        named = self.data is not None and "fashion" in self.data.name.lower()
        folders = ("", *self.folders) if named else self.folders
        return find_file(self.task.name, self.data, folders, (name, f"{name}.gz"))
