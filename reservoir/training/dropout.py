"""Dropout of a whole model by one number, whatever its family calls it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from reservoir.fpt import FPT
from reservoir.training.groups import trained_layer


def set_dropout(model: FPT, rate: float, *, below: bool = False) -> None:
    """Set every dropout of a model whose trained parameters are unfrozen to the share ``rate``.

    Below the lowest trained layer it is zero, unless ``below``: nothing there could overfit, and the hidden states are
    always the same, so that they can come from a cache. The authors' code drops there too.
    """
    layer = None if below else trained_layer(model)
    _set(model.modules(), rate if layer is None else 0.0)
    if layer is not None:
        for block in model.backbone.blocks[model.backbone.layers.index(layer) :]:
            _set(block.modules(), rate)


def _set(modules: Iterator[nn.Module], rate: float) -> None:
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif not isinstance(module, nn.RNNBase):  # theirs is between layers of one module, and ours has one layer
            # Families whose attention is one function keep its rate as a number.
            for name in [n for n, value in vars(module).items() if "dropout" in n and isinstance(value, float)]:
                setattr(module, name, rate)
