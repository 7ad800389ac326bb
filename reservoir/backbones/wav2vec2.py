"""wav2vec 2.0 (Baevski et al. 2020) and HuBERT (Hsu et al. 2021) of sounds: both ways, positions by a convolution.

The base models norm after each addition and before the first block, the large ones before each branch and at the end.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal

_LARGE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "conv_bias": True,
}


def _config(model_type: str, **settings: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **settings)


KNOWN = {
    "facebook/wav2vec2-base": partial(_config, "wav2vec2"),
    "facebook/hubert-base-ls960": partial(_config, "hubert"),
    "facebook/hubert-large-ll60k": partial(_config, "hubert", **_LARGE),
}


class SoundDoor(nn.Module):
    """The convolutions over samples, and what takes their vectors to the width of the blocks."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.convolutions, self.projection = model.feature_extractor, model.feature_projection

    def forward(self, x: Tensor) -> Tensor:
        """Map what `convolutions` give, (batch, tokens, channels), to (batch, tokens, width)."""
        found = self.projection(x)
        return found[0] if isinstance(found, tuple) else found


def _adapt(model: Any, config: Any) -> nn.Module:
    """Gather the way in, and give the last norm, where there is one, a name of its own."""
    model.door, model.final = SoundDoor(model), nn.Identity()
    if config.do_stable_layer_norm:
        model.final, model.encoder.layer_norm = model.encoder.layer_norm, model.final
    model.feature_extractor = model.feature_projection = model.adapter = None
    if hasattr(model, "masked_spec_embed"):  # of training alone
        del model.masked_spec_embed
    return model


def _run(model: Any, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states; padding is silence to the convolution that tells positions."""
    real = None if mask is None else mask.bool()
    embeds = embeds.clone() if real is None else embeds.masked_fill(~real[:, :, None], 0)
    return model.final(model.encoder(embeds, attention_mask=real).last_hidden_state)


def _shape(config: Any) -> Shape:
    if getattr(config, "conv_pos_batch_norm", False):
        raise ValueError("conv_pos_batch_norm, by which padding would change what is not padding")
    return Shape(config.num_hidden_layers, config.hidden_size, None, causal=False)


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw a weight; of the positions' convolution as fairseq does, each length as its directions have on average."""
    if "pos_conv_embed" not in name or name.endswith("bias"):
        return draw_normal(name, shape, config, generator)
    inputs = config.hidden_size // config.num_conv_pos_embedding_groups
    deviation = 2 * (config.num_conv_pos_embeddings * config.hidden_size) ** -0.5
    if name.endswith("original0"):
        return np.full(shape, deviation * (config.hidden_size * inputs) ** 0.5, np.float32)
    return generator.standard_normal(shape, dtype=np.float32) * deviation


def _family(name: str) -> Family:
    return Family(
        name=name,
        loader=HubLoader(adapt=_adapt),
        shape=_shape,
        run=_run,
        blocks="encoder.layers",
        groups={
            "positions": ("pos_conv_embed",),
            "layernorm": ("layer_norm", "final."),
            "attention": (".attention.",),
            "feedforward": (".feed_forward.", ".adapter_layer."),
        },
        draw=_draw,
        scheme="normal, deviation initializer_range, of positions 2 over the root of kernel times width",
        final_norm="final",
        unused=("door", "masked_spec_embed", "adapter"),
        door="door",
        reads="sounds",
        heads=("lm_head.", "quantizer.", "project_", "projector.", "classifier.", "layer_weights", "tdnn."),
        attention="attention",
        feedforward=("feed_forward",),
    )


FAMILIES = (_family("wav2vec2"), _family("hubert"))
