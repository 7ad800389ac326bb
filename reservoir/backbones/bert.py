"""BERT (Devlin et al. 2019) and models of its form: RoBERTa, XLM-RoBERTa, DistilBERT, MiniLM, Longformer.

They are post-norm, and each token attends to the tokens on both sides. Longformer (Beltagy et al. 2020) attends inside
a sliding window, for thousands of tokens, and its sequences are padded to whole windows. No token attends globally:
which one should depends on a task that the model is trained for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, lazy_config, run

OFFSET = ("roberta", "xlm-roberta", "longformer")
"""Families whose first position is the number of the padding token plus one."""


_ROBERTA = {"vocab_size": 50265, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
KNOWN: dict[str, Callable[[], Any]] = {
    "bert-base-uncased": lazy_config("bert"),
    "roberta-base": lazy_config("roberta", max_position_embeddings=514, **_ROBERTA),
    "distilbert-base-uncased": lazy_config("distilbert"),
    "allenai/longformer-base-4096": lazy_config(
        "longformer",
        max_position_embeddings=4098,
        pad_token_id=1,
        attention_window=[512] * 12,
        **_ROBERTA,
    ),
}


def _shape(config: Any) -> Shape:
    window = getattr(config, "attention_window", 1)
    window = window if isinstance(window, int) else max(window)
    positions = config.max_position_embeddings - (config.pad_token_id + 1 if config.model_type in OFFSET else 0)
    causal = getattr(config, "is_decoder", False)
    return Shape(config.num_hidden_layers, config.hidden_size, positions - positions % window, causal, multiple=window)


def _family(name: str, **facts: Any) -> Family:
    defaults: dict[str, Any] = {
        "loader": HubLoader(options={"add_pooling_layer": False}),
        "blocks": "encoder.layer",
        "attention": "attention.self",
        "feedforward": ("intermediate", "output"),
    }
    return Family(
        name=name,
        shape=_shape,
        run=run,
        # The constant vector of the first token type is added with the positions, so it is counted with them.
        groups={
            "positions": ("position_embeddings", "token_type_embeddings"),
            "layernorm": ("LayerNorm", "layer_norm"),
            "attention": (".attention.",),
            "feedforward": (".intermediate.", ".output.", ".ffn."),
        },
        draw=draw_normal,
        unused=("embeddings.word_embeddings",),
        native_input="embeddings.word_embeddings",
        reads="text",
        heads=("cls.", "lm_head.", "vocab_", "pooler.", "pre_classifier.", "classifier.", "qa_outputs."),
        **(defaults | facts),
    )


_DISTILBERT = {"loader": HubLoader(), "blocks": "transformer.layer", "attention": "attention", "feedforward": ("ffn",)}
FAMILIES = (
    *(_family(name) for name in ("bert", "roberta", "xlm-roberta")),
    _family("distilbert", **_DISTILBERT),
    _family("longformer", attention=""),
)
