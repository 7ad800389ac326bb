"""wav2vec 2.0 (Baevski et al. 2020) and HuBERT (Hsu et al. 2021), models of speech: bidirectional.

Positions come from a convolution over the tokens. The base models normalise after each residual addition and before the
first block, the large models before each branch and at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, lazy_config

_LARGE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "conv_bias": True,
}


KNOWN = {
    "facebook/wav2vec2-base": lazy_config("wav2vec2"),
    "facebook/hubert-base-ls960": lazy_config("hubert"),
    "facebook/hubert-large-ll60k": lazy_config("hubert", **_LARGE),
}


class AudioFrontEnd(nn.Module):
    """The convolutions over samples, and the projection of their vectors to the width of the blocks."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.convolutions, self.projection = model.feature_extractor, model.feature_projection

    def forward(self, x: Tensor) -> Tensor:
        """Map the output of `convolutions`, (batch, tokens, channels), to (batch, tokens, width)."""
        projected = self.projection(x)
        return projected[0] if isinstance(projected, tuple) else projected


def _adapt(model: Any, config: Any) -> nn.Module:
    """Collect the audio front end in one module, and name the last norm ``final``, if there is one."""
    model.front_end, model.final = AudioFrontEnd(model), nn.Identity()
    if config.do_stable_layer_norm:
        model.final, model.encoder.layer_norm = model.encoder.layer_norm, model.final
    model.feature_extractor = model.feature_projection = model.adapter = None
    if hasattr(model, "masked_spec_embed"):  # only training uses it
        del model.masked_spec_embed
    return model


def _run(model: Any, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states; padding is zero, as silence is, for the convolution that gives positions."""
    real = None if mask is None else mask.bool()
    embeds = embeds.clone() if real is None else embeds.masked_fill(~real[:, :, None], 0)
    return model.final(model.encoder(embeds, attention_mask=real).last_hidden_state)


def _shape(config: Any) -> Shape:
    if getattr(config, "conv_pos_batch_norm", False):
        raise ValueError("conv_pos_batch_norm is not supported, because padding would change the real tokens")
    return Shape(config.num_hidden_layers, config.hidden_size, None, causal=False)


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw a weight; the convolution of the positions as in fairseq, where each direction has the average length."""
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
        unused=("front_end", "masked_spec_embed", "adapter"),
        native_input="front_end",
        reads="sounds",
        heads=("lm_head.", "quantizer.", "project_", "projector.", "classifier.", "layer_weights", "tdnn."),
        attention="attention",
        feedforward=("feed_forward",),
    )


FAMILIES = (_family("wav2vec2"), _family("hubert"))
