"""DINOv2 (Oquab et al. 2023): a Vision Transformer whose branches have a learnt scale, over any sequence of vectors.

What is said of the ViT holds of it: no patches, no class token, and positions drawn from the seed.
"""

from __future__ import annotations

from typing import Any

from reservoir.backbones.family import Family
from reservoir.backbones.hub import HubLoader, draw_normal
from reservoir.backbones.vit import over_sequences, run, shape


def _config() -> Any:
    from transformers import Dinov2Config

    return Dinov2Config(image_size=518)


KNOWN = {"facebook/dinov2-base": _config}


DINOV2 = Family(
    name="dinov2",
    loader=HubLoader(adapt=over_sequences),
    shape=shape,
    run=run,
    blocks="encoder.layer",
    groups={
        "positions": ("position_embeddings",),
        "layernorm": ("norm",),
        "attention": (".attention.", ".layer_scale1."),
        "feedforward": (".mlp.", ".layer_scale2."),
    },
    draw=draw_normal,
    final_norm="layernorm",
    unused=("embeddings.pictures",),
    door="embeddings.pictures",
    reads="pixels",
    heads=("classifier.",),
    own=("embeddings.",),
    attention="attention",
    feedforward=("mlp",),
)
