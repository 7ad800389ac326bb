"""Poolings: summaries of a layer's hidden states over the real tokens of each sequence.

Each pooling is one class, with its name, its shape, its computation, and how the pieces of a long text are
joined (`reservoir.pooling_base.Pooling`). To add one, write a class and put it into `_KINDS`; options, plan, cache
and readouts take it from there.
torch and NumPy are imported when a pooling computes, so that ``--help`` lists the poolings without waiting for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from reservoir.errors import InputError
from reservoir.input_poolings import Counts, Excess, Mirrored
from reservoir.pooling_base import Pooling, require_full, side_by_side, weighted_average
from reservoir.weighted_poolings import Assistant, AttentionPooling, Fading, LastPrompt, Span, Words

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates

MAX_TOKEN_FEATURES = 16_384  # moments of this many channels take 2 GB
MAX_WINDOWS_AROUND = 10  # the widest has 177,147 tokens
NARROWEST_WINDOW = 9  # values of the narrowest window around a token: as many as a kernel reads
WINDOW_FACTOR = 3  # how many times wider each window around a token is than the next narrower one
DEFAULT_WINDOWS = 4  # wider ones than 243 steps added nothing on recordings of 500 to 2,000 steps
# Smallest response of a kernel that competes, for kernels of norm 6 and values of variance 1. Where a row is
# constant, the responses are rounding errors, of which the largest would win by chance.
LEAST_RESPONSE = 1e-3
PIECE_VALUES = 2**17  # values of hidden states that some poolings read at once, 512 KB


class Last(Pooling):
    """The last ``readout_tokens`` real tokens."""

    pattern = "last"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        return readout_tokens, width

    def of(self, states: HiddenStates) -> Tensor:
        """Return the last real tokens of each sequence, (batch, readout_tokens, width)."""
        import torch

        count = states.readout_tokens

        def last_positions() -> Tensor:
            """Return the positions of these tokens, (batch, readout_tokens)."""
            first = states.lengths[:, None] - count
            return first + torch.arange(count, device=states.values.device)

        # All layers of a batch share the positions. `gather` takes an index for each channel.
        positions = states.real_tokens.shared(f"last{count}", last_positions)
        index = positions[:, :, None].expand(-1, -1, states.values.shape[2])
        return states.values.gather(1, index)


class Mean(Pooling):
    """The mean of all real tokens."""

    pattern = "mean"

    def of(self, states: HiddenStates) -> Tensor:
        return states.segment_means(1)


class Std(Pooling):
    """The standard deviation of each channel over all n real tokens, with division by n, not by n - 1."""

    pattern = "std"

    def of(self, states: HiddenStates) -> Tensor:
        """Return the standard deviations, (batch, 1, width)."""
        deviations = states.values - states.segment_means(1)
        squares = states.zero_at_padding(deviations).square_()
        return (squares.sum(dim=1) / states.lengths[:, None]).sqrt()[:, None]


class Min(Pooling):
    """The minimum of each channel over all real tokens."""

    pattern = "min"

    def of(self, states: HiddenStates) -> Tensor:
        """Return the minima, (batch, 1, width)."""
        if states.is_ordered:  # another pooling has sorted the values; the minimum has rank 0
            rank_of_minimum = (states.lengths * 0)[:, None]
            return states.ranked(rank_of_minimum)
        return states.filled(float("inf")).amin(dim=1)[:, None]

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the minima of whole texts from those of their pieces."""
        import numpy as np

        return np.minimum.reduceat(values, starts)


