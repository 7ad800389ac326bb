"""GPT-2 (Radford et al. 2019): a causal pre-norm transformer with learned positions."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from reservoir.backbones.backbone import Family

# depth, width, heads of the published models, all with 1,024 positions (Radford et al. 2019, Table 2).
SIZES = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}


def config(name: str) -> Any:
    """Return the configuration of a published size, without looking anything up."""
    from transformers import GPT2Config

    depth, width, heads = SIZES[name]
    return GPT2Config(n_layer=depth, n_embd=width, n_head=heads)


def _build(config: Any) -> nn.Module:
    from copy import deepcopy

    from transformers import GPT2Model

    # The token embeddings (38 of GPT-2 small's 124 million parameters) are not on the way of a vector: build just one.
    small = deepcopy(config)
    small.vocab_size, small.bos_token_id, small.eos_token_id = 1, None, None
    return GPT2Model(small)


def _load(source: str) -> tuple[nn.Module, dict[str, Any]]:
    import torch
    from transformers import GPT2Model

    loaded: Any = GPT2Model.from_pretrained(
        source, dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True
    )
    return loaded


def _run(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    return model(inputs_embeds=embeds, attention_mask=mask, use_cache=False).last_hidden_state


def _std(parameter: str, config: Any) -> float:
    if not parameter.endswith("weight") or ".ln_" in parameter or parameter.startswith("ln_"):
        return 0.0
    # Projections back into the residual stream are scaled down by the root of their number (ibid., section 2.3).
    return config.initializer_range / (math.sqrt(2 * config.n_layer) if "c_proj" in parameter else 1.0)


GPT2 = Family(
    name="gpt2",
    build=_build,
    load=_load,
    shape=lambda config: (config.n_layer, config.n_embd, config.n_positions),
    run=_run,
    blocks="h",
    final_norm="ln_f",
    unused=("wte",),
    heads=("lm_head.", "score.", "multiple_choice_head."),
    groups={"positions": ("wpe.",), "layernorm": ("ln_",), "attention": (".attn.",), "feedforward": (".mlp.",)},
    causal=True,
    std=_std,
)
