"""Attention maps: the weight of each token in the output of each other token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reservoir.backbones.backbone import Backbone, block_name
from reservoir.backbones.hub import attention_name
from reservoir.errors import InputError


@torch.inference_mode()
def attention_maps(backbone: Backbone, embeds: Tensor, lengths: Tensor, layer: int = 1) -> Tensor:
    r"""Return the attention maps of one block, :math:`\mathrm{softmax}(Q K^T / \sqrt{d} + \ldots)`.

    Fused kernels do not compute the maps, so this forward pass, up to this block, uses the plain attention function.

    Parameters
    ----------
    backbone : Backbone
        A model with attention over the whole sequence.
    embeds : Tensor, (batch, tokens, width)
        Right-padded sequences, as in `Backbone.forward`.
    lengths : Tensor of int64, (batch,)
        Real tokens of each sequence.
    layer : int, default 1
        Number of the block, from 1.

    Returns
    -------
    Tensor of float32, (batch, heads, queries, keys)
        Rows of real queries sum to one; entries of padding are zero.
    """
    path = backbone.family.attention
    if not path:
        raise InputError(
            f"attention: {backbone.family.name} has no attention maps over the whole sequence; use another backbone"
        )
    if not 1 <= layer <= backbone.depth:
        raise InputError(f"attention layer {layer}: this backbone has blocks 1 to {backbone.depth}")
    maps: list[Tensor] = []
    module = backbone.blocks[layer - 1].get_submodule(path)
    handle = module.register_forward_hook(lambda _module, _inputs, output: maps.append(output[-1]))
    model: Any = backbone.model
    before = attention_name(model.config)
    model.set_attn_implementation("eager")
    try:
        with backbone.recording({block_name(layer): lambda _hidden: None}):
            backbone(embeds, lengths)
    finally:
        model.set_attn_implementation(before)
        handle.remove()
    real = torch.arange(embeds.shape[1], device=embeds.device) < lengths[:, None]
    return maps[0].float() * (real[:, None, :, None] & real[:, None, None, :])
