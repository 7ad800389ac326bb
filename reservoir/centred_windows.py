"""Statistics of the values in a window around every token, for labels of every token.

Each costs the same for every width of the window, or grows with its logarithm, so that a recording of
many steps takes time and memory in proportion to its length.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

# A variance below this share of that of its sequence is a rounding error: sums of 100,000 values have 11 exact digits.
CONSTANT = 1e-10
FLOAT32 = 1e-7  # distance of neighbouring values, as a share of the values


class CentredWindows:
    """The values around every token of sequences, in windows that end where their sequence ends.

    The window of odd ``width`` around token t holds the values t - (width - 1) / 2 to t + (width - 1) / 2,
    without those that are outside the sequence. Results have the shape of the values, and are arbitrary
    at padding.

    Parameters
    ----------
    values : Tensor
        Values (batch, tokens, channels), zero at padding.
    lengths : Tensor
        The number of real tokens of each sequence, (batch,) of int64.
    """

    def __init__(self, values: Tensor, lengths: Tensor) -> None:
        self._lengths = lengths
        self._positions = torch.arange(values.shape[1], device=values.device)  # (tokens,)
        self._is_real = (self._positions < lengths[:, None])[:, :, None]  # (batch, tokens, 1)
        # The sums of long sequences need float64. Squares of centred values keep the digits of their differences.
        # A cumulative sum adds one value at a time, so that the zeros at padding do not change a bit of it.
        exact = values.double()
        # The mean of each sequence, (batch, 1, channels).
        self._mean = exact.cumsum(1)[:, -1:] / lengths[:, None, None]
        self._centred = (exact - self._mean).masked_fill(~self._is_real, 0.0)

    def mean(self, width: int) -> Tensor:
        """Return the mean of the values in the window around each token, float64."""
        return self._mean + self._centred_mean(width)

    def deviation(self, width: int) -> Tensor:
        """Return the standard deviation of the values in the window around each token, float64; 0 for constants."""
        # The variance is the mean of the squares less the square of the mean. If the values are constant, only rounding
        # errors are left of it, and are set to 0.
        mean_of_squares = self._sums(self._sums_of_squares, width) / self._counts(width)
        variance = mean_of_squares - self._centred_mean(width).square()
        return torch.where(variance > self._least_variance, variance, 0.0).sqrt()

    def maximum(self, width: int) -> Tensor:
        """Return the largest value in the window around each token, float64."""
        half = min(width // 2, len(self._positions))  # a wider window holds no further values
        width = 2 * half + 1
        # Minus infinity stands for padding, and for the values before and after a sequence that windows reach.
        values = self._centred.masked_fill(~self._is_real, float("-inf"))
        largest = pad(values, (0, 0, half, half), value=float("-inf"))
        # ``largest`` holds at place i the largest of the values i to i + span - 1. Two spans of one length make one
        # of twice the length, and at last two that overlap make the width.
        span = 1
        while span < width:
            step = min(span, width - span)
            largest = torch.maximum(largest[:, :-step], largest[:, step:])
            span += step
        return self._mean + largest

    def minimum(self, width: int) -> Tensor:
        """Return the smallest value in the window around each token, float64."""
        return -self._negative.maximum(width)

    @cached_property
    def _negative(self) -> "CentredWindows":
        """The windows of the values with the opposite sign."""
        values = (-self._mean - self._centred).masked_fill(~self._is_real, 0.0)
        return CentredWindows(values, self._lengths)

    def _centred_mean(self, width: int) -> Tensor:
        """Return the mean of the centred values in the window around each token."""
        return self._sums(self._sums_of_values, width) / self._counts(width)

    @cached_property
    def _sums_of_values(self) -> Tensor:
        """The sums of the first n centred values, for n from 0, (batch, tokens + 1, channels)."""
        return pad(self._centred.cumsum(1), (0, 0, 1, 0))

    @cached_property
    def _sums_of_squares(self) -> Tensor:
        """The sums of the first n squares of centred values, for n from 0, (batch, tokens + 1, channels)."""
        return pad(self._centred.square().cumsum(1), (0, 0, 1, 0))

    @cached_property
    def _least_variance(self) -> Tensor:
        """The largest variance that rounding errors alone can give, for each channel of each sequence."""
        # Values are rounded to float32, and sums of their squares to float64.
        values = (self._mean + self._centred).masked_fill(~self._is_real, 0.0)
        resolution = FLOAT32 * values.abs().amax(1, keepdim=True)
        variance_of_sequence = self._sums_of_squares[:, -1:] / self._lengths[:, None, None]
        return torch.maximum(resolution.square(), CONSTANT * variance_of_sequence)

    def _sums(self, first_sums: Tensor, width: int) -> Tensor:
        """Return the sum over the window around each token, (batch, tokens, channels).

        ``first_sums`` (batch, tokens + 1, channels) are the sums of the first n values, for n from 0.
        """
        half = width // 2
        tokens = first_sums.shape[1] - 1
        begin = (self._positions - half).clamp(min=0)
        end = (self._positions + half + 1).clamp(max=tokens)
        return first_sums.index_select(1, end) - first_sums.index_select(1, begin)

    def _counts(self, width: int) -> Tensor:
        """Return the number of values in the window around each token, (batch, tokens, 1); arbitrary at padding."""
        half = width // 2
        begin = (self._positions - half).clamp(min=0)
        end = torch.minimum(self._positions + half + 1, self._lengths[:, None])
        return (end - begin).clamp(min=1)[:, :, None]  # at padding it is a divisor, too
