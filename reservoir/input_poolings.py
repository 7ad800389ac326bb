"""Poolings for two input layers without a transformer: ``--input patches`` and ``--input counter``.

The units of patches respond to pictures. Their poolings measure how far the hidden states exceed a threshold, in both
directions, in cells of the picture. A linear readout of means sees only linear functions of the picture; the mean
excess over a threshold is the mean of a rectified unit, and keeps how much of a pattern there is, apart from how much
of its opposite. The counter yields one-hot vectors, whose pooling counts them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reservoir.errors import InputError
from reservoir.pooling_base import Pooling, require_full, side_by_side

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates

# In units of ``--input patches``, whose responses to whitened windows have a standard deviation of about 1: a window
# then exceeds the threshold of a unit if it resembles the unit's patch, in either sign, more than most windows do.
THRESHOLD = 1.0


class Excess(Pooling):
    """Root of the mean excess over a threshold, in both directions, in each of K x K cells of a square picture.

    The features of a hidden state h are the roots of the means of max(h - t, 0), then those of max(-h - t, 0), over
    each cell, t being `THRESHOLD`. Roots make rare and frequent patterns comparable: they added 1.7 points on
    CIFAR-10 (docs/log.md). Cells share the places on their borders in proportion to the area, so that the cells of
    a mirrored picture are those of the picture, mirrored.
    """

    pattern = "excessK"
    note = "how far both signs exceed a threshold, in K x K cells"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of two features per cell and channel; raise `InputError` if the tokens are no such picture."""
        side = math.isqrt(max_tokens)
        is_square = side * side == max_tokens
        if not is_square or side < self.number:
            raise InputError(
                f"pooling {self.name}: {max_tokens:,} tokens are not a square picture of at least {self.number} x "
                f"{self.number} places",
                "use another pooling",
            )
        return 1, 2 * self.number**2 * width

    def of(self, states: HiddenStates) -> Tensor:
        """Return the roots, (batch, 1, 2 * K * K * width), all cells of the positive sign first."""
        return side_by_side(self.mean_excess(states).sqrt().flatten(1, 3))

    def mean_excess(self, states: HiddenStates) -> Tensor:
        """Return the mean excess (batch, 2 signs, K rows, K columns, width) of each cell."""
        import torch

        require_full(self.name, states)
        cells = states.constant(_cell_weights, self.number, math.isqrt(states.values.shape[1]))
        # max(h - t, 0) = max(h, t) - t, and max(-h - t, 0) = -t - min(h, -t): one pass over the values for each sign,
        # and a product with the weights of the cells, which sum to 1.
        above = cells @ states.values.clamp(min=THRESHOLD) - THRESHOLD
        below = -THRESHOLD - cells @ states.values.clamp(max=-THRESHOLD)
        # Rounding errors may be negative where nothing exceeds the threshold.
        both = torch.stack([above, below], dim=1).clamp(min=0)
        return both.unflatten(2, (self.number, self.number))


def _cell_weights(number: int, side: int) -> list[list[float]]:
    """Return the weight of each place of a picture in the mean over each cell, (number ** 2 cells, side ** 2 places).

    The weights of a cell sum to 1.
    """
    import numpy as np  # the help of every command lists the poolings, and needs no arrays

    # Along a line of K cells, cell i reaches from i side / K to (i + 1) side / K, and place p from p to p + 1. Their
    # overlap, divided by the length side / K of a cell, is the weight (K, side). Computed by NumPy, because
    # torch.export would trace operations of torch, and each number that is taken from their result.
    places = np.arange(side, dtype=np.float32)
    edges = np.arange(number + 1, dtype=np.float32) * np.float32(side) / np.float32(number)
    begin = np.maximum(edges[:-1, None], places[None])
    end = np.minimum(edges[1:, None], places[None] + 1)
    line_weights = (end - begin).clip(min=0) * np.float32(number) / np.float32(side)
    # The weight in a cell of the picture is the product of those along rows and along columns.
    return np.kron(line_weights, line_weights).tolist()


class Mirrored(Excess):
    """The features of ``excessK``, with the mean over a picture and its mirror image under the root.

    The units must stand in mirrored pairs, the second half of the channels being the mirror images of the first, as
    ``--input patches`` draws them. A unit then responds to the mirrored picture as its partner does to the picture,
    in the mirrored cell, so nothing is computed twice. There are half as many features as of ``excessK``.
    """

    pattern = "mirroredK"
    note = "excessK of a picture and its mirror image, for --input patches"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of half the features of ``excessK``; raise `InputError` if the channels are not pairs."""
        if width % 2:
            raise InputError(f"pooling {self.name}: {width:,} channels are not pairs", "use an even width")
        tokens, features = super().shape(width, max_tokens, readout_tokens)
        return tokens, features // 2

    def of(self, states: HiddenStates) -> Tensor:
        """Return the roots, (batch, 1, K * K * width), all cells of the positive sign first."""
        # A channel responds in the mirrored picture as its partner, in the second half of the channels (axis 4), does
        # in the picture, in mirrored columns of cells (axis 3).
        excess, excess_of_partner = self.mean_excess(states).chunk(2, dim=4)
        mean = (excess + excess_of_partner.flip(3)) / 2
        return side_by_side(mean.sqrt().flatten(1, 3))


class Counts(Pooling):
    """Sum and maximum of each channel over all real tokens, then their products with K channels of the first token.

    For one-hot vectors the sum is the count of a symbol, and the maximum says whether it occurs. If the first token
    decides what the others mean, as the outermost operator of an expression does, a linear readout needs the counts
    of each first token apart: the products with its first K channels, which are 1 for one of K symbols.
    """

    pattern = "countsK"
    note = "sums and maxima, also by the first K channels of the first token"
    needs_float32 = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of all sums, maxima and products; raise `InputError` if there are fewer than K channels."""
        if self.number > width:
            raise InputError(
                f"pooling {self.name}: the layer has {width:,} channels", "use a smaller number"
            )
        # The sum and the maximum of each channel, alone and times each of the K channels of the first token.
        return 1, 2 * width * (1 + self.number)

    def of(self, states: HiddenStates) -> Tensor:
        """Return the features, (batch, 1, 2 * width * (1 + K)): sums, maxima, then both for each of the K channels."""
        import torch

        sums = states.filled(0.0).sum(dim=1)
        maxima = states.filled(float("-inf")).amax(dim=1)
        sums_and_maxima = torch.cat([sums, maxima], dim=1)[:, None]  # (batch, 1, 2 * width)
        first_token = states.values[:, 0, : self.number, None]  # (batch, K, 1)
        products = first_token * sums_and_maxima
        return side_by_side(torch.cat([sums_and_maxima, products], dim=1))
