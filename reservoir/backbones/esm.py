"""ESM (Rives et al. 2021, Lin et al. 2023), models of protein sequences: pre-norm, bidirectional.

ESM-2 has rotary positions. In training a share of the letters was masked and the embeddings were scaled to compensate;
the scale stays when no letter is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, lazy_config, run

MASKED = 0.15 * 0.8
"""Share of the letters that training masked."""


def _config(depth: int, width: int) -> Callable[[], Any]:
    return lazy_config(
        "esm",
        vocab_size=33,
        pad_token_id=1,
        mask_token_id=32,
        num_hidden_layers=depth,
        hidden_size=width,
        num_attention_heads=20,
        intermediate_size=4 * width,
        max_position_embeddings=1026,
        position_embedding_type="rotary",
        token_dropout=True,
    )


KNOWN = {
    "facebook/esm2_t6_8M_UR50D": _config(6, 320),
    "facebook/esm2_t12_35M_UR50D": _config(12, 480),
}


def _shape(config: Any) -> Shape:
    before = config.pad_token_id + 1 if config.position_embedding_type == "absolute" else 0
    return Shape(config.num_hidden_layers, config.hidden_size, config.max_position_embeddings - before, causal=False)


def _adapt(model: nn.Module, config: Any) -> nn.Module:
    """Scale the embeddings of letters as the model does when no letter is masked."""
    if config.token_dropout:
        with torch.no_grad():
            model.get_submodule("embeddings.word_embeddings").get_parameter("weight").mul_(1 - MASKED)
    return model


def _run(model: Any, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states, after adding positions and the first norm, which the model skips for vectors."""
    return run(model, model.embeddings(inputs_embeds=embeds, attention_mask=mask), mask)


ESM = Family(
    name="esm",
    loader=HubLoader(options={"add_pooling_layer": False}, adapt=_adapt),
    shape=_shape,
    run=_run,
    blocks="encoder.layer",
    groups={
        "positions": ("position_embeddings",),
        "layernorm": ("LayerNorm", "layer_norm"),
        "attention": (".attention.",),
        "feedforward": (".intermediate.", ".output."),
    },
    draw=draw_normal,
    final_norm="encoder.emb_layer_norm_after",
    unused=("embeddings.word_embeddings", "contact_head"),
    native_input="embeddings.word_embeddings",
    reads="letters",
    heads=("lm_head.", "classifier.", "pooler."),
    attention="attention.self",
    feedforward=("intermediate", "output"),
)
