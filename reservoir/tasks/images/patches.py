"""Patches of images as tokens, and augmented views of images."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from reservoir.errors import InputError
from reservoir.tasks.rows import row_hash
from reservoir.tasks.source import classes_of, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors

PADDING = 4  # width in pixels of the black border that a crop may include
MAX_DEGREES = 20.0

MARGIN = 2  # width in pixels of the border, a copy of the outermost pixels, that overlapping windows may include
LEVELS = 24  # stored levels per unit of whitened values
BLOCK = 512  # images worked on at once, so that the index arrays stay in the processor's cache


def patches(images: np.ndarray, size: int) -> np.ndarray:
    """Cut images (rows, height, width[, channels]) into (rows, tokens, size**2 * channels), channels fastest."""
    rows, height, width = images.shape[:3]
    grid = images.reshape(rows, height // size, size, width // size, size, -1)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(rows, (height // size) * (width // size), -1)


def joined(tokens: np.ndarray, side: int, size: int) -> np.ndarray:
    """Return square images (rows, side, side, channels) from their tokens; the inverse of `patches`."""
    rows, grid = len(tokens), side // size
    images = tokens.reshape(rows, grid, grid, size, size, -1).transpose(0, 1, 3, 2, 4, 5)
    return images.reshape(rows, side, side, -1)


@dataclass(frozen=True, kw_only=True)
class Windows2d:
    """Overlapping square windows of an image as tokens, contrast-normalised and whitened (Coates, Ng and Lee 2011).

    Each window is centred and divided by its standard deviation, then multiplied by the fixed matrix of `whitening`.
    Values are stored as bytes, ``128 + 24 * value``.
    """

    window: int  # side in pixels
    stride: int  # pixels from one window to the next, down and to the right

    def task(self, plain: Task, side: int, channels: int) -> Task:
        """Return the task of square images with these windows as tokens; refuse windows that do not fill the image."""
        steps, rest = divmod(side + 2 * MARGIN - self.window, max(self.stride, 1))
        if not (2 <= self.window <= side and 1 <= self.stride <= self.window) or rest:
            start = f"task {plain.name!r}: windows of {self.window} pixels with stride {self.stride} do not fill"
            raise InputError(f"{start} {side} + {2 * MARGIN} pixels; try window=6 and stride=2")
        parameters = {**plain.parameters, "window": self.window, "stride": self.stride}
        form = Vectors(self.window**2 * channels)
        return replace(plain, form=form, max_tokens=(steps + 1) ** 2, parameters=parameters)

    def scaling(self, dim: int) -> Scaling:
        """Return the map from stored bytes to whitened values."""
        return Scaling.constant(1 / LEVELS, dim, offset=128)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the whitened windows, bytes (rows, tokens, dim), of images (rows, side, side[, channels]) of bytes."""
        images = images.reshape(*images.shape[:3], -1)
        matrix = whitening(self.window, images.shape[3])
        blocks = [self._tokens(images[lo : lo + BLOCK], matrix) for lo in range(0, len(images), BLOCK)]
        return np.concatenate(blocks) if blocks else np.empty((0, 0, len(matrix)), np.uint8)

    def _tokens(self, images: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        margins = (MARGIN, MARGIN)
        framed = np.pad(images, ((0, 0), margins, margins, (0, 0)), mode="edge").astype(np.float32)
        windows = sliding_window_view(framed, (self.window, self.window), axis=(1, 2))[
            :, :: self.stride, :: self.stride
        ]
        values = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(images), -1, len(matrix))
        return np.clip(np.rint(contrast_normalised(values) @ matrix * LEVELS + 128), 0, 255).astype(np.uint8)


def contrast_normalised(windows: np.ndarray) -> np.ndarray:
    """Return windows (..., values) of bytes as floats, each centred and divided by its standard deviation."""
    centred = windows - windows.mean(-1, keepdims=True)
    # The 10 keeps noise in uniform windows from being scaled up to contrast.
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 10)


@cache
def whitening(window: int, channels: int) -> np.ndarray:
    """Return the symmetric whitening matrix (dim, dim) of windows, float32, for correlations as in photographs.

    The correlation of pixels at distance d is 0.95 ** d, and of colours 0.9; the mean of a window is projected out.
    Eigenvalues are scaled to mean 1, and 0.05 is added to each, so that the finest, noisy directions are not amplified.
    """
    places = np.stack(np.divmod(np.arange(window**2), window), 1)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    colours = np.full((channels, channels), 0.9) + 0.1 * np.eye(channels)
    dim = window**2 * channels
    centred = np.eye(dim) - 1 / dim
    eigenvalues, vectors = np.linalg.eigh(centred @ np.kron(0.95**distance, colours) @ centred)
    roots = np.sqrt(np.maximum(eigenvalues / eigenvalues.mean(), 0) + 0.05)
    return ((vectors / roots) @ vectors.T).astype(np.float32)


def image_split(x: np.ndarray, labels: np.ndarray) -> Split:
    """Return a split of sequences that all have the full length, with one class each."""
    return Split(x=x, y=classes_of(labels), lengths=full_lengths(x))


def augmented(images: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
    """Return augmented view number ``view``, from 1, of images (rows, height, width, channels), in their dtype.

    A view is a crop of the image with a black margin, flipped in half of the cases, and rotated by at most 20 degrees;
    each pixel takes the value of the nearest original pixel. Row number and view alone determine crop, flip and angle.
    """
    views = [
        _transformed(images[lo : lo + BLOCK], row_hash(rows[lo : lo + BLOCK], seed=view))
        for lo in range(0, len(images), BLOCK)
    ]
    return np.concatenate(views) if views else images


def _transformed(images: np.ndarray, chance: np.ndarray) -> np.ndarray:
    rows, height, width, channels = images.shape
    steps = np.uint64(2 * PADDING + 1)
    down, right = ((_bits(chance, start, 16) % steps).astype(np.int32) - PADDING for start in (0, 16))
    flipped = _bits(chance, 32, 1).astype(bool)
    angle = np.deg2rad(MAX_DEGREES * (_bits(chance, 33, 31) / 2**30 - 1)).astype(np.float32)
    # Each new pixel looks up an old one: backwards through the rotation, the flip and the crop.
    y, x = np.meshgrid(*(np.arange(n, dtype=np.float32) - (n - 1) / 2 for n in (height, width)), indexing="ij")
    cosine, sine = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    row = np.rint(cosine * y + sine * x + (height - 1) / 2).astype(np.int32)
    column = np.rint(cosine * x - sine * y + (width - 1) / 2).astype(np.int32)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    column = np.where(flipped[:, None, None], width - 1 - column, column)
    row, column = row + down[:, None, None], column + right[:, None, None]
    inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = np.where(inside, row * width + column, height * width)
    flat = np.concatenate(
        [images.reshape(rows, height * width, channels), np.zeros((rows, 1, channels), images.dtype)], 1
    )
    return np.take_along_axis(flat, place.reshape(rows, -1, 1), axis=1).reshape(images.shape)


def _bits(numbers: np.ndarray, start: int, count: int) -> np.ndarray:
    return (numbers >> np.uint64(start)) & np.uint64(2**count - 1)
