"""The units of an input layer for pictures: whitened patches of training pictures, drawn without labels.

As in Coates, Ng and Lee (2011), a window of a picture is centred, divided by its standard deviation, and whitened;
the response of a unit is its product with a patch that was prepared in the same way. All of it, except for the
division, is linear, so that a unit is one matrix row, which reads windows as they are:

    u = (v - mean v) / sqrt(var v + noise)        a window v, contrast-normalised
    z = P (u - m)                                 whitened: m and P are the mean and the whitening matrix of windows
    w = z of a patch, divided by its norm
    response = gain * w'z = gain * (a'u - a'm),   a = P w

Half of the units read a smaller window in the middle of the window, because patterns have several sizes. Their
responses are computed in `convolutions.py`, with torch, which a readout that only stores units does not need.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.file_checks import check_arrays
from reservoir.random import generator
from reservoir.tasks.pictures import MARGIN, Picture, contrast_normalised

# Windows for the mean and the whitening matrix: two thousand for each of a hundred values, as for 6 x 6 pixels in
# colour, so that a covariance is known to 2%.
WHITENING_WINDOWS = 200_000
# Added to the eigenvalues of the covariance, whose mean is 1, so that the finest, noisy directions are not amplified.
LEAST_EIGENVALUE = 0.05
# Added to the variance of a window, as a share of the variance of pixels: 10 for bytes, as Coates et al. have it, of
# photographs with a standard deviation of 63. It keeps noise in uniform windows from being scaled up to contrast.
NOISE = 1 / 400
# Patches whose standard deviation is less than this share of that of all pixels show nothing but noise.
LEAST_CONTRAST = 1 / 8
UNITS = "patch-units"  # name of the arrays of an entry that hold its units
# Least divisors: pixels of uniform pictures have a variance of 0, and whitened patches without contrast a norm of 0.
LEAST_VARIANCE = 1e-12
LEAST_NORM = 1e-12
CANDIDATES = 4  # patches that are drawn for each unit, so that enough of them have contrast


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitsOfSize:
    """The units that read windows of one size, in mirrored pairs: the second half mirrors the first.

    Parameters
    ----------
    weights : array of shape (units, values)
        The weights ``a`` of contrast-normalised windows, whose values are ordered by place, then by channel; float32.
    offsets : array of shape (units,)
        The products ``a'm`` with the mean of these windows; float32.
    """

    weights: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchUnits:
    """The units of an input layer for windows of pictures; `draw_units` draws them.

    Parameters
    ----------
    large, small : UnitsOfSize
        The units that read whole windows, and those that read the middle of a window.
    noise : array of shape (1,)
        What is added to the variance of a window; float32.
    """

    large: UnitsOfSize
    small: UnitsOfSize
    noise: np.ndarray

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name; `from_arrays` is the inverse."""
        sizes = {"large": self.large, "small": self.small}
        of_sizes = {
            f"{size}.{name}": array for size, units in sizes.items() for name, array in vars(units).items()
        }
        return of_sizes | {"noise": self.noise}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "PatchUnits":
        """Build units from the arrays of `to_arrays`; raise `ValueError` if they do not fit together."""
        shapes: dict[str, tuple[int, ...]] = {"noise": (1,)}
        for size in ("large", "small"):
            units, values = arrays[f"{size}.weights"].shape
            shapes |= {f"{size}.weights": (units, values), f"{size}.offsets": (units,)}
        check_arrays(arrays, shapes)
        large, small = (
            UnitsOfSize(weights=arrays[f"{size}.weights"], offsets=arrays[f"{size}.offsets"])
            for size in ("large", "small")
        )
        return cls(large=large, small=small, noise=arrays["noise"])


def draw_units(pictures: np.ndarray, picture: Picture, units: int, seed: int) -> PatchUnits:
    """Return units drawn from training pictures (rows, side, side, channels) as the model reads them, in float32.

    Parameters
    ----------
    pictures : array of shape (rows, side, side, channels)
        The training pictures. Their labels have no part in it.
    picture : Picture
        The sizes of the pictures and of their windows.
    units : int
        The number of units, a multiple of 4: of two sizes, in pairs.
    seed : int
        The seed of the choice of windows and patches.
    """
    if units % 4:
        raise InputError(
            f"--input patches: {units} units are not pairs of two sizes",
            "use a model whose width is a multiple of 4",
        )
    variance = max(float(pictures.var()), LEAST_VARIANCE)
    # Half of the units for each size of windows, which have a draw of their own.
    large, small = (
        _draw_units_of_size(
            pictures, window, units // 2, variance, generator(seed, f"patches of {window} pixels")
        )
        for window in (picture.window, picture.inner_window)
    )
    return PatchUnits(large=large, small=small, noise=np.array([NOISE * variance], np.float32))


