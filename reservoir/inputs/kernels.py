"""Random kernels that read rows directly, where an input layer would read windows of the rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.random import generator
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
