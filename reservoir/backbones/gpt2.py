"""GPT-2 (Radford et al. 2019): a causal pre-norm transformer with learned positions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from reservoir.backbones.built_here import FolderLoader, run
from reservoir.backbones.family import Family, Shape
from reservoir.backbones.gpt2_model import GPT2Config, GPT2Model
from reservoir.backbones.hub import HubLoader, draw_normal, local_files_only

# `mini`, whose weights come with this package, and the published models (Radford et al. 2019, Table 2); all have 1,024
# positions. `mini` is narrower, so its initial weights have a larger deviation than GPT-2's 0.02: 1 / sqrt(256).
KNOWN = {
    "mini": partial(GPT2Config, 6, 256, 4, vocab_size=256, initializer_range=0.0625),
    "gpt2": partial(GPT2Config, 12, 768, 12),
    "gpt2-medium": partial(GPT2Config, 24, 1024, 16),
    "gpt2-large": partial(GPT2Config, 36, 1280, 20),
    "gpt2-xl": partial(GPT2Config, 48, 1600, 25),
}


class GPT2Loader(FolderLoader):
    """Reads a single file of safetensors itself, and GGUF or sharded files through transformers."""

    def build(self, config: GPT2Config) -> nn.Module:
        """Return a model of this configuration with arbitrary weights and almost no token embeddings."""
        return super().build(replace(config, vocab_size=1))

    def load(self, source: str, config: GPT2Config, **more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model of a folder or hub name in float32, and a report on its tensors."""
        file = None if more else _only_file(source)
        if file is None:
            from transformers import AutoModel

            theirs, report = HubLoader(model=lambda _: AutoModel).load(source, config, **more)
            return self.filled(config, theirs.state_dict())[0], report
        from safetensors.torch import load_file

        # In a model saved with a head, the other names have a prefix; old files also hold the causal masks.
        tensors = {
            name.removeprefix(f"{GPT2Model.base_model_prefix}."): tensor for name, tensor in load_file(file).items()
        }
        masks = (".attn.bias", ".attn.masked_bias")
        return self.filled(config, {name: t for name, t in tensors.items() if not name.endswith(masks)})


def _only_file(source: str) -> Path | None:
    """Return the path of a model's weights if they are in a single file, else None."""
    if Path(source).is_dir():
        file = Path(source) / "model.safetensors"
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(source, "model.safetensors", local_files_only=local_files_only(source)))
    except EntryNotFoundError:
        return None


def _draw(name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator) -> np.ndarray | None:
    """Draw as `draw_normal`; divide projections into the residual stream by the root of their number."""
    return draw_normal(name, shape, config, generator, math.sqrt(2 * config.n_layer) if "c_proj" in name else 1.0)


GPT2 = Family(
    name="gpt2",
    loader=GPT2Loader(GPT2Model),
    shape=lambda config: Shape(config.n_layer, config.n_embd, config.n_positions, causal=True),
    run=run,
    blocks="h",
    groups={"positions": ("wpe.",), "layernorm": ("ln_",), "attention": (".attn.",), "feedforward": (".mlp.",)},
    draw=_draw,
    scheme="normal, deviation initializer_range, that of c_proj over sqrt(2 x blocks) (Radford et al. 2019, 2.3)",
    final_norm="ln_f",
    unused=("wte",),
    native_input="wte",
    reads="text",
    heads=("lm_head.", "score.", "multiple_choice_head."),
    attention="attn",
    feedforward=("mlp",),
)