def _draw_units_of_size(
    pictures: np.ndarray, window: int, units: int, variance: float, draw: np.random.Generator
) -> UnitsOfSize:
    """Return a number of ``units`` for windows of ``window`` pixels a side.

    The pixels of the ``pictures`` (rows, side, side, channels) have this ``variance``.
    """
    noise = NOISE * variance
    mirror = mirrored_places(window, pictures.shape[3])
    # The mean m and the whitening matrix P, from windows anywhere in the pictures and their margins, as in the model.
    windows = _windows_at_random(framed(pictures), WHITENING_WINDOWS, window, draw)
    mean, covariance = _mirrored_moments(windows, noise, mirror)
    whitening = _whitening_matrix(covariance)
    # Half of the units are patches, the others their mirror images: w = P (u - m), divided by its norm, and a = P w.
    # Rows are multiplied from the right, because P is symmetric.
    patches = _draw_patches(pictures, units // 2, window, variance, draw)
    patches = np.concatenate([patches, patches[:, mirror]])
    whitened = (contrast_normalised(patches, noise) - mean) @ whitening
    norms = np.linalg.norm(whitened, axis=1, keepdims=True)
    weights = (whitened / np.maximum(norms, LEAST_NORM)) @ whitening
    return UnitsOfSize(weights=weights.astype(np.float32), offsets=(weights @ mean).astype(np.float32))


def _mirrored_moments(
    windows: np.ndarray, noise: float, mirror: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (values,) and the covariance (values, values) of contrast-normalised windows and mirror images.

    ``windows`` are (count, values), and ``mirror`` (values,) has the places from which a mirror image takes its values.
    With such moments, mirroring a whitened window gives the same as whitening the mirrored window.
    """
    normalised = contrast_normalised(windows, noise).astype(np.float64)
    mean = normalised.mean(axis=0)
    # Windows and mirror images are each centred by their own mean. With the mean of both, the covariance would also
    # contain the difference of the two means, which is no variance within either.
    normalised -= mean
    covariance = normalised.T @ normalised / len(normalised)
    # The moments of the mirror images are those of the windows, with their values in the mirrored order.
    mirrored_covariance = covariance[np.ix_(mirror, mirror)]
    return (mean + mean[mirror]) / 2, (covariance + mirrored_covariance) / 2


def _whitening_matrix(covariance: np.ndarray) -> np.ndarray:
    """Return the matrix (values, values) that whitens centred windows with this covariance.

    With eigenvalues l, of mean s, and vectors V of the covariance, it is

        P = V (l / s + LEAST_EIGENVALUE)^-1/2 V' / sqrt s .
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    mean = max(eigenvalues.mean(), LEAST_VARIANCE)
    relative = np.maximum(eigenvalues / mean, 0)  # l / s; rounding errors can make some negative
    roots = np.sqrt(relative + LEAST_EIGENVALUE) * math.sqrt(mean)
    return (vectors / roots) @ vectors.T


def _draw_patches(
    pictures: np.ndarray, count: int, window: int, variance: float, draw: np.random.Generator
) -> np.ndarray:
    """Return ``count`` patches (count, values) from inside the pictures; those with contrast are preferred.

    The pixels of the pictures have this ``variance``.
    """
    candidates = _windows_at_random(pictures, CANDIDATES * count, window, draw)
    has_no_contrast = candidates.std(axis=1) < LEAST_CONTRAST * math.sqrt(variance)
    # Candidates with contrast come first, in the order in which they were drawn.
    order = np.argsort(has_no_contrast, kind="stable")
    return candidates[order[:count]]


def framed(pictures: np.ndarray) -> np.ndarray:
    """Return pictures (rows, side, side, channels) with a margin that repeats the outermost pixels."""
    margins = (MARGIN, MARGIN)
    return np.pad(pictures, ((0, 0), margins, margins, (0, 0)), mode="edge")


def mirrored_places(window: int, channels: int) -> np.ndarray:
    """Return the place in a window, (values,), from which each value of its mirror image comes (left is right)."""
    return np.arange(window**2 * channels).reshape(window, window, channels)[:, ::-1].ravel()


def _windows_at_random(
    pictures: np.ndarray, count: int, window: int, draw: np.random.Generator
) -> np.ndarray:
    """Return ``count`` windows (count, values), ``window`` pixels a side, at random places of random pictures."""
    pictures_count, side = pictures.shape[:2]
    picture = draw.integers(0, pictures_count, count)
    top, left = draw.integers(0, side - window + 1, (2, count))  # the first pixel of each window
    steps = np.arange(window)
    # The three indices have the shape (count, window, window) together; the channels follow.
    values = pictures[
        picture[:, None, None],
        top[:, None, None] + steps[:, None],
        left[:, None, None] + steps,
    ]
    return values.reshape(count, -1)
