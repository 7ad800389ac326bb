"""The Vision Transformer (Dosovitskiy et al. 2021) and DINOv2 (Oquab et al. 2023) over any sequence of vectors.

As Lu et al. 2021 (appendix D.2) use it: no patch embedding, no class token, and new positions. Their positions start at
zero and are trained. A frozen model needs positions that differ between tokens, so here they are drawn from the seed,
like those of an untrained GPT-2, with pretrained weights as well as with random ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, lazy_config

POSITIONS = 1024


class SequenceEmbeddings(nn.Module):
    """Replaces the patch embeddings: the vectors themselves, with positions added."""

    def __init__(self, pictures: nn.Module, width: int) -> None:
        super().__init__()
        self.pictures = pictures  # the model's own embeddings, which vectors do not use
        self.position_embeddings = nn.Parameter(torch.zeros(POSITIONS, width))
        # The model reads the type of its pixels from this attribute.
        self.patch_embeddings = SimpleNamespace(projection=SimpleNamespace(weight=self.position_embeddings))

    def forward(self, embeds: Tensor, **_images_only: Any) -> Tensor:
        """Return (batch, tokens, width) vectors with positions."""
        return embeds + self.position_embeddings[: embeds.shape[1]]


def _over_sequences(model: Any, config: Any) -> nn.Module:
    """Replace the embeddings of a model by `SequenceEmbeddings`, which keep the original ones."""
    model.embeddings = SequenceEmbeddings(model.embeddings, config.hidden_size)
    return model


def _shape(config: Any) -> Shape:
    """Return the size of a model over sequences."""
    return Shape(config.num_hidden_layers, config.hidden_size, POSITIONS, causal=False)


KNOWN = {
    "google/vit-base-patch16-224-in21k": lazy_config("vit"),
    "facebook/dinov2-base": lazy_config("dinov2", image_size=518),
}


def _run(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states."""
    return model(pixel_values=embeds, attention_mask=mask).last_hidden_state


def _family(name: str, **facts: Any) -> Family:
    return Family(
        name=name,
        shape=_shape,
        run=_run,
        draw=draw_normal,
        final_norm="layernorm",
        unused=("embeddings.pictures",),
        native_input="embeddings.pictures",
        reads="pixels",
        unsaved=("embeddings.",),
        attention="attention",
        feedforward=("mlp",),
        **facts,
    )


VIT = _family(
    "vit",
    loader=HubLoader(options={"add_pooling_layer": False}, adapt=_over_sequences),
    blocks="layers",
    groups={
        "positions": ("position_embeddings",),
        "layernorm": ("layernorm",),
        "attention": (".attention.",),
        "feedforward": (".mlp.",),
    },
    heads=("classifier.", "pooler."),
)
DINOV2 = _family(
    "dinov2",
    loader=HubLoader(adapt=_over_sequences),
    blocks="encoder.layer",
    groups={
        "positions": ("position_embeddings",),
        "layernorm": ("norm",),
        "attention": (".attention.", ".layer_scale1."),
        "feedforward": (".mlp.", ".layer_scale2."),
    },
    heads=("classifier.",),
)
