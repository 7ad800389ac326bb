"""The input layer for pictures whose units are whitened patches of training pictures (`patch_units.py`)."""

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.inputs.patch_units import PatchUnits
from reservoir.tasks.pictures import MARGIN, Picture


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

    # Of the units for large and small windows, times ``gain``: weights (values, units) and offsets (units,).
    weights_large: Tensor
    weights_small: Tensor
    offsets_large: Tensor
    offsets_small: Tensor

    def __init__(self, units: PatchUnits, picture: Picture, gain: float) -> None:
        super().__init__()
        self.picture, self.noise = picture, float(units.noise[0])
        for name, units_of_size, window in (
            ("large", units.large, picture.window),
            ("small", units.small, picture.inner_window),
        ):
            values, expected = units_of_size.weights.shape[1], window**2 * picture.channels
            if values != expected:
                problem = f"--input patches: units of {values} values do not fit windows of {expected}"
                raise InputError(problem, "extract again")
            # The product of centred weights with a window is the same whether or not the window is centred. Centring
            # the weights once changes no response, because a contrast-normalised window has the mean 0.
            centred = units_of_size.weights - units_of_size.weights.mean(axis=1, keepdims=True)
            self.register_buffer(
                f"weights_{name}", torch.from_numpy(np.ascontiguousarray(gain * centred.T))
            )
            self.register_buffer(f"offsets_{name}", torch.from_numpy(gain * units_of_size.offsets))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the responses (rows, windows, units) to pictures, and each row's number of windows, (rows,).

        Pictures are given as tokens (rows, tokens, values), each a patch of pixels or a single one. ``lengths`` (rows,)
        only gives the shape and type of the numbers, because all pictures have one size.
        """
        picture = self.picture
        # Pictures from their tokens, with the channels first, as torch pads and unfolds them: tokens are (rows, grid,
        # grid, patch, patch, channels), and images (rows, channels, side, side).
        grid, patch = picture.side // picture.patch, picture.patch
        tokens = x.unflatten(1, (grid, grid)).unflatten(3, (patch, patch, picture.channels))
        images = tokens.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        images = nn.functional.pad(images, (MARGIN,) * 4, mode="replicate")
        windows = images.unfold(2, picture.window, picture.stride).unfold(3, picture.window, picture.stride)
        # The large windows and their middles, (rows, places, places, window, window, channels).
        windows = windows.permute(0, 2, 3, 4, 5, 1)
        margin = (picture.window - picture.inner_window) // 2
        middles = windows[:, :, :, margin : picture.window - margin, margin : picture.window - margin]
        of_large = self._responses(windows, self.weights_large, self.offsets_large)
        of_small = self._responses(middles, self.weights_small, self.offsets_small)
        # The second half of the units of a size mirrors the first. In this order, so does the second half of all units.
        large, mirrored_large = of_large.chunk(2, dim=2)
        small, mirrored_small = of_small.chunk(2, dim=2)
        responses = torch.cat([large, small, mirrored_large, mirrored_small], dim=2)
        return responses, torch.full_like(lengths, responses.shape[1])

    def _responses(self, windows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
        """Return the responses (rows, windows, units) of the units of one size.

        ``windows`` are (rows, places, places, window, window, channels), ``weights`` (values, units) and ``offsets``
        (units,).
        """
        values = windows.flatten(3).flatten(1, 2)
        deviation = (values.var(dim=2, correction=0, keepdim=True) + self.noise).sqrt()
        # The weights are centred, so the mean of a window does not change its product with them, and is not subtracted.
        return (values / deviation) @ weights - offsets