class Max(Pooling):
    """The maximum of each channel over all real tokens."""

    pattern = "max"

    def of(self, states: HiddenStates) -> Tensor:
        """Return the maxima, (batch, 1, width)."""
        if states.is_ordered:  # another pooling has sorted the values; the maximum of n has rank n - 1
            rank_of_maximum = (states.lengths - 1)[:, None]
            return states.ranked(rank_of_maximum)
        return states.filled(float("-inf")).amax(dim=1)[:, None]

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the maxima of whole texts from those of their pieces."""
        import numpy as np

        return np.maximum.reduceat(values, starts)


class First(Pooling):
    """The first token."""

    pattern = "first"

    def of(self, states: HiddenStates) -> Tensor:
        return states.values[:, :1].clone()


class ClassToken(First):
    """The class token, which models such as BERT put first."""

    pattern = "cls"
    needs_class_token = True


class Segments(Pooling):
    """The means of K equal segments, side by side."""

    pattern = "segmentsK"
    by_segment = True

    def of(self, states: HiddenStates) -> Tensor:
        return side_by_side(states.segment_means(self.number))


class Quantiles(Pooling):
    """For each channel the quantiles at (i + 1) / (K + 1) for i < K, interpolated, side by side."""

    pattern = "quantilesK"
    sorts = True

    def of(self, states: HiddenStates) -> Tensor:
        """Return the quantiles, (batch, 1, K * width), all channels of the lowest one first."""
        import torch

        # The rank of level (i + 1) / (K + 1) among n values is (i + 1) (n - 1) / (K + 1). Division of integers gives
        # its whole part and its fraction without rounding errors.
        lengths = states.lengths[:, None]
        numerators = torch.arange(1, self.number + 1, device=lengths.device)  # of the levels
        scaled_rank = (lengths - 1) * numerators  # (batch, K)
        lower_rank = scaled_rank // (self.number + 1)
        fraction = ((scaled_rank % (self.number + 1)).float() / (self.number + 1))[:, :, None]
        # Interpolate between the values of this rank and of the next one; the last value has no next one.
        upper_rank = torch.minimum(lower_rank + 1, lengths - 1)
        return side_by_side(torch.lerp(states.ranked(lower_rank), states.ranked(upper_rank), fraction))


class Shares(Pooling):
    """For each channel the shares of real tokens above each of the `share_levels`, side by side."""

    pattern = "sharesK"
    sorts = True
    needs_float32 = True

    def of(self, states: HiddenStates) -> Tensor:
        """Return the shares, (batch, 1, K * width), all channels of the lowest level first."""
        import torch

        lengths = states.lengths[:, None, None]
        if states.traced:  # one comparison per level needs no sorted values
            values = states.filled(float("-inf"))
            counts = [(values > level).float().sum(dim=1) for level in share_levels(self.number)]
            count_above = torch.stack(counts, dim=1)  # (batch, K, width)
        else:
            # Quantiles share the sorted values, which a binary search reads at a few places instead of all once per
            # level. It gives the number of values up to each level, (batch, width, K).
            ordered = states.ordered
            levels = states.constant(share_levels, self.number)
            levels_by_channel = levels.expand(*ordered.shape[:2], self.number).contiguous()
            count_up_to = torch.searchsorted(ordered, levels_by_channel, right=True)
            count_above = (lengths - count_up_to.transpose(1, 2)).float()
        return side_by_side(count_above / lengths)


class Compete(Pooling):
    """For groups of K neighbouring channels, how far each channel leads, and how often it is the lowest.

    At each token, the channel with the largest value of its group leads by this value, if it is positive, and
    the channel with the smallest value is the lowest, if it is negative; values within `LEAST_RESPONSE` of zero
    count as zero. The features are, for all channels, the square root of the mean of a channel's leads over all
    real tokens, then, for all channels, the square root of the share of tokens where it is the lowest. Roots make
    rare and frequent channels comparable. Hydra (Dempster, Schmidt and Webb 2023) has sums in the place of means.
    """

    pattern = "competeK"
    note = "in groups of K channels"
    needs_float32 = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of two features per channel; raise `InputError` if the channels are not groups of K."""
        if width % self.number:
            raise InputError(
                f"pooling {self.name}: {width:,} channels are not groups of {self.number}",
                "use a number that divides the width",
            )
        return 1, 2 * width

    def of(self, states: HiddenStates) -> Tensor:
        """Return the features, (batch, 1, 2 * width)."""
        import torch

        # (batch, 1, 1, tokens), as the extreme values of groups have it
        padding = None if states.padding is None else states.padding[:, None, None, :, 0]
        sums_of_pieces: list[Tensor] = []
        for piece in _pieces(states.values, states, self.number):
            groups = piece.unflatten(1, (-1, self.number))  # (batch, groups, K, tokens)
            largest = groups.amax(dim=2, keepdim=True)
            smallest = groups.amin(dim=2, keepdim=True)
            # At padding, which may hold any values, no channel leads and none is the lowest.
            has_no_lead = largest < LEAST_RESPONSE
            has_lowest = smallest < -LEAST_RESPONSE
            if padding is not None:
                has_no_lead = has_no_lead | padding
                has_lowest = has_lowest & ~padding
            leads = largest.masked_fill(has_no_lead, 0.0)
            # Leads, and tokens where a channel is the lowest, are summed over the tokens: (batch, 2, channels).
            sum_of_leads = _sum_where_equal(groups, largest, leads)
            lowest_tokens = _sum_where_equal(groups, smallest, has_lowest.float())
            sums_of_pieces.append(torch.stack([sum_of_leads.flatten(1), lowest_tokens.flatten(1)], dim=1))
        means = torch.cat(sums_of_pieces, dim=2) / states.lengths[:, None, None]
        return side_by_side(means.sqrt())

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the features of whole texts: the squares, which are means over tokens, are averaged."""
        import numpy as np

        return np.sqrt(weighted_average(np.square(values), counts, starts))


class Above(Pooling):
    """For each channel the shares of real tokens above K levels, side by side; see `channel_levels`."""

    pattern = "aboveK"
    note = "shares above K levels that differ by channel"
    needs_float32 = True

    def of(self, states: HiddenStates) -> Tensor:
        """Return the shares, (batch, 1, K * width), the first level of all channels first."""
        counts, _ = _above_levels(states, self.number)
        return side_by_side(counts / states.lengths[:, None, None])


class Places(Pooling):
    """For each channel the mean places of real tokens above K levels, side by side; see `channel_levels`.

    Places go from 0 at the start of a sequence to 1 at its end. Without tokens above a level, the place is 0.5.
    """

    pattern = "placesK"
    note = "mean places of tokens above K levels that differ by channel"

    def of(self, states: HiddenStates) -> Tensor:
        """Return the mean places, (batch, 1, K * width), the first level of all channels first."""
        import torch

        counts, sums = _above_levels(states, self.number)
        means = sums / counts.clamp(min=1)  # `where` computes both cases, and must not divide by 0
        return side_by_side(torch.where(counts > 0, means, 0.5))


ROUNDING = 1e-5
"""Values of `Sustained` closer to zero become zero. The responses of kernels to a stretch of one value, up to 9
standard deviations from the mean, are rounding errors smaller than this."""


class Sustained(Pooling):
    """For each channel the largest value that it sustains for 1, 4, 16, ... 4^(K-1) tokens, side by side.

    A value is sustained for n tokens if n neighbouring ones are at least as large. A sequence of fewer tokens
    sustains its minimum. Values within `ROUNDING` of zero become zero.
    """

    pattern = "sustainedK"
    note = "largest values over stretches of 1, 4, 16, ... tokens"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of K features per channel."""
        return 1, width * self.number

    def of(self, states: HiddenStates) -> Tensor:
        """Return the sustained values, (batch, 1, K * width), all channels of the shortest stretch first."""
        import torch

        # Stretches that are longer than every sequence are left out: those of the batch, or, in a traced graph, which
        # must work for all batches, those of the task.
        longest_sequence = states.max_tokens if states.traced else states.values.shape[1]
        all_stretches = _stretches(self.number)
        stretches = [stretch for stretch in all_stretches if stretch <= max(1, longest_sequence)]
        pieces = _pieces(states.filled(float("-inf")), states)
        sustained = torch.cat([_largest_minima(piece, stretches, states.traced) for piece in pieces], dim=2)
        # The minimum (batch, 1, width) replaces the value of a stretch that a sequence is too short for. Such a
        # sequence has fewer tokens than the longest stretch, so further tokens are not read.
        lowest = states.filled_start(all_stretches[-1], float("inf")).amin(dim=1)[:, None]
        is_long_enough = states.lengths[:, None] >= states.constant(_stretches, len(stretches))
        values = torch.where(is_long_enough[:, :, None], sustained, lowest)
        left_out = len(all_stretches) - len(stretches)
        values = torch.cat([values, lowest.expand(-1, left_out, -1)], dim=1)  # (batch, K, width)
        # In sparse series all training rows may have rounding errors here. Divided by the standard deviation of these,
        # another value of a new row would be enormous.
        return side_by_side(torch.where(values.abs() < ROUNDING, 0, values))


