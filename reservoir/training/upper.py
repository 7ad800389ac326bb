"""The upper part of a model: from cached hidden states to the logits."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.fpt import FPT


class UpperPart(nn.Module):
    """A model that starts at the hidden states of one of its layers; it modifies the given model."""

    def __init__(self, model: FPT, layer: str) -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self._hidden: Tensor | None = None
        below = model.backbone.layers.index(layer)
        # In a family without a final norm, nothing follows the last block.
        self._ends = below >= model.backbone.depth + bool(model.backbone.family.final_norm)
        if not self._ends:
            self._pass_by(below)

    @property
    def pooling(self) -> str:
        """Pooling of the cached hidden states: the output layer needs only the readout tokens."""
        return "last" if self.layer == "final" else "all"

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits from the layer's hidden states; for ``final``, from those of the readout tokens."""
        if self.layer == "final":
            return self.model.logits(hidden)
        if self._ends:
            return self.model.read(hidden, lengths)
        self._hidden = hidden
        return self.model.read(self.model.backbone(hidden, lengths, self.model.task.readout_tokens), lengths)

    def _pass_by(self, below: int) -> None:
        backbone = self.model.backbone
        family = backbone.family
        names = [name for block in backbone.blocks[:below] for name, _ in block.named_parameters()]
        if any(piece in name for piece in family.groups.get("positions", ()) for name in names):
            raise InputError(
                f"--from-cache: blocks of this {family.name} share the positions of the first block; train without it, "
                "or train only the output"
            )
        for block, in_tuple in zip(backbone.blocks[:below], self._tuples(below), strict=True):
            block.forward = partial(_same, in_tuple)
        first = backbone.blocks[below] if below < backbone.depth else backbone.model.get_submodule(family.final_norm)
        first.register_forward_pre_hook(self._replace)

    @torch.no_grad()
    def _tuples(self, below: int) -> list[bool]:
        """Return for each block whether it returns its hidden states as the first item of a tuple."""
        backbone, found = self.model.backbone, []
        handles = [
            block.register_forward_hook(lambda _module, _inputs, output: found.append(isinstance(output, tuple)))
            for block in backbone.blocks[:below]
        ]
        device = next(backbone.parameters()).device
        backbone(torch.zeros(1, 1, backbone.width, device=device), torch.ones(1, dtype=torch.int64, device=device))
        for handle in handles:
            handle.remove()
        return found

    def _replace(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self._hidden is not None
        surplus = inputs[0].shape[1] - self._hidden.shape[1]
        return (nn.functional.pad(self._hidden, (0, 0, 0, surplus)) if surplus else self._hidden, *inputs[1:])


def _same(in_tuple: bool, hidden: Tensor, *_rest: Any, **_named: Any) -> Any:
    return (hidden,) if in_tuple else hidden
