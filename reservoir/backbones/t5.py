"""The encoder of T5 (Raffel et al. 2020): pre-norm with RMSNorm, sees both ways, relative positions, no longest length.

What enters the first block is the input itself; positions are biases of the attention, shared by all blocks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, run


def _model(_config: Any) -> Any:
    from transformers import T5EncoderModel

    return T5EncoderModel


def _config(depth: int, width: int, heads: int, feedforward: int) -> Any:
    from transformers import T5Config

    return T5Config(num_layers=depth, d_model=width, num_heads=heads, d_ff=feedforward)


KNOWN = {
    "t5-small": partial(_config, 6, 512, 8, 2048),
    "t5-base": partial(_config, 12, 768, 12, 3072),
}


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw a weight with the standard deviation that keeps activations of order one without a scaled attention."""
    if "layer_norm" in name:
        return None
    inner = {".q.": config.d_model * config.d_kv, ".o.": config.num_heads * config.d_kv, ".wo.": config.d_ff}
    size = next((size for piece, size in inner.items() if piece in name), config.d_model)
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_factor * size**-0.5)


T5 = Family(
    name="t5",
    loader=HubLoader(model=_model),
    shape=lambda config: Shape(config.num_layers, config.d_model, None, causal=False),
    run=run,
    blocks="encoder.block",
    groups={
        "positions": ("relative_attention_bias",),
        "layernorm": ("layer_norm",),
        "attention": (".SelfAttention.",),
        "feedforward": (".DenseReluDense.",),
    },
    draw=_draw,
    scheme="normal, deviation initializer_factor over the root of a sum's terms, of queries also of a head's width",
    note="the encoder alone: the parameters of the decoder are not counted",
    final_norm="encoder.final_layer_norm",
    unused=("shared", "encoder.embed_tokens"),
    door="shared",
    reads="text",
    heads=("decoder.", "lm_head."),
    attention="layer.0.SelfAttention",
    feedforward=("layer.1",),
)