class Grid(Pooling):
    """Mean, standard deviation, maximum and minimum of each of K x K cells of a square image, by statistic."""

    pattern = "gridK"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of 4 statistics per cell and channel; raise `InputError` if the tokens are no such image."""
        side = math.isqrt(max_tokens)
        is_square = side * side == max_tokens
        if not is_square or side < self.number:
            least_size = f"at least {self.number} x {self.number} pixels"
            raise InputError(
                f"pooling {self.name}: {max_tokens:,} tokens are not a square image of {least_size}",
                "use another pooling",
            )
        return 1, width * 4 * self.number**2

    def of(self, states: HiddenStates) -> Tensor:
        """Return the statistics, (batch, 1, 4 * K * K * width): the means of all cells first."""
        import torch

        require_full(self.name, states)
        # Tokens become (batch, rows, columns, width), which is cut into K bands of rows, and each band into K cells of
        # columns. The tokens of a cell are then (batch, tokens, width).
        side = math.isqrt(states.values.shape[1])
        bands = states.values.unflatten(1, (side, side)).tensor_split(self.number, dim=1)
        cells = [cell.flatten(1, 2) for band in bands for cell in band.tensor_split(self.number, dim=2)]
        statistics = (
            [cell.mean(1) for cell in cells],
            [_deviations(cell) for cell in cells],
            [cell.amax(1) for cell in cells],
            [cell.amin(1) for cell in cells],
        )
        features = [torch.stack(of_cells, dim=1) for of_cells in statistics]  # (batch, cells, width) each
        return side_by_side(torch.cat(features, dim=1))


def _deviations(cell: Tensor) -> Tensor:
    """Return the standard deviation of each channel over the tokens of a cell, (batch, width); 0 if all are equal."""
    # `Tensor.std` gives the same, but adds one number at a time, which took longer than all other work of a model
    # without blocks. Differences from the first token are exactly 0 for constants; those from a rounded mean are not.
    differences = cell - cell[:, :1]
    squares = (differences - differences.mean(1, keepdim=True)).square_()
    return squares.mean(1).sqrt_()


class TokensSideBySide(Pooling):
    """All tokens side by side, zero at padding, ``max_tokens`` of them."""

    pattern = "tokens"
    by_position = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of all features of a sequence; raise `InputError` if they are too many for a readout."""
        features = max_tokens * width
        if features > MAX_TOKEN_FEATURES:
            size = f"{max_tokens:,} tokens of {width:,} channels have {features:,} features"
            raise InputError(
                f"pooling tokens: {size}, more than {MAX_TOKEN_FEATURES:,}", "use segmentsK or quantilesK"
            )
        return 1, features

    def of(self, states: HiddenStates) -> Tensor:
        """Return the tokens, (batch, 1, max_tokens * width), with zeros up to the longest sequence of the task."""
        from torch.nn.functional import pad

        missing_tokens = states.max_tokens - states.values.shape[1]
        return side_by_side(pad(states.filled(0.0), (0, 0, 0, missing_tokens)))


