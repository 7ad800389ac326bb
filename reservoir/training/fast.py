"""Faster equivalents on a CPU: attention with dropout, and dropout from cheap random bits."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.gpt2 import ATTENTION, GPT2Model, sdpa
from reservoir.fpt import FPT

NAME = "reservoir"  # name under which this attention is registered
QUERIES = 128  # queries of a block; larger blocks compute more scores that a causal query does not see
SCORES = 2**18  # scores of a block, over several heads, which fit into a CPU's cache
LEVELS = 2**16  # dropout rates are rounded to multiples of 1 / `LEVELS`


def speed_up(model: FPT) -> None:
    """Replace dropout, and the attention of GPT-2, by faster equivalents for a CPU."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    inner = model.backbone.model
    if isinstance(inner, GPT2Model):
        ATTENTION[NAME] = attention
        inner.set_attn_implementation(NAME)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float
) -> tuple[Tensor, None]:
    """Return attention as the functions of `ATTENTION` do."""
    if dropout == 0 or query.device.type != "cpu":
        return sdpa(module, query, key, value, dropout=dropout, scaling=scaling)
    mixed = CausalAttention.apply(query, key, value, scaling, dropout, _seed())
    return mixed.transpose(1, 2).contiguous(), None


class CausalAttention(torch.autograd.Function):
    r"""Causal attention (batch, heads, tokens, width), with a share ``rate`` of its probabilities dropped.

    .. math::

        O = \frac{M \odot P}{1 - r} V, \quad P = \mathrm{softmax}(s \, Q K^T), \quad \Pr(M_{ij} = 0) =
        r,

    has no fused kernel on a CPU: torch computes whole matrices of scores with one random draw per
    score, which at 1,024 tokens takes longer than everything else. Here blocks of queries multiply
    only the keys that they see, and a draw takes 16 bits of a faster generator. For the backward pass
    a block keeps only its probabilities in the precision of its input, the dropped ones with a
    negative sign:

    .. math::

        \frac{\partial L}{\partial S} = \frac{M \odot P}{1 - r} \odot (D V^T) - P \odot
        \mathrm{rowsum}(D \odot O)

    with S the scores and D the gradient of O, where the row sums are those of flash attention (Dao et
    al. 2022, appendix B.2). Scores are always float32.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, rate: float, seed: int
    ) -> Tensor:
        """Return the attention; ``scale`` multiplies the scores, and ``seed`` selects the dropped probabilities."""
        q, k, v = (t.detach().flatten(0, 1) for t in (query, key, value))
        scaled, keys = q.float() * scale, k.float().transpose(1, 2)
        out, signed = torch.empty_like(v), v.new_empty(max(scores.stop for *_, scores in blocks(q)))
        draw = generator(seed)
        with torch.autocast("cpu", enabled=False):  # autocast would round the scores
            for heads, rows, seen, scores in blocks(q):
                p = torch.bmm(scaled[heads, rows], keys[heads, :, :seen])
                count = p.shape[1]
                p[:, :, -count:] += torch.full((count, count), float("-inf")).triu_(1)
                p = p.softmax(dim=-1)
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
        """Return the gradients of query, key and value."""
        q, k, v, out, signed = ctx.saved_tensors
        scale, rate = ctx.settings
        (gradient,) = gradients
        grad = gradient.reshape(q.shape)
        sums = (grad.float() * out.float()).sum(-1, keepdim=True).to(v.dtype)
        grad = grad / (1 - rate)
        dq, dk, dv = torch.empty_like(q), torch.zeros(k.shape), torch.zeros(v.shape)
        for heads, rows, seen, scores in blocks(q):
            d = grad[heads, rows]
            block = signed[scores].view(*d.shape[:2], seen)
            kept = block.clamp(min=0)
            dv[heads, :seen] += torch.bmm(kept.transpose(1, 2), d)
            dp = torch.bmm(d, v[heads, :seen].transpose(1, 2))
            ds = dp.mul_(kept).addcmul_(block.abs(), sums[heads, rows], value=-1).to(k.dtype)
            dq[heads, rows] = torch.bmm(ds, k[heads, :seen]).mul_(scale)
            dk[heads, :seen] += torch.bmm(ds.transpose(1, 2), q[heads, rows])
        return (
            *(part.to(q.dtype).view(gradient.shape) for part in (dq, dk.mul_(scale), dv)),
            None,
            None,
            None,
        )


def blocks(q: Tensor) -> Iterator[tuple[slice, slice, int, slice]]:
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


def generator(seed: int) -> np.random.Generator:
    """Return the generator for `keep`."""
    return np.random.Generator(np.random.SFC64(seed))


def keep(shape: torch.Size, rate: float, draw: np.random.Generator) -> Tensor:
    """Draw a mask of kept values: int8, 1 with probability ``1 - rate``, else 0."""
    count = math.prod(shape)
    bits = draw.integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.int16)[:count]
    kept = bits >= round(rate * LEVELS) - LEVELS // 2  # NumPy compares ten times faster than torch
    return torch.from_numpy(kept.view(np.int8)).view(shape)


class Dropout(nn.Dropout):
    """Dropout with cheap random bits on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the values; in training mode some are set to zero and the others scaled up."""
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        return _Dropped.apply(input, self.p, _seed())


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:
        kept = keep(x.shape, rate, generator(seed))
        ctx.save_for_backward(kept)
        ctx.rate = rate
        return _times(x, kept, rate)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return _times(gradients[0], kept, ctx.rate), None, None


def _times(values: Tensor, kept: Tensor, rate: float) -> Tensor:
    """Return the kept values scaled up, and zero elsewhere; several times faster on a CPU than ``where``."""
    return (values * kept.to(values.dtype)).mul_(1 / (1 - rate))


def _seed() -> int:
    """Draw a seed from torch's generator, so that ``torch.manual_seed`` decides which values are dropped."""
    return int(torch.randint(2**62, ()))
