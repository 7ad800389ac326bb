"""GPT-2 (Radford et al. 2019): a causal pre-norm transformer with learned positions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.hub import HubLoader, draw_normal, run_causal


def _config(depth: int, width: int, heads: int, **more: Any) -> Any:
    from transformers import GPT2Config

    return GPT2Config(n_layer=depth, n_embd=width, n_head=heads, **more)


# `mini`, whose weights come with this package, and the published models (Radford et al. 2019, Table 2); all have 1,024
# positions. The first weights of `mini` are wider than GPT-2's 0.02, as its widths are smaller: 1 / sqrt(256).
KNOWN = {
    "mini": partial(_config, 6, 256, 4, vocab_size=256, initializer_range=0.0625, bos_token_id=None, eos_token_id=None),
    "gpt2": partial(_config, 12, 768, 12),
    "gpt2-medium": partial(_config, 24, 1024, 16),
    "gpt2-large": partial(_config, 36, 1280, 20),
    "gpt2-xl": partial(_config, 48, 1600, 25),
}


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw as `draw_normal`, projections back into the residual stream over the root of their number."""
    return draw_normal(name, shape, config, generator, math.sqrt(2 * config.n_layer) if "c_proj" in name else 1.0)


GPT2 = Family(
    name="gpt2",
    loader=HubLoader(),
    shape=lambda config: Shape(config.n_layer, config.n_embd, config.n_positions, causal=True),
    run=run_causal,
    blocks="h",
    groups={"positions": ("wpe.",), "layernorm": ("ln_",), "attention": (".attn.",), "feedforward": (".mlp.",)},
    draw=_draw,
    scheme="normal, deviation initializer_range, that of c_proj over sqrt(2 x blocks) (Radford et al. 2019, 2.3)",
    final_norm="ln_f",
    unused=("wte",),
    door="wte",
    reads="text",
    heads=("lm_head.", "score.", "multiple_choice_head."),
    attention="attn",
    feedforward=("mlp",),
)
