"""Exact contribution of each position to a linear readout's logits, and the effect of hiding it (occlusion).

If a pooling is a weighted sum over tokens, h = sum_t p_t h_t, the logits of a linear readout are a sum over tokens too:
W h + b = (b + sum_t p_t W m) + sum_t p_t W (h_t - m), with m the mean token of the explained rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from reservoir.pooling import parse_column, stretch_weights
from reservoir.raw_input import RawInput
from reservoir.sequence_model import Branch, SequenceModel
from reservoir.tasks.task import Tokens

PIECES = 32  # stretches of a sequence that are hidden one by one
DRAWS = 4  # random replacements of hidden symbols


def contributions(model: SequenceModel, x: Tensor, lengths: Tensor) -> Tensor:
    """Return the contribution of each position to the logits relative to a mean token, (rows, positions, k), float64.

    Only means, segments, single tokens, all tokens and the raw input are sums over positions; other poolings
    (quantiles, shares, extremes, deviations) contribute nothing here. The contribution of a window is spread
    over the values from its own position to the next window's.
    """
    scaled = (x - model.offset) * model.scale if model.scaled else x
    found = torch.zeros(*x.shape[:2], model.weight.shape[1], dtype=torch.float64)
    start = 0
    for branch in model.branches:
        if isinstance(branch, RawInput):
            values = branch.values(scaled, lengths)
            width = values.shape[2] * (branch.longest if branch.flat else 8)
            pooling = "tokens" if branch.flat else "segments8"
            found += _of_tokens(values, lengths, pooling, model.weight[start : start + width])
            start += width
            continue
        assert isinstance(branch, Branch)
        for column in branch.columns:
            tokens, width = branch.shapes[column]
            weight = model.weight[start : start + tokens * width]
            found += _of_column(branch, column, scaled, lengths, weight)
            start += tokens * width
    return found


def occlusion(model: Callable[[Tensor, Tensor], Tensor], x: Tensor, lengths: Tensor, symbols: int = 0) -> Tensor:
    """Return the decrease of the logits when a stretch of the input is hidden, (rows, positions, k).

    Each row has up to 32 stretches. Hidden values are replaced by the mean of their channel in the row, hidden symbols
    by random ones of ``symbols`` different symbols, four times.
    """
    draw = torch.Generator().manual_seed(0)
    fall = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        bounds = torch.linspace(0, length, min(length, PIECES) + 1).long().tolist()
        hidden = [row]
        for begin, end in pairwise(bounds):
            for _ in range(DRAWS if symbols else 1):
                other = row.clone()
                other[begin:end] = (
                    torch.randint(symbols, (end - begin,), generator=draw).to(row.dtype)
                    if symbols
                    else row[:length].mean(0)
                )
                hidden.append(other)
        logits = model(torch.stack(hidden), lengths.new_full((len(hidden),), length)).flatten(1).double()
        drops = (logits[0] - logits[1:]).reshape(len(bounds) - 1, -1, logits.shape[1]).mean(1)
        sizes = torch.tensor([end - begin for begin, end in pairwise(bounds)])
        spread = torch.repeat_interleave(drops / sizes[:, None], sizes, dim=0)
        fall.append(torch.nn.functional.pad(spread, (0, 0, 0, x.shape[1] - length)))
    return torch.stack(fall)


def _of_column(branch: Branch, column: str, x: Tensor, lengths: Tensor, weight: Tensor) -> Tensor:
    layer, pooling = parse_column(column)
    tokens, counts = branch.windows.torch(x, lengths)
    hidden = branch.fpt.features(tokens, counts, [f"{layer}/all"])[f"{layer}/all"]
    added = _of_tokens(hidden, counts, pooling, weight)
    if isinstance(branch.fpt.task.form, Tokens) or branch.windows.plain:
        return added
    stride = branch.windows.stride
    begin = 0 if branch.windows.pad == "same" else (branch.windows.reach - stride) // 2
    position = (torch.arange(added.shape[1] * stride) + max(begin, 0)).clamp(max=x.shape[1] - 1)
    out = added.new_zeros(len(x), x.shape[1], added.shape[2])
    return out.index_add_(1, position, (added / stride).repeat_interleave(stride, dim=1))


def _of_tokens(hidden: Tensor, lengths: Tensor, pooling: str, weight: Tensor) -> Tensor:
    """Return the contribution of each token (rows, tokens, width) under a pooling; 0 if the pooling is not a sum."""
    rows, tokens, width = hidden.shape
    weight = weight.double().reshape(-1, width, weight.shape[1])
    real = torch.arange(tokens) < lengths[:, None]
    hidden = hidden.double().masked_fill(~real[:, :, None], 0.0)
    hidden = (hidden - hidden.sum((0, 1)) / real.sum()).masked_fill(~real[:, :, None], 0.0)
    if pooling in ("tokens", "all"):
        return torch.einsum("rtw,twk->rtk", hidden, weight[:tokens])
    if pooling in ("last", "first"):
        at = lengths - 1 if pooling == "last" else torch.zeros_like(lengths)
        shares = torch.nn.functional.one_hot(at, tokens)[:, None]
    elif pooling == "mean" or pooling.startswith("segments"):
        shares = stretch_weights(lengths, tokens, len(weight))
    else:
        return hidden.new_zeros(rows, tokens, weight.shape[2])
    return torch.einsum("rst,rtw,swk->rtk", shares.double(), hidden, weight)