class AllTokens(Pooling):
    """Each token of a row, zero at padding."""

    pattern = "all"
    per_token = True
    by_position = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        return max_tokens, width

    def of(self, states: HiddenStates) -> Tensor:
        return states.filled_copy(0.0)


def window_widths(number: int) -> tuple[int, ...]:
    """Return the widths of ``number`` windows around a token: 9, 27, 81 and so on."""
    return tuple(NARROWEST_WINDOW * WINDOW_FACTOR**power for power in range(number))


def widths_within(tokens: int) -> int:
    """Return how many of the `DEFAULT_WINDOWS` narrowest windows have at most ``tokens`` values; at least 1."""
    return max(1, sum(width <= tokens for width in window_widths(DEFAULT_WINDOWS)))


class Around(Pooling):
    """For each token and channel, the root of the deviation in each of K windows around the token, side by side.

    The windows have 9, 27, 81 ... tokens, and are cut off at the ends of the sequence. The root makes the
    values of quiet and of loud stretches differ by similar amounts, as a linear readout needs it.
    """

    pattern = "aroundK"
    note = "of K windows around each token"
    per_token = True
    by_position = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return all tokens, each of K features per channel; raise `InputError` if K is too large."""
        if self.number > MAX_WINDOWS_AROUND:
            raise InputError(
                f"pooling {self.name}: at most {MAX_WINDOWS_AROUND} windows around a token",
                f"use around{MAX_WINDOWS_AROUND}, whose widest has {window_widths(MAX_WINDOWS_AROUND)[-1]:,} tokens",
            )
        return max_tokens, width * self.number

    def of(self, states: HiddenStates) -> Tensor:
        """Return the roots, (batch, tokens, K * width), all channels of the narrowest window first."""
        import torch

        from reservoir.centred_windows import CentredWindows

        windows = CentredWindows(states.filled(0.0), states.lengths)
        deviations = [windows.deviation(width).float() for width in window_widths(self.number)]
        return states.zero_at_padding(torch.cat(deviations, dim=2).sqrt())


_KINDS: tuple[type[Pooling], ...] = (
    *(Last, Mean, Words, LastPrompt, Assistant, Span, Std, Min, Max, First, ClassToken),
    *(
        Segments,
        Fading,
        AttentionPooling,
        Quantiles,
        Shares,
        Compete,
        Above,
        Places,
        Sustained,
        Grid,
        Excess,
        Mirrored,
        Counts,
        TokensSideBySide,
        AllTokens,
        Around,
    ),
)

POOLINGS = {kind.pattern: kind for kind in _KINDS}
"""The poolings by their names; K stands for a number, as in ``segments8``."""


@cache
def find_pooling(name: str) -> Pooling:
    """Return the pooling of a name such as ``segments8``; raise `InputError` if it is unknown."""
    # A name with a number is that of a pattern with K; one without has the number 0.
    pattern = name
    number = 0
    if match := re.fullmatch(r"([a-z]+)([1-9][0-9]{0,3})", name):
        pattern = f"{match[1]}K"
        number = int(match[2])
    # The name may also be that of a pattern itself, such as segmentsK.
    lacks_number = pattern.endswith("K") and number == 0
    if pattern not in POOLINGS or lacks_number:
        raise InputError(f"pooling {name!r}: choose among {', '.join(POOLINGS)} (K is 1 to 9999)")
    return POOLINGS[pattern](number)


def check_poolings(names: Iterable[str]) -> None:
    """Raise `InputError` if one of the poolings is unknown."""
    for name in names:
        find_pooling(name)


def masks_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the masks that poolings read, without duplicates."""
    masks = [find_pooling(name).mask for name in names]  # empty for a pooling of all real tokens
    return tuple(dict.fromkeys(mask for mask in masks if mask))


