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

# The score of a token with itself, on average, behind a layer norm. Heads of GPT-2, 64 wide, have it with s = 1. With
# two thirds of it, models of 1, 3 and 12 heads recall 2 to 3 percentage points less of the task bit-memory
# (docs/log.md).
OWN_SCORE = 8.0


def check_tied(family: Family) -> None:
    """Raise `InputError` unless it is known where a family's attention maps tokens to queries and keys."""
    if not family.queries:
        raise InputError(
            f"init 'tied': {family.name} has no attention whose queries and keys are known",
            "use --init random",
        )


def tie_queries_and_keys(backbone: Backbone, seed: int) -> None:
    """Redraw in place the matrices of queries and keys of every block, and set their biases to zero."""
    family = backbone.family
    for number, block in enumerate(backbone.blocks):
        maps = head_maps(family, backbone.config, block)
        key_heads, head_width, width = maps.keys.shape
        # Each block has its own generator, keyed by its name, so that a model cut to fewer blocks keeps its weights.
        random = generator(seed, f"{family.blocks}.{number}.{family.queries}", "tied")
        drawn = np.stack([orthonormal_rows(random, head_width, width) for _ in range(key_heads)])
        heads = torch.from_numpy(tied_scale(family, head_width) * drawn).float()
        # With grouped keys, several successive heads of the queries share a head of the keys, and all equal it.
        queries_per_key = len(maps.queries) // key_heads
        maps.queries.copy_(heads.repeat_interleave(queries_per_key, dim=0))
        maps.keys.copy_(heads)
        for bias in maps.biases:
            bias.zero_()


def tied_scale(family: Family, head_width: int) -> float:
    """Return s, with which the score of a token with itself is `OWN_SCORE` whatever the width d of the heads."""
    # A token of norm sqrt(width), such as a layer norm returns, has a query and a key of squared norm s^2 d on average.
    # So its score is s^2 d / divisor, which is solved for s.
    divisor = head_width**0.5 if family.divides_scores else 1.0
    return (OWN_SCORE * divisor / head_width) ** 0.5


@dataclass(frozen=True)
class HeadMaps:
    """Views of the parameters that map the tokens of a block to queries and keys, by head."""

    queries: Tensor  # (heads, d, width)
    keys: Tensor  # (heads of the keys, d, width); fewer than of the queries if keys are grouped
    biases: tuple[Tensor, ...]  # those of both maps, (heads x d,) each; empty if there are none


def head_maps(family: Family, config: Any, block: nn.Module) -> HeadMaps:
    """Return views of a block's maps to queries and keys, so that writing to them changes the block."""
    query_map = block.get_submodule(family.queries)
    key_map = block.get_submodule(family.keys)
    if query_map is key_map:
        # A single projection returns queries, keys and values of the same size, one after the other.
        query_weight, key_weight, _values = _weight_rows(query_map).chunk(3)
        biases = tuple(part for bias in _biases(query_map) for part in bias.chunk(3)[:2])
    else:
        query_weight = _weight_rows(query_map)
        key_weight = _weight_rows(key_map)
        biases = (*_biases(query_map), *_biases(key_map))
    head_width = len(query_weight) // config.num_attention_heads
    return HeadMaps(
        queries=query_weight.unflatten(0, (-1, head_width)),
        keys=key_weight.unflatten(0, (-1, head_width)),
        biases=biases,
    )


def _weight_rows(linear_map: nn.Module) -> Tensor:
    """Return a view of a linear map's weight with the shape (outputs, inputs)."""
    weight = linear_map.get_parameter("weight").data
    # `Projection` has its weight the other way round.
    return weight.T if isinstance(linear_map, Projection) else weight


def _biases(linear_map: nn.Module) -> list[Tensor]:
    """Return a view of a linear map's bias (outputs,) in a list, which is empty if it has none."""
    return [parameter.data for name, parameter in linear_map.named_parameters() if name == "bias"]


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
        # Views, so that the matrix changes in place.
        row = matrix[number]
        later_rows = matrix[number + 1 :]
        row /= np.sqrt((row * row).sum())
        later_rows -= (later_rows * row).sum(axis=1, keepdims=True) * row
    return matrix
