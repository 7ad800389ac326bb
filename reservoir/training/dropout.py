"""Dropout of a whole model, set by one number for every family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from reservoir.fpt import FPT
from reservoir.training.groups import trained_layer


def set_dropout(model: FPT, rate: float, *, below: bool = False) -> None:
    """Set the rate of every dropout of a model, after its trained parameters were unfrozen.

    Below the lowest trained layer the rate is zero, unless ``below``: nothing there can overfit, and hidden states that
    are always the same can come from a cache. The authors' code uses dropout there too.
    """
    layer = None if below else trained_layer(model)
    _set(model.modules(), rate if layer is None else 0.0)
    if layer is not None:
        for block in model.backbone.blocks[model.backbone.layers.index(layer) :]:
            _set(block.modules(), rate)
    config: Any = getattr(model.backbone.model, "config", None)
    if hasattr(config, "layerdrop"):  # audio models skip whole blocks at random in training
        config.layerdrop = 0.0


def _set(modules: Iterator[nn.Module], rate: float) -> None:
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif not isinstance(module, nn.RNNBase):  # its dropout is between the layers of a module; ours have one layer
            # Families whose attention is a function keep the rate as a number.
            for name in [n for n, value in vars(module).items() if "dropout" in n and isinstance(value, float)]:
                setattr(module, name, rate)
