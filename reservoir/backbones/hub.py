"""Models of the transformers library: building, loading, and the random initialisation that most of them share."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def lazy_config(model_type: str, **settings: Any) -> Callable[[], Any]:
    """Return a function that makes a configuration of transformers, which is imported only then."""

    def make() -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(model_type, **settings)

    return make


def base_model(config: Any) -> Any:
    """Return the class in transformers of the model without a head for a configuration."""
    from transformers import MODEL_MAPPING

    return MODEL_MAPPING[type(config)]


def unchanged(model: nn.Module, _config: Any) -> nn.Module:
    """Return the model."""
    return model


@dataclass(frozen=True)
class HubLoader:
    """Builds and loads the models of a family through transformers."""

    model: Callable[[Any], Any] = base_model  # its class, of a configuration
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of that class
    adapt: Callable[[nn.Module, Any], nn.Module] = unchanged  # applied to each model that is built or loaded

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights and almost no token embeddings."""
        # Vectors do not pass through the token embeddings (38 of GPT-2 small's 124 million parameters). Only those up
        # to the padding token are built, because some families count their positions from its number.
        silence_transformers()
        small = deepcopy(config)
        small.vocab_size = (getattr(config, "pad_token_id", None) or 0) + 1
        small.bos_token_id = small.eos_token_id = None
        return self.adapt(use_fused_gelu(self.model(config)(small, **self.options)), config)

    def load(self, source: str, config: Any, **more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model of a folder or hub name in float32, and transformers' report on its tensors."""
        silence_transformers()
        model, info = self.model(config).from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=None if more else True,  # GGUF files are neither safetensors nor pickles
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=local_files_only(source),
            **self.options,
            **more,
        )
        return self.adapt(use_fused_gelu(model), config), info

    def count(self, config: Any) -> int:
        """Return the number of parameters of the whole model, token embeddings included, without building it."""
        with torch.device("meta"):
            model = self.model(config)(deepcopy(config), **self.options)
        return sum(parameter.numel() for parameter in model.parameters())


def use_fused_gelu(model: nn.Module) -> nn.Module:
    """Replace the tanh approximation of GELU, which transformers computes in eight steps, by torch's single kernel.

    In a small GPT-2 these steps took more than half of the forward pass, and in bfloat16 each of them rounded again.
    """
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


def silence_transformers() -> None:
    """Turn off the progress bars and warnings of transformers; this package raises errors for what matters."""
    from transformers.utils import logging

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def attention_name(config: Any) -> str:
    """Return which attention function a model uses; transformers has a public method to set it, but none to read it."""
    return str(getattr(config, "_attn_implementation", ""))


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None, **more: Any) -> Tensor:
    """Return the last hidden states of a model that takes input embeddings."""
    return model(inputs_embeds=embeds, attention_mask=mask, **more).last_hidden_state


def run_causal(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of a causal model, without the cache of its keys and values."""
    return run(model, embeds, mask, use_cache=False)


def local_files_only(source: str) -> bool:
    """Return whether transformers must not ask the hub: for a folder, and where the hub does not answer.

    For a file that is not cached, the hub's client itself would retry five times, which takes 23 seconds, and print a
    warning each time. For a folder whose settings are damaged, transformers would ask the hub too.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff, logging

    if Path(source).is_dir():
        return True
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    timeout = constants.HF_HUB_ETAG_TIMEOUT
    try:  # one retry after a second, for a lost connection; any answer will do, also "not found"
        http_backoff("HEAD", constants.ENDPOINT, max_retries=1, retry_on_status_codes=(), timeout=timeout)
    except Exception:  # the client's HTTP library, and so its exceptions, changed between releases
        return True
    finally:
        logging.set_verbosity(level)
    return False


def draw_normal(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator, divisor: float = 1.0
) -> np.ndarray | None:
    """Draw a weight, normal with deviation ``config.initializer_range / divisor``; keep norms, biases and scales."""
    if name.endswith("bias") or "norm" in name.lower() or "ln_" in name or "layer_scale" in name:
        return None
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_range / divisor)
