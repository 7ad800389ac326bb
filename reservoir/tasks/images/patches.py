"""Patches of images as tokens."""

from __future__ import annotations

import numpy as np

from reservoir.tasks.source import classes_of, full_lengths
from reservoir.tasks.task import Split


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
