"""The encoder of T5 (Raffel et al. 2020): pre-norm with RMSNorm, bidirectional, sequences of any length.

The input enters the first block as it is: positions are relative, biases of the attention that all blocks share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, lazy_config, run


def _model(_config: Any) -> Any:
    from transformers import T5EncoderModel

    return T5EncoderModel


KNOWN = {
    "t5-small": lazy_config("t5", num_layers=6, d_model=512, num_heads=8, d_ff=2048),
    "t5-base": lazy_config("t5", num_layers=12, d_model=768, num_heads=12, d_ff=3072),
}


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw a weight whose standard deviation keeps activations near one although attention is not scaled."""
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
    note="the encoder alone; the parameters of the decoder are not counted",
    final_norm="encoder.final_layer_norm",
    unused=("shared", "encoder.embed_tokens"),
    native_input="shared",
    reads="text",
    heads=("decoder.", "lm_head."),
    attention="layer.0.SelfAttention",
    feedforward=("layer.1",),
)
