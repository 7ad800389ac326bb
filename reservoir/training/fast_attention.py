r"""Causal attention with dropout of its probabilities, on a CPU.

.. math::

    O = \frac{M \odot P}{1 - r} V, \quad P = \mathrm{softmax}(s \, Q K^T), \quad M_{ij} = 0 \text{ with probability } r,

has no fused kernel there: torch computes whole matrices of scores with one random draw per score, which at 1,024 tokens
takes longer than everything else. Here blocks of queries are processed one after the other, only the keys that a causal
query sees are multiplied, and a draw takes 16 bits of a generator that is ten times faster. For the backward pass a
block keeps only its probabilities in the values' precision, the dropped ones with a negative sign; there

.. math::

    \frac{\partial L}{\partial S} = \frac{M \odot P}{1 - r} \odot (D V^T) - P \odot \mathrm{rowsum}(D \odot O)

with S the scores and D the gradient of O, where the row sums are those of flash attention (Dao et al. 2022, appendix
B.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

QUERIES = 128
"""Queries of a block; larger blocks compute more scores that a causal query does not see."""

SCORES = 2**18
"""Scores of a block, over several heads, which fit into a CPU's cache."""

LEVELS = 2**16
"""Dropout rates are rounded to multiples of 1 / `LEVELS`."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, rate: float, seed: int) -> Tensor:
    """Return causal attention (batch, heads, tokens, width), with a share ``rate`` of the probabilities dropped.

    Scores, times ``scale``, are always float32. The result has the dtype of the values, which may differ from that of
    queries and keys, because rotary positions leave these in float32.
    """
    return _Attention.apply(query, key, value, scale, rate, seed)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, rate: float, seed: int) -> Tensor:
        q, k, v = (t.detach().flatten(0, 1) for t in (query, key, value))
        scaled, keys = q.float() * scale, k.float().transpose(1, 2)
        out, signed = torch.empty_like(v), v.new_empty(max(scores.stop for *_, scores in _blocks(q)))
        draw = generator(seed)
        with torch.autocast("cpu", enabled=False):  # which would round the scores
            for heads, rows, seen, scores in _blocks(q):
                p = _probabilities(scaled[heads, rows], keys[heads, :, :seen])
                p *= keep(p.shape, rate, draw).mul_(2).sub_(1)
                block = signed[scores].view(p.shape)
                block.copy_(p)
                out[heads, rows] = torch.bmm(block.clamp(min=0), v[heads, :seen])
        out *= 1 / (1 - rate)
        ctx.save_for_backward(q, k, v, out, signed)
        ctx.settings = (scale, rate)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, signed = ctx.saved_tensors
        scale, rate = ctx.settings
        (gradient,) = gradients
        grad = gradient.reshape(q.shape)
        sums = (grad.float() * out.float()).sum(-1, keepdim=True).to(v.dtype)
        grad = grad / (1 - rate)
        dq, dk, dv = torch.empty_like(q), torch.zeros(k.shape), torch.zeros(v.shape)
        for heads, rows, seen, scores in _blocks(q):
            d = grad[heads, rows]
            block = signed[scores].view(*d.shape[:2], seen)
            kept = block.clamp(min=0)
            dv[heads, :seen] += torch.bmm(kept.transpose(1, 2), d)
            dp = torch.bmm(d, v[heads, :seen].transpose(1, 2))
            ds = dp.mul_(kept).addcmul_(block.abs(), sums[heads, rows], value=-1).to(k.dtype)
            dq[heads, rows] = torch.bmm(ds, k[heads, :seen]).mul_(scale)
            dk[heads, :seen] += torch.bmm(ds.transpose(1, 2), q[heads, rows])
        pairs = ((dq, q), (dk.mul_(scale), k), (dv, v))
        return (*(t.to(of.dtype).view(gradient.shape) for t, of in pairs), None, None, None)


def generator(seed: int) -> np.random.Generator:
    """Return the generator that `keep` draws from."""
    return np.random.Generator(np.random.SFC64(seed))


def keep(shape: torch.Size, rate: float, draw: np.random.Generator) -> Tensor:
    """Draw a mask of kept values: int8, 1 with probability ``1 - rate``, else 0."""
    count = math.prod(shape)
    bits = draw.integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.int16)[:count]
    kept = bits >= round(rate * LEVELS) - LEVELS // 2  # NumPy compares ten times faster
    return torch.from_numpy(kept.view(np.int8)).view(shape)


def _blocks(q: Tensor) -> Iterator[tuple[slice, slice, int, slice]]:
    """Yield heads and queries of each block, the number of keys these queries see, and the slice of their scores."""
    heads, tokens, _ = q.shape
    start = 0
    for row in range(0, tokens, QUERIES):
        seen = min(row + QUERIES, tokens)
        several = max(1, SCORES // (QUERIES * seen))
        for head in range(0, heads, several):
            last = min(head + several, heads)
            size = (last - head) * (seen - row) * seen
            yield slice(head, last), slice(row, seen), seen, slice(start, start + size)
            start += size


def _probabilities(q: Tensor, k: Tensor) -> Tensor:
    """Return the probabilities (heads, queries, keys) of the last queries, from (heads, width, keys)."""
    scores = torch.bmm(q, k)
    rows = q.shape[1]
    scores[:, :, -rows:] += torch.full((rows, rows), float("-inf")).triu_(1)
    return scores.softmax(dim=-1)
