"""An input layer for pictures whose units are whitened patches of training pictures, drawn without labels.

As in Coates, Ng and Lee (2011), a window of a picture is centred, divided by its standard deviation, and whitened;
the response of a unit is its product with a patch that was prepared in the same way. All of it, except for the
division, is linear, so that a unit is one matrix row, which reads windows as they are:

    u = (v - mean v) / sqrt(var v + noise)        a window v, contrast-normalised
    z = P (u - m)                                 whitened: m and P are the mean and the whitening matrix of windows
    w = z of a patch, divided by its norm
    response = gain * w'z = gain * (a'u - a'm),   a = P w
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.random import generator
from reservoir.records import check_arrays
from reservoir.tasks.patches import MARGIN
from reservoir.tasks.picture_windows import Picture

# Windows for the mean and the whitening matrix: two thousand for each of a hundred values, as for 6 x 6 pixels in
# colour, so that a covariance is known to 2%.
WHITENED = 200_000
# Added to the eigenvalues of the covariance, whose mean is 1, so that the finest, noisy directions are not amplified.
LEAST_EIGENVALUE = 0.05
# Added to the variance of a window, as a share of the variance of pixels: 10 for bytes, as Coates et al. have it, of
# photographs with a standard deviation of 63. It keeps noise in uniform windows from being scaled up to contrast.
NOISE = 1 / 400
# Patches with less than this share of the pixels' standard deviation show nothing but noise.
LEAST_CONTRAST = 1 / 8
UNITS = "patch-units"  # name of the arrays of an entry that hold its units
LEAST_VARIANCE = 1e-12  # of the pixels of uniform pictures, which would be divided by 0
CANDIDATES = 4  # patches that are drawn for each unit, so that enough of them have contrast


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchUnits:
    """The units of an input layer for windows of pictures, as arrays of float32; `draw_units` draws them.

    Parameters
    ----------
    weights : array of shape (units, values)
        The weights ``a`` of contrast-normalised windows, whose values are ordered by place, then by channel.
    offsets : array of shape (units,)
        The products ``a'm`` with the mean of these windows.
    noise : array of shape (1,)
        What is added to the variance of a window.
    """

    weights: np.ndarray
    offsets: np.ndarray
    noise: np.ndarray

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name; `from_arrays` is the inverse."""
        return dict(vars(self))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "PatchUnits":
        """Build units from the arrays of `to_arrays`; raise `ValueError` if they do not fit together."""
        units, values = arrays["weights"].shape
        check_arrays(arrays, {"weights": (units, values), "offsets": (units,), "noise": (1,)})
        return cls(**{name: arrays[name].astype(np.float32) for name in ("weights", "offsets", "noise")})


