"""Patches of images as tokens, and augmented views of images."""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from reservoir.tasks.rows import row_hash

PADDING = 4  # width in pixels of the black border that a crop may include
MAX_DEGREES = 20.0  # largest angle of a rotation, to either side

# width in pixels of the border, a copy of the outermost pixels, that overlapping windows may include
MARGIN = 2
LEVELS = 24  # stored levels per unit of whitened values
BLOCK = 512  # images worked on at once, so that the index arrays stay in the processor's cache


def patches(images: np.ndarray, size: int) -> np.ndarray:
    """Cut images (rows, height, width[, channels]) into (rows, tokens, size**2 * channels), channels fastest."""
    rows, height, width = images.shape[:3]
    # Divide both sides, then bring the two axes of patches to the front: (rows, down, right, size, size, channels).
    grid = images.reshape(rows, height // size, size, width // size, size, -1).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(rows, (height // size) * (width // size), -1)


def joined(tokens: np.ndarray, side: int, size: int) -> np.ndarray:
    """Return square images (rows, side, side, channels) from their tokens; the inverse of `patches`."""
    rows = len(tokens)
    patches_along = side // size  # each side
    grid = tokens.reshape(rows, patches_along, patches_along, size, size, -1)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(rows, side, side, -1)


def whitened_windows(images: np.ndarray, window: int, stride: int) -> np.ndarray:
    """Return overlapping windows, bytes (rows, tokens, dim), of images (rows, side, side, channels) of bytes.

    As in Coates, Ng and Lee (2011), each window of ``window`` pixels a side is centred, divided by
    its standard deviation, and multiplied by the fixed matrix of `whitening`. Values are stored as
    bytes, ``128 + 24 * value``.
    """
    matrix = whitening(window, images.shape[3])
    margins = (MARGIN, MARGIN)
    tokens = []
    for lo in range(0, len(images), BLOCK):
        # Cut the windows of some images, whose edges are continued: (images, down, right, channels, window, window).
        block = images[lo : lo + BLOCK]
        framed = np.pad(block, ((0, 0), margins, margins, (0, 0)), mode="edge").astype(np.float32)
        windows = sliding_window_view(framed, (window, window), axis=(1, 2))[:, ::stride, ::stride]
        # Order the values of each window by pixel, then by channel, as the matrix has them.
        values = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(block), -1, len(matrix))
        levels = np.rint(contrast_normalised(values) @ matrix * LEVELS + 128)
        tokens.append(np.clip(levels, 0, 255).astype(np.uint8))
    return np.concatenate(tokens)


def contrast_normalised(windows: np.ndarray) -> np.ndarray:
    """Return windows (..., values) of bytes as floats, each centred and divided by its standard deviation."""
    centred = windows - windows.mean(-1, keepdims=True)
    # The 10 keeps noise in uniform windows from being scaled up to contrast.
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 10)


@cache
def whitening(window: int, channels: int) -> np.ndarray:
    """Return the symmetric whitening matrix (dim, dim) of windows, float32, for correlations as in photographs.

    The correlation of pixels at distance d is 0.95 ** d, and of colours 0.9; the mean of a window is
    projected out. Eigenvalues are scaled to mean 1, and 0.05 is added to each, so that the finest,
    noisy directions are not amplified.
    """
    # Covariance of the values of a window, (dim, dim): that of two pixels times that of two colours.
    places = np.stack(np.divmod(np.arange(window**2), window), 1)  # row and column of each pixel
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    colours = np.full((channels, channels), 0.9) + 0.1 * np.eye(channels)  # 1 on the diagonal
    covariance = np.kron(0.95**distance, colours)
    # Subtracting the mean of a window is a product with this matrix.
    dim = window**2 * channels
    centring = np.eye(dim) - 1 / dim
    # With eigenvalues l and vectors V of the covariance C without the mean, C^-1/2 = V l^-1/2 V'.
    eigenvalues, vectors = np.linalg.eigh(centring @ covariance @ centring)
    # Rounding may give eigenvalues below 0.
    roots = np.sqrt(np.maximum(eigenvalues / eigenvalues.mean(), 0) + 0.05)
    return ((vectors / roots) @ vectors.T).astype(np.float32)


def augmented(images: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
    """Return augmented view number ``view``, from 1, of images (rows, height, width, channels), in their dtype.

    A view is a crop of the image with a black margin, flipped in half of the cases, and rotated by at
    most 20 degrees; each pixel takes the value of the nearest original pixel. Row number and view
    alone determine crop, flip and angle.
    """
    transformed: list[np.ndarray] = []
    for lo in range(0, len(images), BLOCK):
        block = slice(lo, lo + BLOCK)
        random_bits = row_hash(rows[block], seed=view)
        transformed.append(_transformed(images[block], random_bits))
    return np.concatenate(transformed)


def _transformed(images: np.ndarray, random_bits: np.ndarray) -> np.ndarray:
    """Return images (rows, height, width, channels) cropped, flipped and rotated at random.

    ``random_bits`` (rows,) of uint64 decide for each image.
    """
    rows, height, width, channels = images.shape
    # Each decision has bits of its own: 16 for each shift of the crop, one for the flip, 31 for the angle.
    shifts = np.uint64(2 * PADDING + 1)  # how many there are, from -PADDING to PADDING
    down = (_bits(random_bits, 0, 16) % shifts).astype(np.int32) - PADDING
    right = (_bits(random_bits, 16, 16) % shifts).astype(np.int32) - PADDING
    is_flipped = _bits(random_bits, 32, 1).astype(bool)
    angle = np.deg2rad(MAX_DEGREES * (_bits(random_bits, 33, 31) / 2**30 - 1)).astype(np.float32)
    # Each new pixel looks up the row and the column of an old one, (rows, height, width), so the steps are undone in
    # their order from the last. First the rotation, around the centre of the image.
    y, x = np.meshgrid(
        *(np.arange(n, dtype=np.float32) - (n - 1) / 2 for n in (height, width)), indexing="ij"
    )
    cosine = np.cos(angle)[:, None, None]
    sine = np.sin(angle)[:, None, None]
    row = np.rint(cosine * y + sine * x + (height - 1) / 2).astype(np.int32)
    column = np.rint(cosine * x - sine * y + (width - 1) / 2).astype(np.int32)
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    # Then the flip and the crop.
    column = np.where(is_flipped[:, None, None], width - 1 - column, column)
    row = row + down[:, None, None]
    column = column + right[:, None, None]
    is_inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    # Pixels outside take the value of an additional black one, which stands at the end.
    old_pixel = np.where(is_inside, row * width + column, height * width)
    pixels = np.pad(images.reshape(rows, height * width, channels), ((0, 0), (0, 1), (0, 0)))
    return np.take_along_axis(pixels, old_pixel.reshape(rows, -1, 1), axis=1).reshape(images.shape)


def _bits(numbers: np.ndarray, start: int, count: int) -> np.ndarray:
    """Return ``count`` bits of each number from bit ``start`` on, counted from the lowest, as a number."""
    return (numbers >> np.uint64(start)) & np.uint64(2**count - 1)