def pooling_help() -> str:
    """Return the names of all poolings, with a note on those that need one."""
    notes = {name: f" ({kind.note})" if kind.note else "" for name, kind in POOLINGS.items()}
    return ", ".join(name + note for name, note in notes.items())


def share_levels(number: int) -> list[float]:
    """Return the K levels of ``sharesK``, ascending, from -18 to 18 if there are at least three.

    They are denser near 0, because values span orders of magnitude.
    """
    # sinh is linear near 0 and exponential beyond 1, so levels have equal distances up to about 0.06 and grow by a
    # factor beyond. The argument of sinh has equal steps from -top to top. With one level, the divisor would be 0.
    top = math.asinh(18 / 0.06)
    middle = (number - 1) / 2
    return [0.06 * math.sinh(top * (i - middle) / max(middle, 1)) for i in range(number)]


def _above_levels(states: HiddenStates, number: int) -> tuple[Tensor, ...]:
    """Return the number of real tokens above each level of `channel_levels`, and the sum of their places.

    Both have the shape (batch, levels, width). Poolings share them, because they take as long as all else.
    """

    def compute() -> tuple[Tensor, ...]:
        """Return both tensors."""
        # The lists of `channel_levels(width, number)` as a tensor, (levels, width), which is copied to a device once.
        width = states.values.shape[2]
        levels = states.constant(channel_levels, width, number)
        # The place of a token is its middle, between 0 and 1: (batch, tokens, 1).
        places = ((states.positions + 0.5) / states.lengths[:, None])[:, :, None]
        places = states.zero_at_padding(places)
        # On a CPU, a comparison takes three times as long as a sign. A GPU reads the values once, for one comparison
        # with all levels. This writes to a given tensor (``out``), which neither a traced graph nor gradients allow.
        if states.on_host or states.traced:
            return _count_by_signs(states, levels, places)
        return _count_at_once(states, levels, places)

    return states.shared(f"above{number}", compute)


