"""Llama (Touvron et al. 2023) and models of its form: causal, pre-norm with RMSNorm, rotary positions, gated units.

SmolLM, Mistral, Qwen and Gemma differ from it in details that transformers handles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, lazy_config, run_causal

MODEL_TYPES = ("llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


KNOWN: dict[str, Callable[[], Any]] = {
    "HuggingFaceTB/SmolLM2-135M": lazy_config(
        "llama",
        num_hidden_layers=30,
        hidden_size=576,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=8192,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
}


def _shape(config: Any) -> Shape:
    bidirectional = getattr(config, "use_bidirectional_attention", None) or False
    return Shape(config.num_hidden_layers, config.hidden_size, config.max_position_embeddings, causal=not bidirectional)


FAMILIES = tuple(
    Family(
        name=name,
        loader=HubLoader(),
        shape=_shape,
        run=run_causal,
        blocks="layers",
        groups={"layernorm": ("norm",), "attention": (".self_attn.",), "feedforward": (".mlp.",)},
        draw=draw_normal,
        final_norm="norm",
        unused=("embed_tokens",),
        native_input="embed_tokens",
        reads="text",
        heads=("lm_head.", "score.", "classifier."),
        attention="self_attn",
        feedforward=("mlp",),
    )
    for name in MODEL_TYPES
)