def draw_units(pictures: np.ndarray, window: int, units: int, seed: int) -> PatchUnits:
    """Return units drawn from training pictures, in mirrored pairs: the second half mirrors the first.

    Parameters
    ----------
    pictures : array of shape (rows, side, side, channels)
        Pictures as the model reads them, in float32.
    window : int
        The side of a window in pixels.
    units : int
        The number of units, an even number.
    seed : int
        The seed of the choice of windows and patches. Labels have no part in it.
    """
    if units % 2:
        raise InputError(f"--input patches: {units} units are not pairs", "use a model of an even width")
    draw = generator(seed, "patches")
    variance = max(float(pictures.var()), LEAST_VARIANCE)
    noise = np.float32(NOISE * variance)
    # The mean and the covariance of windows anywhere in the framed pictures, and of their mirror images. So the mirror
    # image of a whitened window is the whitened mirror image.
    windows = _windows_at_random(framed(pictures), WHITENED, window, draw)
    normalised = contrast_normalised(windows, noise).astype(np.float64)
    mirror = mirrored_places(window, pictures.shape[3])
    mean = normalised.mean(axis=0)
    covariance = (normalised - mean).T @ (normalised - mean) / len(normalised)
    mean = (mean + mean[mirror]) / 2
    covariance = (covariance + covariance[np.ix_(mirror, mirror)]) / 2
    # With eigenvalues l, of mean s, and vectors V of the covariance, P = V (l / s + LEAST_EIGENVALUE)^-1/2 V' / sqrt s.
    eigenvalues, vectors = np.linalg.eigh(covariance)
    average = max(eigenvalues.mean(), np.finfo(np.float64).tiny)
    roots = np.sqrt(np.maximum(eigenvalues / average, 0) + LEAST_EIGENVALUE) * math.sqrt(average)
    whitening = (vectors / roots) @ vectors.T
    # Patches lie inside the pictures. Those with contrast come first, in the order in which they were drawn.
    patches = _windows_at_random(pictures, CANDIDATES * units // 2, window, draw)
    is_flat = patches.std(axis=1) < LEAST_CONTRAST * math.sqrt(variance)
    patches = patches[np.argsort(is_flat, kind="stable")[: units // 2]]
    patches = np.concatenate([patches, patches[:, mirror]])
    whitened = (contrast_normalised(patches, noise) - mean) @ whitening
    norms = np.linalg.norm(whitened, axis=1, keepdims=True)
    weights = (whitened / np.maximum(norms, np.finfo(np.float32).tiny)) @ whitening
    return PatchUnits(
        weights=weights.astype(np.float32),
        offsets=(weights @ mean).astype(np.float32),
        noise=noise[None],
    )


def framed(pictures: np.ndarray) -> np.ndarray:
    """Return pictures (rows, side, side, channels) with a margin that repeats the outermost pixels."""
    margins = (MARGIN, MARGIN)
    return np.pad(pictures, ((0, 0), margins, margins, (0, 0)), mode="edge")


def contrast_normalised(windows: np.ndarray, noise: np.float32) -> np.ndarray:
    """Return windows (rows, values), each centred and divided by its standard deviation."""
    centred = windows - windows.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + noise)


def mirrored_places(window: int, channels: int) -> np.ndarray:
    """Return the places (values,) that the values of a window take from it when left and right are exchanged."""
    return np.arange(window**2 * channels).reshape(window, window, channels)[:, ::-1].ravel()


def _windows_at_random(
    pictures: np.ndarray, count: int, window: int, draw: np.random.Generator
) -> np.ndarray:
    """Return ``count`` windows (count, values) at random places of random pictures."""
    rows, side = pictures.shape[:2]
    row = draw.integers(0, rows, count)
    down, right = draw.integers(0, side - window + 1, (2, count))
    steps = np.arange(window)
    values = pictures[
        row[:, None, None],
        down[:, None, None] + steps[:, None],
        right[:, None, None] + steps,
    ]
    return values.reshape(count, -1)


class PatchConvolution(nn.Module):
    """The responses of `PatchUnits` to all windows of a picture, instead of an input layer that reads tokens.

    Parameters
    ----------
    units : PatchUnits
        The units.
    picture : Picture
        The pictures that the tokens of a task are, and their windows.
    gain : float
        The factor of the responses, which have a standard deviation of about 1 at the windows of training pictures.
    """

    weights: Tensor
    offsets: Tensor

    def __init__(self, units: PatchUnits, picture: Picture, gain: float) -> None:
        super().__init__()
        if units.weights.shape[1] != picture.window_values:
            raise InputError(
                f"--input patches: units of {units.weights.shape[1]} values do not fit windows of "
                f"{picture.window_values}",
                "extract again",
            )
        self.picture, self.noise = picture, float(units.noise[0])
        # A contrast-normalised window has the mean 0, so its weights may be centred; then the window need not be.
        centred = units.weights - units.weights.mean(axis=1, keepdims=True)
        self.register_buffer("weights", torch.from_numpy(np.ascontiguousarray(gain * centred.T)))
        self.register_buffer("offsets", torch.from_numpy(gain * units.offsets))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return responses (rows, windows, units) to pictures as tokens (rows, tokens, values), and their number."""
        picture = self.picture
        # Pictures from their tokens, with the channels first, as torch pads and unfolds them.
        grid, patch = picture.side // picture.patch, picture.patch
        tokens = x.unflatten(1, (grid, grid)).unflatten(3, (patch, patch, picture.channels))
        images = tokens.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        images = nn.functional.pad(images, (MARGIN,) * 4, mode="replicate")
        windows = images.unfold(2, picture.window, picture.stride).unfold(3, picture.window, picture.stride)
        # Values of a window by place, then by channel, as the units have them.
        windows = windows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        deviation = (windows.var(dim=2, correction=0, keepdim=True) + self.noise).sqrt()
        responses = (windows / deviation) @ self.weights
        responses -= self.offsets
        return responses, torch.full_like(lengths, responses.shape[1])
