"""The upper part of a model: from hidden states that are known already to the logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.fpt import FPT


class UpperPart(nn.Module):
    """A model that starts at the hidden states of one of its layers.

    The blocks below are passed by, at no cost; the model that is given serves for nothing else from then on.

    Parameters
    ----------
    model : FPT
        The whole model.
    layer : str
        The layer whose hidden states come in.

    Raises
    ------
    InputError
        If blocks above the layer need more of those below than their hidden states.
    """

    def __init__(self, model: FPT, layer: str) -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self._hidden: Tensor | None = None
        below = model.backbone.layers.index(layer)
        # Nothing follows the last block where the family has no norm there.
        self._ends = below >= model.backbone.depth + bool(model.backbone.family.final_norm)
        if not self._ends:
            self._pass_by(below)

    @property
    def pooling(self) -> str:
        """How the hidden states are pooled that come in: the output alone needs no more than the readout tokens."""
        return "last" if self.layer == "final" else "all"

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of the readout tokens.

        Parameters
        ----------
        hidden : Tensor of float32, (batch, tokens, width)
            Hidden states of the layer; of ``final`` only those of the readout tokens.
        lengths : Tensor of int64, (batch,)
            Real tokens of each sequence.

        Returns
        -------
        Tensor of float32, (batch, readout_tokens, outputs, max(classes, 1))
        """
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
                f"--from-cache: blocks of this {family.name} share the positions of the first; train without it, or "
                "the output alone"
            )
        for block, form in zip(backbone.blocks[:below], self._forms(below), strict=True):
            block.forward = partial(_same, form)
        first = backbone.blocks[below] if below < backbone.depth else backbone.model.get_submodule(family.final_norm)
        first.register_forward_pre_hook(self._replace)

    def _forms(self, below: int) -> list[Callable[[Tensor], Any]]:
        """Return how each block hands its hidden states on: bare, or first in a tuple."""
        forms: list[Callable[[Tensor], Any]] = []
        backbone = self.model.backbone
        handles = [
            block.register_forward_hook(lambda _m, _i, out: forms.append(tuple_of if isinstance(out, tuple) else bare))
            for block in backbone.blocks[:below]
        ]
        with torch.no_grad():
            device = next(backbone.parameters()).device
            backbone(torch.zeros(1, 1, backbone.width, device=device), torch.ones(1, dtype=torch.int64, device=device))
        for handle in handles:
            handle.remove()
        return forms

    def _replace(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self._hidden is not None
        surplus = inputs[0].shape[1] - self._hidden.shape[1]
        return (nn.functional.pad(self._hidden, (0, 0, 0, surplus)) if surplus else self._hidden, *inputs[1:])


def bare(hidden: Tensor) -> Tensor:
    """Return hidden states as they are."""
    return hidden


def tuple_of(hidden: Tensor) -> tuple[Tensor]:
    """Return hidden states in a tuple."""
    return (hidden,)


def _same(form: Callable[[Tensor], Any], hidden: Tensor, *_rest: Any, **_named: Any) -> Any:
    return form(hidden)
