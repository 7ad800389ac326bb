"""Patches of images as tokens, and augmented views of images."""

from __future__ import annotations

import numpy as np

from reservoir.tasks.rows import row_hash
from reservoir.tasks.source import classes_of, full_lengths
from reservoir.tasks.task import Split

PADDING = 4
"""Pixels of black around an image that a crop may reach into."""

MOST_DEGREES = 20.0

BLOCK = 512
"""Images worked on at once, so that the index arrays stay in the processor's cache."""


def patches(images: np.ndarray, size: int) -> np.ndarray:
    """Cut images (rows, height, width[, channels]) into (rows, tokens, size**2 * channels), channels fastest."""
    rows, height, width = images.shape[:3]
    grid = images.reshape(rows, height // size, size, width // size, size, -1)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(rows, (height // size) * (width // size), -1)


def joined(tokens: np.ndarray, side: int, size: int) -> np.ndarray:
    """Return the square images (rows, side, side, channels) that `patches` cut; its inverse."""
    rows, grid = len(tokens), side // size
    images = tokens.reshape(rows, grid, grid, size, size, -1).transpose(0, 1, 3, 2, 4, 5)
    return images.reshape(rows, side, side, -1)


def image_split(x: np.ndarray, labels: np.ndarray) -> Split:
    """Return sequences that all have the full length, with one class each."""
    return Split(x=x, y=classes_of(labels), lengths=full_lengths(x))


def augmented(images: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
    """Return augmented view number ``view``, from 1, of images (rows, height, width, channels), in their type.

    A crop of the original size out of the image with a black margin, a flip in half of the cases, and a rotation by at
    most 20 degrees about the centre; new pixels take the nearest old one, or black. Which crop, flip and angle follows
    from the row number and the view alone.
    """
    views = [
        _transformed(images[lo : lo + BLOCK], row_hash(rows[lo : lo + BLOCK], seed=view))
        for lo in range(0, len(images), BLOCK)
    ]
    return np.concatenate(views) if views else images


def _transformed(images: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Return images transformed by 64 random bits each."""
    rows, height, width, channels = images.shape
    steps = np.uint64(2 * PADDING + 1)
    down, right = ((_bits(chance, start, 16) % steps).astype(np.int32) - PADDING for start in (0, 16))
    flipped = _bits(chance, 32, 1).astype(bool)
    angle = np.deg2rad(MOST_DEGREES * (_bits(chance, 33, 31) / 2**30 - 1)).astype(np.float32)
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
