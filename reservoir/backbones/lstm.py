r"""Stacked LSTMs (Hochreiter & Schmidhuber 1997), layer-normalised as in Ba et al. 2016, equations 20 to 22.

.. math::

    i, f, g, o &= \mathrm{LN}(W_h h_{t-1}) + \mathrm{LN}(W_x x_t) \\
    c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
    h_t &= \sigma(o) \odot \tanh(\mathrm{LN}(c_t))

The norms' biases are the biases. The paper's LSTM has 3 such layers; its LSTM* has 12, with a residual connection
around each and learned positions. The norm inside the recurrence leaves no fused kernel to use, so the tokens are
scanned: with the input's product taken once for all tokens, 1.3 to 1.5 times torch's fused LSTM on one CPU core
(``benchmarks/recurrent.py``). Without the norms the fused LSTM runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.family import Family, Shape
from reservoir.backbones.recurrent import Own, run


@dataclass
class LSTMConfig:
    """The configuration of stacked LSTMs.

    Parameters
    ----------
    depth, width : int
        Layers, and hidden width of each.
    layer_norm : bool
        Whether cells are layer-normalised.
    residual : bool
        Whether each layer is added to its input.
    positions : int
        Length of the table of learned positions; 0 for none, and then no longest sequence.
    """

    depth: int = 3
    width: int = 768
    layer_norm: bool = True
    residual: bool = False
    positions: int = 0
    model_type: str = "lstm"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return asdict(self)


KNOWN: dict[str, Callable[[], Any]] = {
    "lstm": LSTMConfig,
    "lstm-12": partial(LSTMConfig, depth=12),
    "lstm-star": partial(LSTMConfig, depth=12, residual=True, positions=1024),
}


class NormalisedLSTM(nn.Module):
    """One layer-normalised LSTM layer.

    Parameters
    ----------
    width : int
        Width of the input and of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width, bias=False)
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.input_norm = nn.LayerNorm(4 * width)
        self.hidden_norm = nn.LayerNorm(4 * width)
        self.cell_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the hidden states (batch, tokens, width), from a state of zero."""
        drive = self.input_norm(self.input(x))
        hidden = cell = torch.zeros_like(x[:, 0])
        states = []
        for at_token in drive.unbind(1):
            i, f, g, o = (at_token + self.hidden_norm(self.hidden(hidden))).chunk(4, dim=-1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * self.cell_norm(cell).tanh()
            states.append(hidden)
        return torch.stack(states, dim=1)


class FusedLSTM(nn.Module):
    """One LSTM layer without norms, on torch's fused kernels.

    Parameters
    ----------
    width : int
        Width of the input and of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the hidden states (batch, tokens, width), from a state of zero."""
        # On a GPU cuDNN would round float32 products to TF32, whatever torch's setting for matrix products is.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.lstm(x)[0]


class Layer(nn.Module):
    """An LSTM layer, with or without a residual connection around it.

    Parameters
    ----------
    config : LSTMConfig
        Its settings.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.cell = NormalisedLSTM(config.width) if config.layer_norm else FusedLSTM(config.width)
        self.dropout = nn.Dropout(0.0)
        self.residual = config.residual

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        states = self.dropout(self.cell(x))
        return x + states if self.residual else states


class StackedLSTM(nn.Module):
    """LSTM layers on top of each other.

    Parameters
    ----------
    config : LSTMConfig
        Its settings.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(config.positions, config.width)) if config.positions else None
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x


def _draw(name: str, shape: tuple[int, ...], config: LSTMConfig, generator: np.random.Generator) -> np.ndarray | None:
    """Draw weights and biases like torch's LSTM, uniform up to ``width ** -0.5``, and positions like GPT-2's.

    Without biases a zero input keeps the state at zero, where each norm multiplies a gradient by 300: after eight such
    tokens it is infinite.
    """
    if name.endswith("norm.weight"):
        return None
    if name == "positions":
        return generator.standard_normal(shape, dtype=np.float32) * 0.02
    bound = config.width**-0.5
    return generator.random(shape, dtype=np.float32) * (2 * bound) - bound


LSTM = Family(
    name="lstm",
    maker=Own(StackedLSTM),
    shape=lambda config: Shape(config.depth, config.width, config.positions or None, causal=True),
    run=run,
    blocks="blocks",
    groups={"positions": ("positions",), "layernorm": ("_norm.",), "recurrent": (".cell.",)},
    draw=_draw,
    rounds=False,
)
