"""Models of the transformers library: built from a configuration, or loaded; and the draw that most of them share."""

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


def base_model(config: Any) -> Any:
    """Return transformers' class for the bare model, without a head, of a configuration."""
    from transformers import MODEL_MAPPING

    return MODEL_MAPPING[type(config)]


def as_it_is(model: nn.Module, _config: Any) -> nn.Module:
    """Return the model."""
    return model


@dataclass(frozen=True)
class HubLoader:
    """How transformers builds and loads the models of a family."""

    model: Callable[[Any], Any] = base_model  # its class, of a configuration
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of that class
    adapt: Callable[[nn.Module, Any], nn.Module] = as_it_is  # what is done to a model that is built or loaded

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights and as good as no token embeddings."""
        # The token embeddings (38 of GPT-2 small's 124 million parameters) are not on the way of a vector: build those
        # up to the padding token, from which some families count their positions.
        quiet()
        small = deepcopy(config)
        small.vocab_size = (getattr(config, "pad_token_id", None) or 0) + 1
        small.bos_token_id = small.eos_token_id = None
        return self.adapt(fused(self.model(config)(small, **self.options)), config)

    def load(self, source: str, config: Any, **more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model of a folder or hub name in float32, and what transformers reports of its keys."""
        quiet()
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
        return self.adapt(fused(model), config), info

    def count(self, config: Any) -> int:
        """Return the number of parameters of the whole model, token embeddings included, without building it."""
        with torch.device("meta"):
            model = self.model(config)(deepcopy(config), **self.options)
        return sum(parameter.numel() for parameter in model.parameters())


def fused(model: nn.Module) -> nn.Module:
    """Exchange GELU's approximation by a tangent, which transformers computes in eight steps, for torch's in one.

    In a small GPT-2 these steps took more than half of the forward pass, and in bfloat16 each rounded anew.
    """
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


def quiet() -> None:
    """Keep transformers' progress bars and notes off stderr; what matters of them becomes an error here."""
    from transformers.utils import logging

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None, **more: Any) -> Tensor:
    """Return the last hidden states of a model that takes input embeddings."""
    return model(inputs_embeds=embeds, attention_mask=mask, **more).last_hidden_state


def run_causal(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the same of a model that would keep its keys and values."""
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
    try:  # once more after a second, for a connection that was lost by chance; every answer will do, also "not found"
        http_backoff("HEAD", constants.ENDPOINT, max_retries=1, retry_on_status_codes=(), timeout=timeout)
    except Exception:  # of the client's HTTP library, which has changed from release to release
        return True
    finally:
        logging.set_verbosity(level)
    return False


def draw_normal(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator, divisor: float = 1.0
) -> np.ndarray | None:
    """Draw a weight, normal with deviation ``config.initializer_range / divisor``; norms, biases and scales stay."""
    if name.endswith("bias") or "norm" in name.lower() or "ln_" in name or "layer_scale" in name:
        return None
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_range / divisor)
