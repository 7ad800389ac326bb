r"""Linformer (Wang et al. 2020), a pre-norm transformer that attends in both directions to mixtures of the tokens.

.. math::

    \mathrm{softmax}\left(Q (E K)^T / \sqrt{d}\right) F V

The heads of a block share E and F, (rank, tokens). A sequence of n tokens uses their first n columns.
Positions, norms, feedforward layers and their first weights are GPT-2's.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones import gpt2
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, draw_normal
from reservoir.backbones.registry import register
from reservoir.errors import InputError


@dataclass
class LinformerConfig(Config):
    """The configuration of a Linformer."""

    depth: int = 3
    width: int = 768
    heads: int = 8
    tokens: int = 1024  # length of the longest sequence
    rank: int = 256  # number of mixtures that each token attends to
    initializer_range: float = 0.02  # standard deviation of the first weights, except those of E and F
    model_type: str = "linformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        # `reservoir.backbones.registry` checks the numbers in the `Shape` of every family: depth, width and tokens.
        # These two are not in it, and it knows the number of heads only by the names that transformers uses.
        for name in ("heads", "rank"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"backbone 'linformer': its configuration sets {name} to {getattr(self, name)}",
                    "give at least 1",
                )


class LinformerAttention(gpt2.GPT2Attention):
    """Multi-head attention to mixtures of the tokens."""

    def __init__(self, config: LinformerConfig) -> None:
        # The projections, the number of heads and the dropouts are those of GPT-2's attention (in its block 0).
        super().__init__(gpt2.GPT2Config(n_embd=config.width, n_head=config.heads), 0)
        self.E = nn.Parameter(torch.zeros(config.rank, config.tokens))
        self.F = nn.Parameter(torch.zeros(config.rank, config.tokens))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Map (batch, tokens, width) to the same shape; the mask (batch, tokens) is 1 at real tokens.

        The second value, None, stands where GPT-2's attention returns its weights.
        """
        tokens = x.shape[1]
        query, key, value = self.c_attn(x).chunk(3, -1)
        if mask is not None:  # padding must not be in the mixtures
            key, value = key * mask[..., None], value * mask[..., None]
        # The mixtures E K of the keys and F V of the values are (batch, rank, width).
        mixed_keys, mixed_values = self.E[:, :tokens] @ key, self.F[:, :tokens] @ value
        # Attention of each head: (batch, heads, tokens or rank, width / heads).
        query, mixed_keys, mixed_values = (
            states.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for states in (query, mixed_keys, mixed_values)
        )
        rate = self.attn_dropout.p if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(
            query, mixed_keys, mixed_values, dropout_p=rate
        )
        # The heads side by side again.
        return self.resid_dropout(self.c_proj(attended.transpose(1, 2).flatten(2))), None


class LinformerBlock(nn.Module):
    """One pre-norm block: attention to mixtures, then GPT-2's feedforward layer, each added to its input."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attn = LinformerAttention(config)
        self.mlp = gpt2.Feedforward(gpt2.GPT2Config(n_embd=config.width))

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Map hidden states (batch, tokens, width) to those of the next layer; the mask is 1 at real tokens."""
        hidden = hidden + self.attn(self.ln_1(hidden), mask)[0]
        return hidden + self.mlp(self.ln_2(hidden))


class Linformer(nn.Module):
    """Positions, blocks and a final norm."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.wpe = nn.Embedding(config.tokens, config.width)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(LinformerBlock(config) for _ in range(config.depth))
        self.ln_f = nn.LayerNorm(config.width)

    def forward(self, embeds: Tensor, mask: Tensor | None) -> Tensor:
        """Map embeddings (batch, tokens, width) to the hidden states after the last norm, of the same shape."""
        hidden = self.drop(embeds + self.wpe.weight[: embeds.shape[1]])
        for block in self.h:
            hidden = block(hidden, mask)
        return self.ln_f(hidden)


def _draw(
    name: str, shape: tuple[int, ...], config: LinformerConfig, generator: np.random.Generator
) -> np.ndarray | None:
    """Return the first weights of a parameter, or None for one that keeps its value, such as a norm's gain."""
    # As in the authors' theorems. A token's part in the mixtures then has the length of its key or value
    # on average, whatever the rank and the number of tokens.
    if name.endswith((".E", ".F")):
        return generator.standard_normal(shape, dtype=np.float32) * config.rank**-0.5
    # As in GPT-2, the weights of the 2 x depth outputs that are added to the hidden states are divided by this root.
    divisor = math.sqrt(2 * config.depth) if "c_proj" in name else 1.0
    return draw_normal(name, shape, config, generator, divisor)


LINFORMER = Family(
    name="linformer",
    loader=FolderLoader(Linformer),
    config=LinformerConfig,
    pretrained=False,
    shape=lambda config: Shape(config.depth, config.width, config.tokens, causal=False),
    run=lambda model, embeds, mask: model(embeds, mask),
    blocks="h",
    groups=gpt2.GPT2.groups,
    draw=_draw,
    scheme=f"{gpt2.GPT2.scheme}, for E and F rank^-1/2",
    final_norm="ln_f",
    feedforward=("mlp",),
)
register(LINFORMER)
