"""Dropout of a whole model by one number, whatever its family calls it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from reservoir.fpt import FPT
from reservoir.training.groups import trained_layer


def set_dropout(model: FPT, rate: float) -> None:
    """Set every dropout of a model, in front of the layer below which nothing is trained to zero.

    Below that layer there is nothing that dropout could keep from overfitting, and without it the hidden states there
    are always the same, so that they can come from a cache.

    Parameters
    ----------
    model : FPT
        With its trained parameters unfrozen.
    rate : float
        Share of the values that are dropped in training mode, 0 for none.
    """
    layer = trained_layer(model)
    _set(model.modules(), rate if layer is None else 0.0)
    if layer is not None:
        lowest = model.backbone.layers.index(layer)
        for block in model.backbone.blocks[lowest:]:
            _set(block.modules(), rate)


def _set(modules: Iterator[nn.Module], rate: float) -> None:
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif not isinstance(module, nn.RNNBase):  # theirs is between layers of one module, and ours has one layer
            # Families whose attention is one function keep its rate as a number.
            for name in [n for n, value in vars(module).items() if "dropout" in n and isinstance(value, float)]:
                setattr(module, name, rate)
