"""Poolings: summaries of a layer's hidden states over the real tokens of each sequence.

Each pooling is one class, with its name, its shape, its computation, and how the pieces of a long text are
joined (`reservoir.pooling_base.Pooling`). To add one, write a class and put it into `_KINDS`; options, plan, cache
and readouts take it from there.
torch and NumPy are imported when a pooling computes, so that ``--help`` lists the poolings without waiting for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from reservoir.errors import InputError
from reservoir.input_poolings import Counts, Excess, Mirrored
from reservoir.pooling_base import Pooling, side_by_side, weighted_average
from reservoir.weighted_poolings import Assistant, Attention, Fading, LastPrompt, Span, Words

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates

MAX_TOKEN_FEATURES = 16_384  # moments of this many channels take 2 GB
MAX_WINDOWS_AROUND = 10  # the widest has 177,147 tokens
NARROWEST_WINDOW = 9  # values of the narrowest window around a token: as many as a kernel reads
WINDOW_FACTOR = 3  # of the width of a window around a token and that of the next one
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
        import torch

        count = states.readout_tokens

        def last_positions() -> Tensor:
            return states.lengths[:, None] - count + torch.arange(count, device=states.values.device)

        positions = states.real_tokens.shared(f"last{count}", last_positions)
        return states.values.gather(1, positions[:, :, None].expand(-1, -1, states.values.shape[2]))


class Mean(Pooling):
    """The mean of all real tokens."""

    pattern = "mean"

    def of(self, states: HiddenStates) -> Tensor:
        return states.segment_means(1)


class Std(Pooling):
    """The standard deviation of each channel, whose squares are divided by the number of real tokens."""

    pattern = "std"

    def of(self, states: HiddenStates) -> Tensor:
        deviations = states.values - states.segment_means(1)
        squares = states.zero_at_padding(deviations).square_()
        return (squares.sum(dim=1) / states.lengths[:, None]).sqrt()[:, None]


class Min(Pooling):
    """The minimum of each channel over all real tokens."""

    pattern = "min"

    def of(self, states: HiddenStates) -> Tensor:
        if states.is_ordered:
            return states.ranked((states.lengths * 0)[:, None])
        return states.filled(float("inf")).amin(dim=1)[:, None]

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.minimum.reduceat(values, starts)


class Max(Pooling):
    """The maximum of each channel over all real tokens."""

    pattern = "max"

    def of(self, states: HiddenStates) -> Tensor:
        if states.is_ordered:
            return states.ranked((states.lengths - 1)[:, None])
        return states.filled(float("-inf")).amax(dim=1)[:, None]

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
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
        import torch

        # The rank of level (i + 1) / (K + 1) among n values is (i + 1) (n - 1) / (K + 1). Integers give its whole
        # part and the rest without rounding errors.
        lengths = states.lengths[:, None]
        levels = torch.arange(1, self.number + 1, device=lengths.device)
        scaled_rank = (lengths - 1) * levels
        low = scaled_rank // (self.number + 1)
        rest = ((scaled_rank % (self.number + 1)).float() / (self.number + 1))[:, :, None]
        high = torch.minimum(low + 1, lengths - 1)
        return side_by_side(torch.lerp(states.ranked(low), states.ranked(high), rest))


class Shares(Pooling):
    """For each channel the shares of real tokens above each of the `share_levels`, side by side."""

    pattern = "sharesK"
    sorts = True
    needs_float32 = True

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        lengths = states.lengths[:, None, None]
        if states.traced:
            values = states.filled(float("-inf"))
            counts = [(values > level).float().sum(dim=1) for level in share_levels(self.number)]
            above = torch.stack(counts, dim=1)
        else:
            # Quantiles have sorted the values, which a search reads at a few places instead of all once per level.
            ordered = states.ordered
            levels = states.constant(share_levels, self.number)
            places = levels.expand(*ordered.shape[:2], self.number).contiguous()
            below = torch.searchsorted(ordered, places, right=True).transpose(1, 2)
            above = (lengths - below).float()
        return side_by_side(above / lengths)


class Compete(Pooling):
    """For groups of K neighbouring channels, how far each channel leads, and how often it is the lowest.

    At each token, the channel with the largest value of its group leads by this value, if it is positive, and
    the channel with the smallest value is the lowest, if it is negative. The features of a channel are the
    square root of the mean of its leads over all real tokens, for all channels, then the square root of the
    share of tokens where it is the lowest. Roots make rare and frequent channels comparable. Hydra (Dempster,
    Schmidt and Webb 2023) has sums in the place of means.
    """

    pattern = "competeK"
    note = "in groups of K channels"
    needs_float32 = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        if width % self.number:
            raise InputError(
                f"pooling {self.name}: {width:,} channels are not groups of {self.number}",
                "use a number that divides the width",
            )
        return 1, 2 * width

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        padding = None if states.padding is None else states.padding[:, None, None, :, 0]
        of_pieces: list[Tensor] = []
        for piece in _pieces(states.values, states, self.number):
            groups = piece.unflatten(1, (-1, self.number))
            largest = groups.amax(dim=2, keepdim=True)
            smallest = groups.amin(dim=2, keepdim=True)
            # Padding, which may hold any values, leads nowhere and is never the lowest.
            is_too_small = largest < LEAST_RESPONSE
            is_lowest = smallest < -LEAST_RESPONSE
            if padding is not None:
                is_too_small, is_lowest = is_too_small | padding, is_lowest & ~padding
            leads = largest.masked_fill(is_too_small, 0.0)
            # Products of (batch, groups, K, tokens) and (batch, groups, tokens, 1) sum over the tokens.
            sums = [
                _ones_where(torch.eq, groups, largest) @ leads.transpose(2, 3),
                _ones_where(torch.eq, groups, smallest) @ is_lowest.float().transpose(2, 3),
            ]
            of_pieces.append(torch.stack([values.flatten(1) for values in sums], dim=1))
        means = torch.cat(of_pieces, dim=2) / states.lengths[:, None, None]
        return side_by_side(means.sqrt())

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.sqrt(weighted_average(np.square(values), counts, starts))


class Above(Pooling):
    """For each channel the shares of real tokens above K levels, side by side; see `channel_levels`."""

    pattern = "aboveK"
    note = "shares above K levels that differ by channel"
    needs_float32 = True

    def of(self, states: HiddenStates) -> Tensor:
        counts, _ = _above_levels(states, self.number)
        return side_by_side(counts / states.lengths[:, None, None])


class Places(Pooling):
    """For each channel the mean places of real tokens above K levels, side by side; see `channel_levels`.

    Places go from 0 at the start of a sequence to 1 at its end. Without tokens above a level, the place is 0.5.
    """

    pattern = "placesK"
    note = "mean places of tokens above K levels that differ by channel"

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        counts, sums = _above_levels(states, self.number)
        return side_by_side(torch.where(counts > 0, sums / counts.clamp(min=1), 0.5))


ROUNDING = 1e-5
"""Above the responses of kernels to a constant stretch of up to 9 standard deviations, which are rounding errors."""


class Sustained(Pooling):
    """For each channel the largest value that it sustains for 1, 4, 16, ... 4^(K-1) tokens, side by side.

    A value is sustained for n tokens if n neighbouring ones are at least as large. A sequence of fewer tokens
    sustains its minimum. Values within `ROUNDING` of zero become zero.
    """

    pattern = "sustainedK"
    note = "largest values over stretches of 1, 4, 16, ... tokens"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        return 1, width * self.number

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        # No sequence has stretches that are longer than the longest one: of the batch, or of the task if it is traced.
        tokens = states.max_tokens if states.traced else states.values.shape[1]
        all_stretches = _stretches(self.number)
        stretches = [stretch for stretch in all_stretches if stretch <= max(1, tokens)]
        # The minimum counts only for sequences that are shorter than a stretch, so it needs no further tokens.
        # (batch, 1, width)
        lowest = states.filled_start(all_stretches[-1], float("inf")).amin(dim=1)[:, None]
        of_pieces: list[Tensor] = []
        for piece in _pieces(states.filled(float("-inf")), states):
            # The piece is (batch, channels, tokens). With minus infinity at padding and, in a traced graph, after the
            # last token, only stretches that end before count.
            smallest = (
                torch.nn.functional.pad(piece, (0, stretches[-1] - 1), value=float("-inf"))
                if states.traced
                else piece
            )
            sustained = [smallest.amax(dim=2)]  # (batch, channels) for each stretch
            for stretch in stretches[1:]:
                # ``smallest`` holds the minimum of the n = stretch / 4 tokens from each start. The minimum of a stretch
                # is the smaller one of its two halves', so shifts by n and 2n give those of 2n and 4n tokens.
                for half in (stretch // 4, stretch // 2):
                    smallest = torch.minimum(smallest[:, :, :-half], smallest[:, :, half:])
                sustained.append(smallest.amax(dim=2))
            of_pieces.append(torch.stack(sustained, dim=1))  # (batch, stretches, channels)
        # (batch, stretches)
        is_long_enough = states.lengths[:, None] >= states.constant(_stretches, len(stretches))
        values = torch.where(is_long_enough[:, :, None], torch.cat(of_pieces, dim=2), lowest)
        missing = len(all_stretches) - len(stretches)
        values = torch.cat([values, lowest.expand(-1, missing, -1)], dim=1)
        # In sparse series all training rows may have such values. Divided by their standard deviation, another value of
        # a new row would be enormous.
        return side_by_side(torch.where(values.abs() < ROUNDING, 0, values))


class Grid(Pooling):
    """Mean, standard deviation, maximum and minimum of each of K x K cells of a square image, by statistic."""

    pattern = "gridK"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        side = math.isqrt(max_tokens)
        if side * side != max_tokens or side < self.number:
            least = f"at least {self.number} x {self.number} pixels"
            raise InputError(
                f"pooling {self.name}: {max_tokens:,} tokens are not a square image of {least}",
                "use another pooling",
            )
        return 1, width * 4 * self.number**2

    def of(self, states: HiddenStates) -> Tensor:
        import torch

        if not states.traced and not states.real_tokens.is_full:
            raise InputError(f"pooling {self.name}: the rows differ in length", "use another pooling")
        side = math.isqrt(states.values.shape[1])
        bands = states.values.unflatten(1, (side, side)).tensor_split(self.number, dim=1)
        cells = [cell.flatten(1, 2) for band in bands for cell in band.tensor_split(self.number, dim=2)]
        statistics = (
            [cell.mean(1) for cell in cells],
            [cell.std(1, correction=0) for cell in cells],
            [cell.amax(1) for cell in cells],
            [cell.amin(1) for cell in cells],
        )
        return side_by_side(torch.cat([torch.stack(of_cells, dim=1) for of_cells in statistics], dim=1))


class TokensSideBySide(Pooling):
    """All tokens side by side, zero at padding, ``max_tokens`` of them."""

    pattern = "tokens"
    by_position = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        features = max_tokens * width
        if features > MAX_TOKEN_FEATURES:
            have = f"{max_tokens:,} tokens of {width:,} channels have {features:,} features"
            raise InputError(
                f"pooling tokens: {have}, more than {MAX_TOKEN_FEATURES:,}", "use segmentsK or quantilesK"
            )
        return 1, features

    def of(self, states: HiddenStates) -> Tensor:
        from torch.nn.functional import pad

        missing = states.max_tokens - states.values.shape[1]
        return side_by_side(pad(states.filled(0.0), (0, 0, 0, missing)))


class AllTokens(Pooling):
    """Each token of a row, zero at padding."""

    pattern = "all"
    per_token = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        return max_tokens, width

    def of(self, states: HiddenStates) -> Tensor:
        return states.filled_copy(0.0)


def window_widths(number: int) -> tuple[int, ...]:
    """Return the widths of ``number`` windows around a token: 9, 27, 81 and so on."""
    return tuple(NARROWEST_WINDOW * WINDOW_FACTOR**power for power in range(number))


def widths_within(tokens: int) -> int:
    """Return how many of the `DEFAULT_WINDOWS` narrowest windows have at most ``tokens`` values, and at least one."""
    return max(1, sum(width <= tokens for width in window_widths(DEFAULT_WINDOWS)))


class Around(Pooling):
    """For each token and channel, the root of the deviation in each of K windows around the token, side by side.

    The windows have 9, 27, 81 ... tokens, and are cut off at the ends of the sequence. The root makes the
    values of quiet and of loud stretches differ by similar amounts, as a linear readout needs it.
    """

    pattern = "aroundK"
    note = "of K windows around each token"
    per_token = True

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        if self.number > MAX_WINDOWS_AROUND:
            raise InputError(
                f"pooling {self.name}: at most {MAX_WINDOWS_AROUND} windows around a token",
                f"use around{MAX_WINDOWS_AROUND}, whose widest has {window_widths(MAX_WINDOWS_AROUND)[-1]:,} tokens",
            )
        return max_tokens, width * self.number

    def of(self, states: HiddenStates) -> Tensor:
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
        Attention,
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
    numbered = re.fullmatch(r"([a-z]+)([1-9][0-9]{0,3})", name)
    pattern, number = (f"{numbered[1]}K", int(numbered[2])) if numbered else (name, 0)
    takes_number = pattern.endswith("K")
    if pattern not in POOLINGS or takes_number != (number > 0):
        raise InputError(f"pooling {name!r}: choose among {', '.join(POOLINGS)} (K is 1 or more)")
    return POOLINGS[pattern](number)


def check_poolings(names: Iterable[str]) -> None:
    """Raise `InputError` if one of the poolings is unknown."""
    for name in names:
        find_pooling(name)


def masks_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the masks that poolings read, without duplicates."""
    return tuple(dict.fromkeys(mask for name in names if (mask := find_pooling(name).mask)))


