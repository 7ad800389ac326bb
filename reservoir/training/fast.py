r"""Faster equivalents on a CPU: attention with dropout, and dropout from cheap random bits.

Torch has no fused kernel for attention with dropout on a CPU. It computes whole matrices of scores, with
one random draw per score. Processor time of a training step (forward, backward, clipping, Adam) with
dropout 0.1, as a multiple of that with this file; medians of at least 8 pairs that take turns on one
thread:

============================  ========  =======
tokens x rows, model          bfloat16  float32
============================  ========  =======
64 x 8, mini (the default)        1.25     1.04
512 x 4, mini (as in ListOps)     2.28     1.46
64 x 16, 3 blocks of gpt2         1.20     1.04
1,024 x 2, 3 blocks of gpt2       4.02     1.81
============================  ========  =======
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.gpt2 import ATTENTION, GPT2Model, sdpa
from reservoir.fpt import FPT

NAME = "reservoir"  # name under which this attention is registered
QUERIES = 128  # queries of a block; larger blocks compute more scores that a causal query does not see
SCORES = 2**18  # scores of a block, over several heads, which fit into a CPU's cache
RATE_LEVELS = 2**16  # dropout rates are rounded to multiples of 1 / `RATE_LEVELS`


def speed_up(model: FPT) -> None:
    """Replace dropout, and the attention of GPT-2, by faster equivalents for a CPU."""
    # The lists are complete before modules are replaced. Subclasses of dropout may do something else.
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    transformer = model.backbone.model
    if isinstance(transformer, GPT2Model):
        ATTENTION[NAME] = attention
        transformer.set_attn_implementation(NAME)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float
) -> tuple[Tensor, None]:
    """Return attention (batch, tokens, heads, width) of tensors (batch, heads, tokens, width), and None.

    The functions of `ATTENTION` have this signature; None stands for the probabilities, which are not returned.
    """
    if dropout == 0 or query.device.type != "cpu":
        return sdpa(module, query, key, value, dropout=dropout, scaling=scaling)
    attended = CausalAttention.apply(query, key, value, scaling, dropout, _seed())
    return attended.transpose(1, 2).contiguous(), None


class CausalAttention(torch.autograd.Function):
    r"""Causal attention (batch, heads, tokens, width), with a share ``rate`` of its probabilities dropped.

    With Q, K and V the queries, keys and values, s ``scale``, r ``rate``, and M the mask of the
    probabilities that are kept (1) or dropped (0):

    .. math::

        O = \frac{M \odot P}{1 - r} V, \quad P = \mathrm{softmax}(S), \quad S = s \, Q K^T, \quad
        \Pr(M_{ij} = 0) = r

    In `forward`, the names in lower case are those of a block of queries. Let D be the gradient of O. The gradients of
    the others are, with the row sums of flash attention (Dao et al. 2022, appendix B.2),

    .. math::

        dV = \frac{(M \odot P)^T}{1 - r} D, \quad dS = \frac{M \odot P}{1 - r} \odot (D V^T) - P \odot
        \mathrm{rowsum}(D \odot O), \quad dQ = s \, dS \, K, \quad dK = s \, dS^T Q

    Blocks of queries multiply only the keys that they see. Scores are always float32. For the backward
    pass a block keeps P in the precision of its input, and M in one byte each.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, rate: float, seed: int
    ) -> Tensor:
        """Return the attention; ``scale`` multiplies the scores, and ``seed`` selects the dropped probabilities."""
        q, k, v = (t.detach().flatten(0, 1) for t in (query, key, value))  # (batch x heads, tokens, width)
        scaled_q = q.float() * scale
        transposed_k = k.float().transpose(1, 2)
        # P and M of all blocks, kept for the backward pass, are vectors that the blocks divide among them.
        scores_of_blocks = max(block.scores.stop for block in blocks(q))
        probabilities = v.new_empty(scores_of_blocks)
        mask = torch.empty(scores_of_blocks, dtype=torch.int8)
        out = torch.empty_like(v)
        draw = mask_generator(seed)
        with torch.autocast("cpu", enabled=False):  # autocast would round the scores
            for block in blocks(q):
                # S, (heads, queries, keys), of the keys up to the last query of the block.
                s = torch.bmm(
                    scaled_q[block.heads, block.queries], transposed_k[block.heads, :, : block.seen]
                )
                # The last keys of a block are those of its queries' own tokens: each query sees those up to itself.
                queries = s.shape[1]
                s[:, :, -queries:] += torch.full((queries, queries), float("-inf")).triu_(1)
                p = probabilities[block.scores].view(s.shape)
                p.copy_(s.softmax(dim=-1))
                m = mask[block.scores].view(s.shape)
                m.copy_(keep(s.shape, rate, draw))
                out[block.heads, block.queries] = torch.bmm(p * m.to(p.dtype), v[block.heads, : block.seen])
        out *= 1 / (1 - rate)
        ctx.save_for_backward(q, k, v, out, probabilities, mask)
        ctx.settings = (scale, rate)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, and None for ``scale``, ``rate`` and ``seed``."""
        q, k, v, out, probabilities, mask = ctx.saved_tensors
        scale, rate = ctx.settings
        (gradient,) = gradients
        d = gradient.reshape(q.shape)
        row_sums = (d.float() * out.float()).sum(-1, keepdim=True).to(v.dtype)  # rowsum(D * O)
        d = d / (1 - rate)  # every other use of D is divided by the share that is kept
        # Keys and values get a sum over blocks of queries, in float32.
        dq = torch.empty_like(q)
        dk, dv = torch.zeros(k.shape), torch.zeros(v.shape)
        for block in blocks(q):
            d_block = d[block.heads, block.queries]
            shape = (*d_block.shape[:2], block.seen)
            p = probabilities[block.scores].view(shape)
            masked_p = p * mask[block.scores].view(shape).to(p.dtype)
            dv[block.heads, : block.seen] += torch.bmm(masked_p.transpose(1, 2), d_block)
            # dS = (M * P) * (D V^T) - P * rowsum(D * O), in the memory of the product
            dp = torch.bmm(d_block, v[block.heads, : block.seen].transpose(1, 2))
            ds = dp.mul_(masked_p).addcmul_(p, row_sums[block.heads, block.queries], value=-1).to(k.dtype)
            dq[block.heads, block.queries] = torch.bmm(ds, k[block.heads, : block.seen]).mul_(scale)
            dk[block.heads, : block.seen] += torch.bmm(ds.transpose(1, 2), q[block.heads, block.queries])
        dk.mul_(scale)
        gradients_of_inputs = (part.to(q.dtype).view(gradient.shape) for part in (dq, dk, dv))
        return (*gradients_of_inputs, None, None, None)


@dataclass(frozen=True)
class ScoreBlock:
    """Some heads and queries, whose scores are computed at once."""

    heads: slice  # of batch x heads
    queries: slice  # of tokens
    seen: int  # number of keys, from the first, that at least one of the queries sees
    scores: slice  # the place of their scores in a vector of the scores of all blocks


def blocks(q: Tensor) -> Iterator[ScoreBlock]:
    """Yield the blocks of queries (heads, tokens, width), one range of tokens after the other."""
    heads, tokens, _ = q.shape
    first_score = 0
    for first_query in range(0, tokens, QUERIES):
        # A causal query sees the keys up to itself, so the queries see those up to the last of them.
        seen = min(first_query + QUERIES, tokens)
        heads_at_once = max(1, SCORES // (QUERIES * seen))
        for first_head in range(0, heads, heads_at_once):
            end_head = min(first_head + heads_at_once, heads)
            size = (end_head - first_head) * (seen - first_query) * seen
            yield ScoreBlock(
                heads=slice(first_head, end_head),
                queries=slice(first_query, seen),
                seen=seen,
                scores=slice(first_score, first_score + size),
            )
            first_score += size


def mask_generator(seed: int) -> np.random.Generator:
    """Return the generator for `keep`: SFC64, whose random bits are cheap."""
    return np.random.Generator(np.random.SFC64(seed))


def keep(shape: torch.Size, rate: float, draw: np.random.Generator) -> Tensor:
    """Draw a mask of kept values of a shape: int8, 1 with probability ``1 - rate``, else 0."""
    count = math.prod(shape)
    draws = -(-count // 4)  # rounded up: one draw of 64 bits decides four values
    bits = draw.integers(0, 2**64, draws, dtype=np.uint64).view(np.int16)[:count]
    # A value is dropped if its 16 bits, read as a signed number, are among the smallest, a share ``rate`` of all.
    # NumPy compares ten times faster than torch.
    is_kept = bits >= round(rate * RATE_LEVELS) - RATE_LEVELS // 2
    return torch.from_numpy(is_kept.view(np.int8)).view(shape)


class Dropout(nn.Dropout):
    """Dropout with cheap random bits on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the values; in training mode some are set to zero and the others scaled up."""
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        return _Dropped.apply(input, self.p, _seed())


class _Dropped(torch.autograd.Function):
    """Dropout whose mask is kept for the backward pass in one byte per value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:
        """Return the values with a share ``rate`` set to zero and the others scaled up."""
        mask = keep(x.shape, rate, mask_generator(seed))
        ctx.save_for_backward(mask)
        ctx.rate = rate
        return _times(x, mask, rate)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the values, and None for ``rate`` and ``seed``."""
        (mask,) = ctx.saved_tensors
        (gradient,) = gradients
        return _times(gradient, mask, ctx.rate), None, None


def _times(values: Tensor, mask: Tensor, rate: float) -> Tensor:
    """Return the values where the mask is 1, scaled up, and zero where it is 0.

    On a CPU, a product is several times faster than ``where``.
    """
    return (values * mask.to(values.dtype)).mul_(1 / (1 - rate))


def _seed() -> int:
    """Draw a seed from torch's generator, so that ``torch.manual_seed`` decides which values are dropped."""
    return int(torch.randint(2**62, ()))
