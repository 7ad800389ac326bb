"""The models that are built here and not by transformers: how they are made, and loaded from safetensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Undrawn(TorchFunctionMode):
    """Leaves out the draws of a model under construction: ours replace them, and they take as long."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ("normal_", "uniform_", "kaiming_uniform_"):
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        # The functions of `torch.nn.init` are Python's, and nobody looks at what they leave. A tensor's own methods are
        # called by one that does: it draws a truncated normal again until all of it is in bounds, as zeros are.
        return tensor if isinstance(func, FunctionType) else tensor.zero_()


@dataclass(frozen=True)
class FolderLoader:
    """Builds the models of a family of ours, ``module(config)``, and loads them from a folder of safetensors."""

    module: Callable[[Any], nn.Module]

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        return self.module(config)

    def load(self, source: str, config: Any, **_more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model of a folder, and which of its tensors are missing, too many or of another shape."""
        from safetensors.torch import load_file

        return self.filled(config, load_file(Path(source) / "model.safetensors"))

    def filled(self, config: Any, found: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model that holds these tensors in float32, and how they differ from what it needs."""
        with torch.device("meta"), Undrawn():  # nothing is drawn that the file replaces
            model = self.module(config)
        wanted = model.state_dict()
        shapes = [(name, found[name].shape, wanted[name].shape) for name in wanted.keys() & found.keys()]
        wrong = [entry for entry in shapes if entry[1] != entry[2]]
        lost = {name for name, _, _ in wrong}
        kept = {name: tensor.float() for name, tensor in found.items() if name not in lost}
        blank = {name: torch.zeros(tensor.shape) for name, tensor in wanted.items() if name not in kept}
        unexpected = model.load_state_dict(blank | kept, strict=False, assign=True).unexpected_keys
        return model, {
            "missing_keys": [name for name in blank if name not in lost],
            "unexpected_keys": unexpected,
            "mismatched_keys": wrong,
        }

    def count(self, config: Any) -> int:
        """Return the number of parameters."""
        with torch.device("meta"), Undrawn():
            return sum(parameter.numel() for parameter in self.module(config).parameters())


def run(model: nn.Module, embeds: Tensor, _mask: Tensor | None) -> Tensor:
    """Return the hidden states of every token; padding stands behind a sequence and is never looked at."""
    return model(embeds)
