"""BERT (Devlin et al. 2019) and its form: RoBERTa, XLM-RoBERTa, DistilBERT, MiniLM. Post-norm, sees both ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal

# The constant vector of the first token type is added with the positions, so it is counted with them.
GROUPS = {
    "positions": ("position_embeddings", "token_type_embeddings"),
    "layernorm": ("LayerNorm", "layer_norm"),
    "attention": (".attention.",),
    "feedforward": (".intermediate.", ".output.", ".ffn."),
}
HEADS = ("cls.", "lm_head.", "vocab_", "pooler.", "pre_classifier.", "classifier.", "qa_outputs.")


def _config(model_type: str, **settings: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **settings)


KNOWN: dict[str, Callable[[], Any]] = {
    "bert-base-uncased": partial(_config, "bert"),
    "roberta-base": partial(
        _config, "roberta", max_position_embeddings=514, vocab_size=50265, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "distilbert-base-uncased": partial(_config, "distilbert"),
}


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of a model that takes input embeddings."""
    return model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state


def offset_positions(config: Any) -> int:
    """Return the positions of RoBERTa's kind: they are numbered from the padding token's number plus one."""
    return config.max_position_embeddings - config.pad_token_id - 1


def _family(name: str, positions: Callable[[Any], int], **facts: Any) -> Family:
    defaults: dict[str, Any] = {
        "loader": HubLoader(options={"add_pooling_layer": False}),
        "blocks": "encoder.layer",
        "attention": "attention.self",
        "feedforward": ("intermediate", "output"),
    }
    return Family(
        name=name,
        shape=lambda config: Shape(
            config.num_hidden_layers, config.hidden_size, positions(config), getattr(config, "is_decoder", False)
        ),
        run=run,
        groups=GROUPS,
        draw=draw_normal,
        unused=("embeddings.word_embeddings",),
        heads=HEADS,
        **(defaults | facts),
    )


BERT = _family("bert", lambda config: config.max_position_embeddings)
ROBERTA = _family("roberta", offset_positions)
XLM_ROBERTA = _family("xlm-roberta", offset_positions)
DISTILBERT = _family(
    "distilbert",
    lambda config: config.max_position_embeddings,
    loader=HubLoader(),
    blocks="transformer.layer",
    attention="attention",
    feedforward=("ffn",),
)
