"""Poolings: what of a layer is kept of each sequence, over its real tokens only."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor

from reservoir.errors import InputError

POOLINGS = ("last", "mean", "std", "min", "max", "first", "cls", "segmentsK", "quantilesK", "sharesK", "tokens", "all")
"""The names; K stands for a number, as in ``segments8``."""

NEUTRAL = {"max": float("-inf"), "sharesK": float("-inf"), "min": float("inf"), "quantilesK": float("inf")}
"""What padding is set to; 0 where nothing stands here."""

WIDEST_TOKENS = 16_384  # moments of as many channels take 2 GB, and a sweep the cube of them


def parse_column(column: str) -> tuple[str, str]:
    """Split a column such as ``block06/mean`` into its layer and its pooling, which exists."""
    layer, slash, pooling = column.partition("/")
    if not slash or not layer:
        raise InputError(f"column {column!r}: write layer/pooling, as in block06/mean")
    check_poolings([pooling])
    return layer, pooling


def check_poolings(poolings: list[str]) -> None:
    """Raise `InputError` if one of the poolings does not exist."""
    for pooling in poolings:
        kind, number = _parse(pooling)
        if kind not in POOLINGS or kind.endswith("K") != (number > 0):
            raise InputError(f"pooling {pooling!r}: choose among {', '.join(POOLINGS)}, with K a number from 1")


def pooled_shape(pooling: str, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
    """Return (tokens, width) of one row of a column; ``max_tokens`` are those of the longest sequence."""
    if pooling == "last":
        return readout_tokens, width
    if pooling == "all":
        return max_tokens, width
    if pooling != "tokens":
        return 1, width * max(1, _parse(pooling)[1])
    if max_tokens * width > WIDEST_TOKENS:
        raise InputError(
            f"pooling tokens: {max_tokens:,} tokens of {width:,} channels side by side are {max_tokens * width:,}, "
            f"more than {WIDEST_TOKENS:,}; take segmentsK or quantilesK, or a larger patch and stride"
        )
    return 1, max_tokens * width


def pool(
    hidden: Tensor, lengths: Tensor, pooling: str, readout_tokens: int = 1, max_tokens: int | None = None
) -> Tensor:
    """Pool hidden states (batch, tokens, width) of right-padded sequences over their real tokens, ``lengths`` of them.

    ``last``: the last ``readout_tokens`` real tokens; ``first``, ``cls``: the first token; ``mean``, ``std``, ``min``,
    ``max``: over all real tokens (``std`` divides by their number); ``segmentsK``: means of K equal stretches side by
    side; ``quantilesK``: of each channel the quantiles at (i + 1) / (K + 1) for i < K, interpolated between tokens,
    side by side; ``tokens``: every token side by side, zero at padding, ``max_tokens`` of them or as many as the batch
    is padded to; ``all``: every token on its own, zero at padding.

    What is returned, float32 (batch, kept tokens, kept width), is no view: the hidden states can be freed.
    """
    hidden = hidden.float()
    if pooling == "last":
        positions = lengths[:, None] - readout_tokens + torch.arange(readout_tokens, device=hidden.device)
        return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[2]))
    if pooling in ("first", "cls"):
        return hidden[:, :1].clone()
    kind, number = _parse(pooling)
    padding = (torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None])[:, :, None]
    # masked_fill and not a product with zero: what stands at padding may be infinite.
    hidden = hidden.masked_fill(padding, NEUTRAL.get(kind, 0.0))
    match kind:
        case "all":
            return hidden
        case "max":
            return hidden.amax(dim=1, keepdim=True)
        case "min":
            return hidden.amin(dim=1, keepdim=True)
        case "tokens":
            missing = 0 if max_tokens is None else max_tokens - hidden.shape[1]
            kept = torch.nn.functional.pad(hidden, (0, 0, 0, missing))
        case "quantilesK":
            kept = _quantiles(hidden, lengths, number)
        case "sharesK":
            ones = torch.ones(1, hidden.shape[1], device=hidden.device)  # products count faster than sums, as exactly
            above = [ones @ (hidden > level).float() for level in share_levels(number)]
            kept = torch.cat(above, dim=1) / lengths[:, None, None]
        case _:
            kept = torch.bmm(stretch_weights(lengths, hidden.shape[1], max(1, number)), hidden)
    if kind == "std":
        squares = (hidden - kept).masked_fill(padding, 0.0).square()
        kept = (squares.sum(dim=1, keepdim=True) / lengths[:, None, None]).sqrt()
    return kept.flatten(1)[:, None]


def share_levels(number: int) -> list[float]:
    """Return the K levels of ``sharesK``: from -18 to 18, fine about 0, as values and their scale vary in decades."""
    top, middle = math.asinh(18 / 0.06), (number - 1) / 2
    return [0.06 * math.sinh(top * (i - middle) / max(middle, 1)) for i in range(number)]


def stretch_weights(lengths: Tensor, tokens: int, stretches: int) -> Tensor:
    """Return the weights (batch, stretches, tokens) whose product with the hidden states gives means of stretches.

    Stretch i of n real tokens covers those from floor(i n / s) up to max(floor((i + 1) n / s), floor(i n / s) + 1), so
    that every one of the s stretches has a token, even where there are fewer tokens than stretches.
    """
    steps = torch.arange(stretches + 1, device=lengths.device)
    bounds = lengths[:, None] * steps // stretches
    start = bounds[:, :-1]
    stop = torch.maximum(bounds[:, 1:], start + 1)
    position = torch.arange(tokens, device=lengths.device)
    inside = (position >= start[:, :, None]) & (position < stop[:, :, None])
    return inside.float() / (stop - start)[:, :, None]


def _quantiles(hidden: Tensor, lengths: Tensor, number: int) -> Tensor:
    """Return K quantiles (batch, K, width) of each channel; padding is infinite, and so sorted behind real tokens."""
    ranked = _in_order(hidden)
    # Level (i + 1) / (K + 1) lies at (i + 1) (n - 1) / (K + 1) in the order; whole numbers leave nothing to rounding.
    place = (lengths[:, None] - 1) * torch.arange(1, number + 1, device=hidden.device)
    low = place // (number + 1)
    share = ((place % (number + 1)).float() / (number + 1))[:, :, None]
    high = torch.minimum(low + 1, lengths[:, None] - 1)
    below, above = (ranked.gather(1, rank[:, :, None].expand(-1, -1, hidden.shape[2])) for rank in (low, high))
    return torch.lerp(below, above, share)


def _in_order(hidden: Tensor) -> Tensor:
    """Return hidden states with the values of each channel in order: on a CPU by numpy, ten times as fast as torch."""
    if torch.compiler.is_compiling() or hidden.requires_grad or hidden.device.type != "cpu":
        return hidden.sort(dim=1).values
    return torch.from_numpy(np.sort(hidden.transpose(1, 2).contiguous().numpy(), axis=-1)).transpose(1, 2)


def _parse(pooling: str) -> tuple[str, int]:
    """Split ``segments8`` into ``segmentsK`` and 8; the number of other poolings is 0."""
    found = re.fullmatch(r"([a-z]+)([1-9][0-9]{0,3})", pooling)
    return (f"{found[1]}K", int(found[2])) if found else (pooling, 0)