def pooling_help() -> str:
    """Return the names of all poolings, with a note on those that need one."""
    return ", ".join(name + (f" ({kind.note})" if kind.note else "") for name, kind in POOLINGS.items())


def share_levels(number: int) -> list[float]:
    """Return the K levels of ``sharesK``, from -18 to 18, denser near 0, because values span orders of magnitude."""
    top, middle = math.asinh(18 / 0.06), (number - 1) / 2
    return [0.06 * math.sinh(top * (i - middle) / max(middle, 1)) for i in range(number)]


def _above_levels(states: HiddenStates, number: int) -> tuple[Tensor, ...]:
    """Return the number of real tokens above each level of `channel_levels`, and the sum of their places.

    Both have the shape (batch, levels, width). Poolings share them, because they take as long as all else.
    """

    def compute() -> tuple[Tensor, ...]:
        levels = states.constant(channel_levels, states.values.shape[2], number)
        places = ((states.positions + 0.5) / states.lengths[:, None])[:, :, None]
        places = states.zero_at_padding(places)
        by_signs = states.on_host or states.traced
        return (_count_by_signs if by_signs else _count_at_once)(states, levels, places)

    return states.shared(f"above{number}", compute)


def _count_at_once(states: HiddenStates, levels: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Return the result of `_above_levels` by one comparison and one product, for a GPU."""
    import torch

    ones = states.zero_at_padding(torch.ones_like(places))
    weights = torch.cat([ones, places], dim=2)[:, None]  # (batch, 1, tokens, 2)
    values = states.values.transpose(1, 2)[:, None]
    is_above = values.new_empty(values.shape[0], len(levels), *values.shape[2:])
    torch.gt(values, levels[:, :, None], out=is_above)
    sums = is_above @ weights
    return sums[..., 0], sums[..., 1]


def _count_by_signs(states: HiddenStates, levels: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Return the result of `_above_levels` by sums of signs, for some channels at a time."""
    import torch

    places = places.transpose(1, 2)
    counts: list[Tensor] = []
    sums: list[Tensor] = []
    for piece in _pieces(states.filled(float("-inf")), states):
        # The sign is 1 above a level, and -1 below it and at padding. The sum of weights over the tokens above is
        # half the sum of (sign + 1) times the weights.
        counts_of_levels: list[Tensor] = []
        sums_of_levels: list[Tensor] = []
        for level in levels[:, : piece.shape[1]]:
            signs = (piece - level[:, None]).sign_()
            counts_of_levels.append(signs.sum(dim=2))
            sums_of_levels.append(signs.mul_(places).sum(dim=2))
        counts.append(torch.stack(counts_of_levels, dim=1))
        sums.append(torch.stack(sums_of_levels, dim=1))
        levels = levels[:, piece.shape[1] :]
    count = (torch.cat(counts, dim=2) + states.values.shape[1]) / 2
    return count, (torch.cat(sums, dim=2) + places.sum(dim=2, keepdim=True)) / 2


def _ones_where(comparison: Callable[..., Tensor], values: Tensor, limits: Tensor) -> Tensor:
    """Return 1.0 where a comparison of values is true, else 0.0."""
    import torch

    if torch.compiler.is_compiling() or values.requires_grad:
        return comparison(values, limits).float()
    # Written as float32 at once: the detour by bool takes ten times as long on a CPU, and reads all values twice.
    return comparison(values, limits, out=torch.empty_like(values))


def _pieces(values: Tensor, states: HiddenStates, multiple: int = 1) -> Sequence[Tensor]:
    """Return values (batch, tokens, width) of hidden states as (batch, width, tokens), in pieces of some channels.

    Each piece has a multiple of some number of channels, except for the last one.
    """
    values = values.transpose(1, 2)
    if not states.on_host:
        return (values,)
    # Intermediate results of a piece stay in the cache of a core: all channels at once took 3 to 6 times as long.
    channels = PIECE_VALUES // (values.shape[0] * values.shape[2])
    return values.split(max(1, channels // multiple) * multiple, dim=1)


def channel_levels(width: int, number: int) -> list[list[float]]:
    """Return the levels of ``aboveK``: K for each of ``width`` channels, from -18 to 18, denser near 0."""
    # Multiples of the golden ratio, modulo 1, are spread evenly over each range of channels, however many there are.
    golden, top = (math.sqrt(5) - 1) / 2, math.asinh(18 / 0.3)
    places = [((count + 0.5) * golden) % 1 for count in range(width * number)]
    levels = [0.3 * math.sinh(top * (2 * place - 1)) for place in places]
    return [levels[first::number] for first in range(number)]


def _stretches(number: int) -> list[int]:
    """Return the lengths of the stretches of ``sustainedK`` in tokens."""
    return [4**power for power in range(number)]
