"""Models that this package builds itself, without transformers: construction, and loading from safetensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class SkipInitialisation(TorchFunctionMode):
    """Skips the random initialisation of a model under construction, because its weights are replaced afterwards."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ("normal_", "uniform_", "kaiming_uniform_"):
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        # The functions of `torch.nn.init` (Python functions) are skipped. A tensor's own methods set zeros: torch calls
        # them to draw a truncated normal, and repeats that until all values are in bounds, which zeros are.
        return tensor if isinstance(func, FunctionType) else tensor.zero_()


@dataclass(frozen=True)
class FolderLoader:
    """Builds models as ``module(config)``, and loads them from a folder with ``model.safetensors``."""

    module: Callable[[Any], nn.Module]

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        return self.module(config)

    def load(self, source: str, config: Any, **_more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model in a folder, and its missing, unexpected and mismatched tensors."""
        from safetensors.torch import load_file

        return self.filled(config, load_file(Path(source) / "model.safetensors"))

    def filled(self, config: Any, found: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Any]]:
        """Return a model with these tensors in float32, and the missing, unexpected and mismatched ones."""
        with torch.device("meta"), SkipInitialisation():
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
        with torch.device("meta"), SkipInitialisation():
            return sum(parameter.numel() for parameter in self.module(config).parameters())


def run(model: nn.Module, embeds: Tensor, _mask: Tensor | None) -> Tensor:
    """Return the hidden states of every token; causal models never see the padding, which follows the sequence."""
    return model(embeds)
