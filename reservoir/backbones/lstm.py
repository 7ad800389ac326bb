r"""Stacked LSTMs (Hochreiter & Schmidhuber 1997) with one of three cells.

``released`` is the frozen LSTM of Lu et al. 2021 as their code has it, after Ba et al. 2016, equations 20 to 22:

.. math::

    i, f, o, g &= \mathrm{LN}(W_h h_{t-1} + b_h) + \mathrm{LN}(W_x x_t + b_x) \\
    c_t &= \mathrm{LN}(\sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g)) \\
    h_t &= \sigma(o) \odot \tanh(c_t)

The next token receives the normalised cell, LN divides by the unbiased deviation, gains and biases of its n channels
are drawn from :math:`U(-n^{-1/2}, n^{-1/2})`, dropout acts on the state that is fed back, and the first states are
random. The authors draw the first states again for every row and pass. Cached features must be the same each time, so
here they are drawn once, from the seed.

``normalised`` is the cell of Ba et al.: LN only inside the tanh of :math:`h_t`, so that the next token receives the
cell before the norm; gains of one, biases in the norms alone, first states of zero. ``plain`` has no norms and runs on
torch's fused kernels.

The paper's LSTM has 3 layers. Its LSTM* has 12, with a residual connection around each, and learned positions, which
start at zero there and are drawn like GPT-2's here. No fused kernel has a norm inside the recurrence, so these cells
loop over the tokens. The products with the input are computed before the loop; a layer of Ba et al. then takes 1.3 to
1.5 times as long as torch's fused one on a CPU core (``benchmarks/recurrent.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.built_here import FolderLoader, run
from reservoir.backbones.family import Family, Shape
from reservoir.errors import InputError


@dataclass
class LSTMConfig:
    """The configuration of stacked LSTMs."""

    depth: int = 3
    width: int = 768
    cell: str = "released"  # one of CELLS
    residual: bool = False  # whether the output of each layer is added to its input
    positions: int = 0  # number of learned positions; with 0 there are none, and sequences may have any length
    model_type: str = "lstm"

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise InputError(f"backbone 'lstm': cell={self.cell}; choose among {', '.join(CELLS)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return asdict(self)


KNOWN: dict[str, Callable[[], Any]] = {
    "lstm": LSTMConfig,
    "lstm-12": partial(LSTMConfig, depth=12),
    "lstm-star": partial(LSTMConfig, depth=12, residual=True, positions=1024),
    "lstm-norm": partial(LSTMConfig, cell="normalised"),
}


class UnbiasedNorm(nn.LayerNorm):
    """A layer norm that divides by the unbiased standard deviation."""

    def __init__(self, size: int) -> None:
        share = (size - 1) / size
        super().__init__(size, eps=1e-6 * share)
        self._scale = math.sqrt(share)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (..., size)."""
        return nn.functional.layer_norm(input, self.normalized_shape, self.weight * self._scale, self.bias, self.eps)


class ReleasedLSTM(nn.Module):
    """One layer of the paper's released LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width)
        self.hidden = nn.Linear(width, 4 * width)
        self.input_norm, self.hidden_norm = UnbiasedNorm(4 * width), UnbiasedNorm(4 * width)
        self.cell_norm = UnbiasedNorm(width)
        self.first_hidden, self.first_cell = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the hidden states (batch, tokens, width)."""
        drive = self.input_norm(self.input(x))
        hidden, cell = (start.expand(len(x), -1) for start in (self.first_hidden, self.first_cell))
        states = []
        for at_token in drive.unbind(1):
            i, f, o, g = (at_token + self.hidden_norm(self.hidden(hidden))).chunk(4, dim=-1)
            cell = self.cell_norm(f.sigmoid() * cell + i.sigmoid() * g.tanh())
            hidden = self.dropout(o.sigmoid() * cell.tanh())
            states.append(hidden)
        return torch.stack(states, dim=1)


class NormalisedLSTM(nn.Module):
    """One layer of Ba et al.'s LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width, bias=False)
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.input_norm, self.hidden_norm = nn.LayerNorm(4 * width), nn.LayerNorm(4 * width)
        self.cell_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.0)

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
        return self.dropout(torch.stack(states, dim=1))


class FusedLSTM(nn.Module):
    """One LSTM layer without norms, on torch's fused kernels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the hidden states (batch, tokens, width), from a state of zero."""
        # On a GPU cuDNN would round float32 products to TF32, whatever torch's setting for matrix products is.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.dropout(self.lstm(x)[0])


CELLS = {"released": ReleasedLSTM, "normalised": NormalisedLSTM, "plain": FusedLSTM}


class Layer(nn.Module):
    """An LSTM layer, with or without a residual connection around it."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.cell, self.residual = CELLS[config.cell](config.width), config.residual

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        return x + self.cell(x) if self.residual else self.cell(x)


class StackedLSTM(nn.Module):
    """LSTM layers on top of each other."""

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
    """Draw weights and biases like torch's LSTM, uniform up to ``width ** -0.5``; states and positions are normal."""
    bound = config.width**-0.5
    if name == "positions" or ".first_" in name:
        return generator.standard_normal(shape, dtype=np.float32) * (0.02 if name == "positions" else bound)
    if "norm." in name and config.cell == "released":
        bound = shape[0] ** -0.5
    elif name.endswith("norm.weight"):
        return None
    # Without biases, a zero input would keep the state of Ba et al.'s cell at zero, where each norm multiplies a
    # gradient by 300: after eight such tokens it would be infinite.
    return generator.random(shape, dtype=np.float32) * (2 * bound) - bound


LSTM = Family(
    name="lstm",
    loader=FolderLoader(StackedLSTM),
    shape=lambda config: Shape(config.depth, config.width, config.positions or None, causal=True),
    run=run,
    blocks="blocks",
    groups={"positions": ("positions",), "layernorm": ("_norm.",), "recurrent": (".cell.",)},
    draw=_draw,
    scheme="uniform up to width^-1/2, also the norms of the released cell, by their own width; first states normal",
    note="first states are drawn once from the seed; the authors draw them again for every row and pass",
    allows_bfloat16=False,
)
