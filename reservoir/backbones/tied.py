r"""The init ``tied``: in each attention the keys equal the queries, so that a token attends to tokens of like content.

For each head of width d, with the matrix :math:`W` (d, width) that maps a token to its query and to its key,

.. math:: W_Q = W_K = W, \quad W W^\top = s^2 I

The score of two tokens is then, up to the error of a random projection to d dimensions, proportional to their inner
product. Language pretraining brings :math:`W_Q^\top W_K` nearer to a multiple of the identity, too (Trockman and Kolter
2023, "Mimetic initialization of self-attention layers", from which values and output differ here: they stay random).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.backbone import Backbone
from reservoir.backbones.family import Family
from reservoir.backbones.gpt2 import Projection
from reservoir.errors import InputError
from reservoir.random import generator

# The score of a token with itself, on average, behind a layer norm; heads of GPT-2, 64 wide, have it with W W' = I.
# With two thirds of it, 1, 3 and 12 heads recall 2 to 3 points less of bit-memory (docs/log.md).
OWN_SCORE = 8.0


def check_tied(family: Family) -> None:
    """Raise `InputError` unless it is known where a family's attention maps tokens to queries and keys."""
    if not family.queries:
        raise InputError(
            f"init 'tied': {family.name} has no attention whose queries and keys are known",
            "use --init random",
        )


def tie_queries_and_keys(backbone: Backbone, seed: int) -> None:
    """Redraw in place the queries and keys of every block, and set their biases to zero."""
    family = backbone.family
    for number, block in enumerate(backbone.blocks):
        maps = head_maps(family, backbone.config, block)
        key_heads, head_width, width = maps.keys.shape
        # Each block has its own generator, keyed by its name, so that a model cut to fewer blocks keeps the others.
        random = generator(seed, f"{family.blocks}.{number}.{family.queries}", "tied")
        drawn = np.stack([orthonormal_rows(random, head_width, width) for _ in range(key_heads)])
        heads = torch.from_numpy(tied_scale(family, head_width) * drawn).float()
        # With grouped keys, several successive heads of the queries share a head of the keys, and all equal it.
        group = len(maps.queries) // key_heads
        maps.queries.copy_(heads.repeat_interleave(group, dim=0))
        maps.keys.copy_(heads)
        for bias in maps.biases:
            bias.zero_()


def tied_scale(family: Family, head_width: int) -> float:
    """Return s, with which a token has the same score with itself whatever the width d of the heads."""
    # A token of norm sqrt(width), such as a layer norm returns, has a query and a key of squared norm s^2 d on average.
    divisor = head_width**0.5 if family.divides_scores else 1.0
    return (OWN_SCORE * divisor / head_width) ** 0.5


@dataclass(frozen=True)
class HeadMaps:
    """Views of the parameters that map the tokens of a block to queries and keys, by head."""

    queries: Tensor  # (heads, d, width)
    keys: Tensor  # (heads of the keys, d, width); fewer than of the queries if keys are grouped
    biases: tuple[Tensor, ...]


def head_maps(family: Family, config: Any, block: nn.Module) -> HeadMaps:
    """Return views of a block's queries and keys."""
    modules = [block.get_submodule(path) for path in (family.queries, family.keys)]
    weights = [_rows(module) for module in modules]
    biases = [
        parameter.data
        for module in modules
        for name, parameter in module.named_parameters()
        if name == "bias"
    ]
    if family.queries == family.keys:
        # Both modules are the same projection, so its bias is listed twice. It returns queries, keys and values of
        # the same size, one after the other.
        weights = list(weights[0].chunk(3)[:2])
        biases = [part for bias in biases[:1] for part in bias.chunk(3)[:2]]
    head_width = len(weights[0]) // config.num_attention_heads
    queries, keys = (weight.unflatten(0, (-1, head_width)) for weight in weights)
    return HeadMaps(queries, keys, tuple(biases))


def _rows(module: nn.Module) -> Tensor:
    """Return a view of a linear map's weight with the shape (outputs, inputs)."""
    weight = module.get_parameter("weight").data
    return weight.T if isinstance(module, Projection) else weight


def orthonormal_rows(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return a random float64 matrix Q (rows, columns), uniform among those with Q Q^T = I, the same on every machine.

    With more rows than columns, the columns are orthogonal instead, and the squared norm of Q is still ``rows``.
    """
    if rows > columns:
        return orthonormal_rows(random, columns, rows).T * np.sqrt(rows / columns)
    # By Gram and Schmidt: each row is normalised, and its direction subtracted from all later rows. LAPACK is faster,
    # but its last digits, and so the digest of the weights, depend on the processor; NumPy's products and sums do not.
    matrix = random.standard_normal((rows, columns))
    for number in range(rows):
        row, later = matrix[number], matrix[number + 1 :]
        row /= np.sqrt((row * row).sum())
        later -= (later * row).sum(axis=1, keepdims=True) * row
    return matrix
