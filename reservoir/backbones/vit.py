"""The Vision Transformer (Dosovitskiy et al. 2021) over any sequence of vectors, images or not.

As Lu et al. 2021 (appendix D.2) use it: no patch embedding, no class token, positions of its own. Theirs start at
zero and are trained; a frozen model needs some that tell tokens apart, so they are drawn from the seed, like those of
an untrained GPT-2, for pretrained weights as for random ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal

POSITIONS = 1024


class SequenceEmbeddings(nn.Module):
    """What stands in the place of a ViT's patch embeddings: the vectors themselves, with positions added."""

    def __init__(self, pictures: nn.Module, width: int) -> None:
        super().__init__()
        self.pictures = pictures  # the model's own, which no vector passes
        self.position_embeddings = nn.Parameter(torch.zeros(POSITIONS, width))
        # The model asks its patch embedding for the type of pixels that it takes.
        self.patch_embeddings = SimpleNamespace(projection=SimpleNamespace(weight=self.position_embeddings))

    def forward(self, embeds: Tensor, **_images_only: Any) -> Tensor:
        """Return (batch, tokens, width) vectors with positions."""
        return embeds + self.position_embeddings[: embeds.shape[1]]


def over_sequences(model: Any, config: Any) -> nn.Module:
    """Put `SequenceEmbeddings` in the place of a model's own, and these inside them."""
    model.embeddings = SequenceEmbeddings(model.embeddings, config.hidden_size)
    return model


def shape(config: Any) -> Shape:
    """Return the size of a model over sequences."""
    return Shape(config.num_hidden_layers, config.hidden_size, POSITIONS, causal=False)


def _config() -> Any:
    from transformers import ViTConfig

    return ViTConfig()


KNOWN = {"google/vit-base-patch16-224-in21k": _config}


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states."""
    return model(pixel_values=embeds, attention_mask=mask).last_hidden_state


VIT = Family(
    name="vit",
    loader=HubLoader(options={"add_pooling_layer": False}, adapt=over_sequences),
    shape=shape,
    run=run,
    blocks="layers",
    groups={
        "positions": ("position_embeddings",),
        "layernorm": ("layernorm",),
        "attention": (".attention.",),
        "feedforward": (".mlp.",),
    },
    draw=draw_normal,
    final_norm="layernorm",
    unused=("embeddings.pictures",),
    door="embeddings.pictures",
    reads="pixels",
    heads=("classifier.", "pooler."),
    own=("embeddings.",),
    attention="attention",
    feedforward=("mlp",),
)
