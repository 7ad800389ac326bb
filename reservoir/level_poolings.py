"""Poolings of one-hot vectors, such as those of ``--input counter``: counts, also by the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir.errors import InputError
from reservoir.pooling_base import Pooling, side_by_side

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates


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
        if self.number > width:
            raise InputError(
                f"pooling {self.name}: the layer has {width:,} channels", "use a smaller number"
            )
        # The sum and the maximum of each channel, alone and times each of the K channels of the first token.
        return 1, 2 * width * (1 + self.number)

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        values = states.filled(0.0)
        both = torch.cat([values.sum(dim=1), states.filled(float("-inf")).amax(dim=1)], dim=1)
        first = states.values[:, 0, : self.number]
        products = first[:, :, None] * both[:, None, :]
        return side_by_side(torch.cat([both[:, None, :], products], dim=1))