def _count_at_once(states: HiddenStates, levels: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Return the result of `_above_levels` by one comparison and one product, for a GPU.

    ``levels`` are (levels, width), ``places`` (batch, tokens, 1).
    """
    import torch

    # The comparison writes 1.0 and 0.0, (batch, levels, width, tokens). Its product with ones and places sums both over
    # the tokens above a level; padding weighs nothing. A value equal to its level counts nothing, and half by signs. A
    # second comparison would make both equal, but levels are no round numbers, so that hardly any value is one.
    ones = states.zero_at_padding(torch.ones_like(places))
    weights = torch.cat([ones, places], dim=2)[:, None]  # (batch, 1, tokens, 2)
    values = states.values.transpose(1, 2)[:, None]  # (batch, 1, width, tokens)
    is_above = values.new_empty(values.shape[0], len(levels), *values.shape[2:])
    torch.gt(values, levels[:, :, None], out=is_above)
    sums = is_above @ weights
    return sums[..., 0], sums[..., 1]


def _count_by_signs(states: HiddenStates, levels: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Return the result of `_above_levels` by sums of signs, for some channels at a time.

    ``levels`` are (levels, width), ``places`` (batch, tokens, 1).
    """
    import torch

    places = places.transpose(1, 2)
    sign_sums: list[Tensor] = []  # of each piece, over its tokens: (batch, levels, channels)
    place_sums: list[Tensor] = []  # the same of the places, with the signs
    levels_left = levels  # those of the channels of this piece and of the later ones
    for piece in _pieces(states.filled(float("-inf")), states):  # (batch, channels, tokens)
        # The sign is 1 above a level, and -1 below it and at padding.
        sign_sums_of_levels: list[Tensor] = []
        place_sums_of_levels: list[Tensor] = []
        for level in levels_left[:, : piece.shape[1]]:
            signs = (piece - level[:, None]).sign_()
            sign_sums_of_levels.append(signs.sum(dim=2))
            place_sums_of_levels.append(signs.mul_(places).sum(dim=2))
        sign_sums.append(torch.stack(sign_sums_of_levels, dim=1))
        place_sums.append(torch.stack(place_sums_of_levels, dim=1))
        levels_left = levels_left[:, piece.shape[1] :]
    # (sign + 1) / 2 is 1 above a level, 1/2 at it, and 0 below it. So the sum of weights over the tokens above it is
    # half the sum of the signs times the weights, plus half the sum of all weights: ones for the count, places for
    # their sum.
    tokens = states.values.shape[1]
    count_above = (torch.cat(sign_sums, dim=2) + tokens) / 2
    sum_of_places = (torch.cat(place_sums, dim=2) + places.sum(dim=2, keepdim=True)) / 2
    return count_above, sum_of_places


def _sum_where_equal(groups: Tensor, extremes: Tensor, weights: Tensor) -> Tensor:
    """Return, for each channel, the sum of weights over the tokens at which it equals the extreme value of its group.

    ``groups`` are (batch, groups, K, tokens), ``extremes`` and ``weights`` (batch, groups, 1, tokens), the sums
    (batch, groups, K, 1).
    """
    import torch

    if torch.compiler.is_compiling() or groups.requires_grad:  # neither allows ``out``
        is_extreme = torch.eq(groups, extremes).float()
    else:
        # Written as float32 at once: the detour by bool takes ten times as long on a CPU, and reads all values twice.
        is_extreme = torch.eq(groups, extremes, out=torch.empty_like(groups))
    # A product of (K, tokens) and (tokens, 1) sums over the tokens.
    return is_extreme @ weights.transpose(2, 3)


def _largest_minima(values: Tensor, stretches: Sequence[int], traced: bool) -> Tensor:
    """Return, for each length of a stretch, the largest of the minima over all stretches of neighbouring tokens.

    ``values`` are (batch, channels, tokens), minus infinity at padding, so that no stretch with padding counts. The
    lengths are 1, 4, 16 and so on; the result is (batch, stretches, channels).
    """
    import torch

    minima = values  # over the stretch from each token
    if traced:  # a batch may have fewer tokens than the longest stretch, and shifts must leave some
        minima = torch.nn.functional.pad(values, (0, stretches[-1] - 1), value=float("-inf"))
    largest = [minima.amax(dim=2)]
    for stretch in stretches[1:]:
        # ``minima`` are those of stretches of n = stretch / 4 tokens. The minimum of a stretch is the smaller one of
        # its two halves', so shifts by n and 2n give those of 2n and 4n tokens.
        for half in (stretch // 4, stretch // 2):
            minima = torch.minimum(minima[:, :, :-half], minima[:, :, half:])
        largest.append(minima.amax(dim=2))
    return torch.stack(largest, dim=1)


def _pieces(values: Tensor, states: HiddenStates, multiple: int = 1) -> Sequence[Tensor]:
    """Return values (batch, tokens, width) of hidden states as (batch, width, tokens), on the host in several pieces.

    A piece has some of the channels, their number divisible by ``multiple``, except perhaps that of the last piece.
    """
    values = values.transpose(1, 2)
    if not states.on_host:
        return (values,)
    # Intermediate results of a piece stay in the cache of a core: all channels at once took 3 to 6 times as long.
    channels_in_cache = PIECE_VALUES // (values.shape[0] * values.shape[2])
    channels = max(1, channels_in_cache // multiple) * multiple
    return values.split(channels, dim=1)


def channel_levels(width: int, number: int) -> list[list[float]]:
    """Return the levels of ``aboveK`` as K lists of one level for each of ``width`` channels.

    They are between -18 and 18, and denser near 0.
    """
    # Multiples of the golden ratio, modulo 1, are spread evenly over each range of channels, however many there are.
    # By sinh the levels are spread evenly up to about 0.3, and evenly in their logarithm beyond. The K levels of a
    # channel are neighbours in the list.
    golden_ratio = (math.sqrt(5) - 1) / 2
    top = math.asinh(18 / 0.3)
    fractions = [((count + 0.5) * golden_ratio) % 1 for count in range(width * number)]
    levels = [0.3 * math.sinh(top * (2 * fraction - 1)) for fraction in fractions]
    return [levels[first::number] for first in range(number)]


def _stretches(number: int) -> list[int]:
    """Return the lengths of the stretches of ``sustainedK`` in tokens."""
    return [4**power for power in range(number)]
