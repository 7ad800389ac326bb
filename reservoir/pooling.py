"""Poolings: what of a layer is kept of each sequence, over its real tokens only."""

from __future__ import annotations

import torch
from torch import Tensor

from reservoir.errors import InputError

SEGMENTS = 8
POOLINGS = ("last", "mean", "max", "first", f"segments{SEGMENTS}", "all")


def parse_column(column: str) -> tuple[str, str]:
    """Split a column such as ``block06/mean`` into its layer and its pooling.

    Raises
    ------
    InputError
        If it is not of that form, or the pooling does not exist.
    """
    layer, slash, pooling = column.partition("/")
    if not slash or not layer:
        raise InputError(f"column {column!r}: write layer/pooling, as in block06/mean")
    check_poolings([pooling])
    return layer, pooling


def check_poolings(poolings: list[str]) -> None:
    """Raise `InputError` if one of the poolings does not exist."""
    for pooling in poolings:
        if pooling not in POOLINGS:
            raise InputError(f"pooling {pooling!r}: choose among {', '.join(POOLINGS)}")


def pooled_shape(pooling: str, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
    """Return (tokens, width) of one row of a column.

    Parameters
    ----------
    pooling : str
        One of `POOLINGS`.
    width : int
        Width of the layer.
    max_tokens : int
        Tokens of the longest sequence, to which ``all`` is padded.
    readout_tokens : int
        Tokens kept by ``last``.
    """
    if pooling == "last":
        return readout_tokens, width
    if pooling == "all":
        return max_tokens, width
    return 1, width * (SEGMENTS if pooling.startswith("segments") else 1)


def pool(hidden: Tensor, lengths: Tensor, pooling: str, readout_tokens: int = 1) -> Tensor:
    """Pool the hidden states of right-padded sequences over their real tokens.

    Parameters
    ----------
    hidden : Tensor, (batch, tokens, width)
        Hidden states of one layer; values at padding are never used.
    lengths : Tensor of int64, (batch,)
        Real tokens of each sequence, at least ``readout_tokens``.
    pooling : str
        ``last``: the last ``readout_tokens`` real tokens; ``first``: the first token; ``mean``, ``max``: over all real
        tokens; ``segments8``: means of 8 equal stretches side by side; ``all``: every token, zero at padding.
    readout_tokens : int, default 1
        Tokens kept by ``last``.

    Returns
    -------
    Tensor of float32, (batch, kept tokens, kept width)
        A tensor of its own, not a view: the hidden states can be freed.
    """
    hidden = hidden.float()
    if pooling == "last":
        positions = lengths[:, None] - readout_tokens + torch.arange(readout_tokens, device=hidden.device)
        return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[2]))
    if pooling == "first":
        return hidden[:, :1].clone()
    padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
    if pooling == "max":
        return hidden.masked_fill(padding[:, :, None], float("-inf")).amax(dim=1, keepdim=True)
    # masked_fill and not a product with zero: what stands at padding may be infinite.
    hidden = hidden.masked_fill(padding[:, :, None], 0.0)
    if pooling == "all":
        return hidden
    stretches = 1 if pooling == "mean" else SEGMENTS
    means = torch.bmm(stretch_weights(lengths, hidden.shape[1], stretches), hidden)
    return means.flatten(1)[:, None]


def stretch_weights(lengths: Tensor, tokens: int, stretches: int) -> Tensor:
    r"""Return the weights whose product with the hidden states gives the means of equal stretches.

    Stretch :math:`i` of a sequence of :math:`n` tokens covers the tokens from :math:`\lfloor i n / s \rfloor` up to
    :math:`\max(\lfloor (i + 1) n / s \rfloor, \lfloor i n / s \rfloor + 1)`, so every stretch has a token, even where
    the sequence has fewer tokens than stretches.

    Parameters
    ----------
    lengths : Tensor of int64, (batch,)
        Real tokens of each sequence.
    tokens : int
        Padded length.
    stretches : int
        Number of stretches, s.

    Returns
    -------
    Tensor of float32, (batch, stretches, tokens)
        Non-negative; each row sums to one.
    """
    steps = torch.arange(stretches + 1, device=lengths.device)
    bounds = lengths[:, None] * steps // stretches
    start = bounds[:, :-1]
    stop = torch.maximum(bounds[:, 1:], start + 1)
    position = torch.arange(tokens, device=lengths.device)
    inside = (position >= start[:, :, None]) & (position < stop[:, :, None])
    return inside.float() / (stop - start)[:, :, None]
