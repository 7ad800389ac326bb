"""Convolutions of whole rows, instead of input layers that read tokens: random kernels, and patches as units.

`patch_units.py` draws these units: whitened patches of training pictures.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.errors import InputError
from reservoir.inputs.patch_units import PatchUnits
from reservoir.random import generator
from reservoir.tasks.pictures import MARGIN, Picture
from reservoir.tasks.windows import Windows, row_forms

MAX_CHANNELS = 9
"""Most channels that a kernel with a random subset of them reads, as in MiniRocket (Dempster et al. 2021)."""


@dataclass(frozen=True)
class KernelBank:
    """Kernels of a `KernelConvolution` that stand side by side: those of one dilation and one form of the values."""

    dilation: int
    form: int  # number of one of the row's `row_forms`
    begin: int  # number of the first kernel
    end: int  # number after the last kernel


class KernelConvolution(nn.Module):
    """Random kernels that read a row directly, instead of an input layer that reads its windows.

    A kernel has ``windows.patch`` taps for each channel, at one dilation and in one of the row's
    `row_forms`. Its Gaussian weights sum to zero over the taps of a channel, as
    in ROCKET (Dempster et al. 2020). Kernels of one dilation and form stand side by
    side, in groups of `GROUP_SIZE`. Dilations and forms have equal shares of the groups, up to one group.

    Parameters
    ----------
    windows : Windows
        The windows whose products with the kernels are computed.
    channels : int
        The channels of a row, or the number of symbols.
    width : int
        The number of kernels, a multiple of `GROUP_SIZE`.
    seed : int
        The seed of the weights.
    gain : float
        The norm of a kernel.
    channel_subsets : bool
        Whether each kernel reads a random subset of the channels (see `random_subsets`) instead of all.
    """

    taps: Tensor  # weights of the kernels, (width, channels, windows.patch)

    def __init__(
        self,
        windows: Windows,
        channels: int,
        width: int,
        seed: int,
        gain: float,
        *,
        channel_subsets: bool = False,
    ) -> None:
        super().__init__()
        weights = generator(seed, "input").standard_normal((width, channels, windows.patch))
        if windows.patch > 1:  # a single tap would become zero
            weights -= weights.mean(axis=2, keepdims=True)
        if channel_subsets:
            weights *= random_subsets(channels, width, seed)[:, :, None]
        weights *= gain / np.linalg.norm(weights, axis=(1, 2), keepdims=True)
        self.windows, self.channels = windows, channels
        self.banks = tuple(_banks(windows, width))
        self.register_buffer("taps", torch.from_numpy(weights.astype(np.float32)))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the responses (rows, windows, width) to rows (rows, values, channels), and each row's window count.

        Rows of symbols are (rows, values) of integers. The responses after the last window of a row are arbitrary.
        ``lengths`` (rows,) counts the values of each row.
        """
        windows = self.windows
        if windows.symbols:
            x = torch.eye(windows.symbols, device=x.device)[x.long()]  # (rows, values, channels)
        x = row_forms(x, lengths, windows.normalise)  # (rows, values, forms * channels)
        # Zeros stand in for padding, and for values before and after a row that windows reach.
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        before, after = windows.margins
        # (rows, forms * channels, before + values + after)
        x = nn.functional.pad(x.masked_fill(~inside[:, :, None], 0).transpose(1, 2), (before, after))
        # The number of windows of the longest row.
        most_windows = (x.shape[2] - before - after - windows.reach) // windows.stride + 1
        # Distance from the first window's start to the last's, plus 1.
        start_range = (most_windows - 1) * windows.stride + 1
        # (rows, width, windows); `len(x)` would fix the batch of an export
        responses = x.new_empty(x.shape[0], len(self.taps), most_windows)
        # The responses of a bank are a product with one shifted copy of the row per tap; torch's convolution takes
        # several times as long.
        for bank in self.banks:
            # The channels of the bank's form, (rows, channels, values).
            values = x[:, bank.form * self.channels : (bank.form + 1) * self.channels]
            # For each tap, the value that it reads in each window: (rows, channels, windows).
            starts = [before + offset for offset in windows.offsets_of(bank.dilation)]
            shifted = [values[:, :, start : start + start_range : windows.stride] for start in starts]
            # (rows, kernels of the bank, channels * taps)
            taps = self.taps[bank.begin : bank.end].flatten(1).expand(x.shape[0], -1, -1)
            # (rows, channels * taps, windows)
            values_at_taps = torch.stack(shifted, dim=2).flatten(1, 2)
            if torch.compiler.is_compiling():
                responses[:, bank.begin : bank.end] = taps @ values_at_taps
            else:  # the product is written to its place without a copy
                torch.bmm(taps, values_at_taps, out=responses[:, bank.begin : bank.end])
        return responses.transpose(1, 2), (lengths - windows.reach) // windows.stride + 1


def random_subsets(channels: int, width: int, seed: int) -> np.ndarray:
    """Return which of the ``channels`` each of ``width`` kernels reads, (width, channels) of bool, as in MiniRocket.

    The number of a kernel's channels is 2 to the power of a uniform number, rounded down, so most kernels read few.
    """
    draw = generator(seed, "channels")
    most = min(channels, MAX_CHANNELS)
    counts = np.exp2(draw.uniform(0, np.log2(most + 1), width)).astype(int)
    # A kernel reads the first channels in a random order of its own. Sorting twice gives the rank of each channel.
    order = draw.random((width, channels)).argsort(axis=1)
    rank_of_channel = order.argsort(axis=1)
    return rank_of_channel < counts[:, None]


def _banks(windows: Windows, width: int) -> Iterator[KernelBank]:
    """Yield the banks of ``width`` kernels: all dilations of the first form, then those of the next."""
    combinations = [(dilation, form) for form in range(windows.forms) for dilation in windows.dilations]
    # Every bank has the same number of groups of kernels, and the first ones get the groups that are left over.
    groups, left_over = divmod(width // GROUP_SIZE, len(combinations))
    begin = 0
    for number, (dilation, form) in enumerate(combinations):
        groups_of_bank = groups + 1 if number < left_over else groups
        end = begin + GROUP_SIZE * groups_of_bank
        if groups_of_bank:  # with few groups, the last banks have none
            yield KernelBank(dilation, form, begin, end)
        begin = end


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
        # `Tensor.var` gives the same, but adds one number at a time, which took as long as the products below.
        variance = (values - values.mean(dim=2, keepdim=True)).square_().mean(dim=2, keepdim=True)
        deviation = (variance + self.noise).sqrt()
        # The weights are centred, so the mean of a window does not change its product with them, and is not subtracted.
        return (values / deviation) @ weights - offsets
