"""The Llama form (Touvron et al. 2023): causal, pre-norm with RMSNorm, rotary positions, gated feedforward.

Llama, SmolLM, Mistral, Qwen and Gemma differ in details that transformers knows; here they are one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, run_causal

MODEL_TYPES = ("llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


def _config(model_type: str, depth: int, width: int, heads: int, key_heads: int, feedforward: int, **more: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(
        model_type,
        num_hidden_layers=depth,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=feedforward,
        **more,
    )


KNOWN: dict[str, Callable[[], Any]] = {
    "HuggingFaceTB/SmolLM2-135M": partial(
        _config, "llama", 30, 576, 9, 3, 1536, max_position_embeddings=8192, vocab_size=49152, tie_word_embeddings=True
    ),
}


def _shape(config: Any) -> Shape:
    both_ways = getattr(config, "use_bidirectional_attention", None) or False
    return Shape(config.num_hidden_layers, config.hidden_size, config.max_position_embeddings, causal=not both_ways)


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
        door="embed_tokens",
        reads="text",
        heads=("lm_head.", "score.", "classifier."),
        attention="self_attn",
        feedforward=("mlp",),
    )
    for name in MODEL_TYPES
)
