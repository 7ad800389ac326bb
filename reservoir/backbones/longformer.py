"""Longformer (Beltagy et al. 2020): BERT's form with attention inside a sliding window, for thousands of tokens.

Sequences are padded to whole windows. No token attends globally: which one should is the choice of a trained task.
"""

from __future__ import annotations

from typing import Any

from reservoir.backbones.bert import GROUPS, HEADS, offset_positions, run
from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal


def _config() -> Any:
    from transformers import LongformerConfig

    return LongformerConfig(
        vocab_size=50265,
        max_position_embeddings=4098,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        attention_window=[512] * 12,
    )


KNOWN = {"allenai/longformer-base-4096": _config}


def _shape(config: Any) -> Shape:
    window = config.attention_window
    window = window if isinstance(window, int) else max(window)
    positions = offset_positions(config)
    return Shape(
        config.num_hidden_layers, config.hidden_size, positions - positions % window, causal=False, multiple=window
    )


LONGFORMER = Family(
    name="longformer",
    loader=HubLoader(options={"add_pooling_layer": False}),
    shape=_shape,
    run=run,
    blocks="encoder.layer",
    feedforward=("intermediate", "output"),
    groups=GROUPS,
    draw=draw_normal,
    unused=("embeddings.word_embeddings",),
    heads=HEADS,
)
