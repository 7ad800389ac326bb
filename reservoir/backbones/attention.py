"""Attention maps: how much each token takes from each other one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reservoir.backbones.backbone import Backbone, block_name
from reservoir.errors import InputError


@torch.inference_mode()
def attention_maps(backbone: Backbone, embeds: Tensor, lengths: Tensor, layer: int = 1) -> Tensor:
    r"""Return the attention maps of one block, :math:`\mathrm{softmax}(Q K^T / \sqrt{d} + \ldots)`.

    The fused kernels never form them, so for this one forward pass, up to this block, the model runs the plain ones.

    Parameters
    ----------
    backbone : Backbone
        Of a family with attention over the whole sequence.
    embeds : Tensor, (batch, tokens, width)
        Right-padded sequences, as for `Backbone.forward`.
    lengths : Tensor of int64, (batch,)
        Real tokens of each.
    layer : int, default 1
        Number of the block, from 1.

    Returns
    -------
    Tensor of float32, (batch, heads, queries, keys)
        Rows of real queries sum to one; zero wherever the query or the key is padding.
    """
    path = backbone.family.attention
    if not path:
        raise InputError(f"attention: {backbone.family.name} has no attention map over the whole sequence; use another")
    if not 1 <= layer <= backbone.depth:
        raise InputError(f"attention layer {layer}: this backbone has blocks 1 to {backbone.depth}")
    maps: list[Tensor] = []
    module = backbone.blocks[layer - 1].get_submodule(path)
    handle = module.register_forward_hook(lambda _module, _inputs, output: maps.append(output[-1]))
    model: Any = backbone.model
    fused = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with backbone.recording({block_name(layer): lambda _hidden: None}):
            backbone(embeds, lengths)
    finally:
        model.set_attn_implementation(fused)
        handle.remove()
    real = torch.arange(embeds.shape[1], device=embeds.device) < lengths[:, None]
    return maps[0].float() * (real[:, None, :, None] & real[:, None, None, :])
