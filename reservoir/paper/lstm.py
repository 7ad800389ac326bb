r"""The LSTM of Lu et al. 2021 (Hochreiter & Schmidhuber 1997), after Ba et al. 2016, equations 20 to 22.

.. math::

    i, f, o, g &= \mathrm{LN}(W_h h_{t-1} + b_h) + \mathrm{LN}(W_x x_t + b_x) \\
    c_t &= \mathrm{LN}(\sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g)) \\
    h_t &= \sigma(o) \odot \tanh(c_t)

The next token receives the normalised cell. LN divides by the unbiased standard deviation; gains and
biases of its n channels are drawn from :math:`U(-n^{-1/2}, n^{-1/2})`. Dropout acts on the state that
is fed back. The first states are random. The authors draw new first states for every row and pass,
and so does `train` with ``--protocol paper``. Cached features must be the same each time, so by
default first states are drawn once, from the seed. The paper's LSTM has 3 layers. Its LSTM* has 12
layers, with a residual connection around each, and learned positions. The authors initialise these
with zeros; this package draws them like GPT-2's. No fused kernel has a norm inside the recurrence, so
the cell loops over the tokens; the products with the input are computed before the loop.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.backbones.registry import register
from reservoir.errors import InputError

POSITION_DEVIATION = 0.02  # standard deviation of the initial positions, that of GPT-2


@dataclass
class LSTMConfig(Config):
    """The configuration of stacked LSTMs."""

    depth: int = 3
    width: int = 768
    cell: str = "released"  # the only one; it stays a setting because the weights' digest contains it
    residual: bool = False  # whether the output of each layer is added to its input
    positions: int = 0  # learned positions; with 0 sequences may have any length
    model_type: str = "lstm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell != "released":
            raise InputError(f"backbone 'lstm': cell={self.cell} is not known", "use cell=released")
        if self.width < 2:  # the unbiased standard deviation of one value does not exist
            raise InputError("backbone 'lstm': its norms need two channels or more", "use width=2 or more")


class UnbiasedNorm(nn.LayerNorm):
    """A layer norm that divides by the unbiased standard deviation.

    The unbiased variance is the biased one, v, divided by the share s = (size - 1) / size, and
    1 / sqrt(v / s + 1e-6) = sqrt(s) / sqrt(v + 1e-6 s). So torch's layer norm is used, which has a fast kernel, with
    these two factors.
    """

    def __init__(self, size: int) -> None:
        share = (size - 1) / size
        super().__init__(size, eps=1e-6 * share)
        self._scale = math.sqrt(share)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last axis of (..., size)."""
        return nn.functional.layer_norm(
            input, self.normalized_shape, self.weight * self._scale, self.bias, self.eps
        )


class LSTMCell(nn.Module):
    """One layer of the paper's released LSTM."""

    redraws = False  # whether each row gets new first states at each pass of training

    def __init__(self, width: int) -> None:
        super().__init__()
        # W_x and W_h of the equations for the four gates, with their norms.
        self.input = nn.Linear(width, 4 * width)
        self.hidden = nn.Linear(width, 4 * width)
        self.input_norm, self.hidden_norm = UnbiasedNorm(4 * width), UnbiasedNorm(4 * width)
        self.cell_norm = UnbiasedNorm(width)
        self.first_hidden = nn.Parameter(torch.zeros(width))
        self.first_cell = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the hidden states (batch, tokens, width)."""
        # The products with the input, of all tokens at once: (batch, tokens, 4 width).
        input_products = self.input_norm(self.input(x))
        hidden, cell = self._first_states(x)
        # The recurrence, token by token. The gates are one compiled function on a GPU.
        gated = devices.compiled(_gated, x.device)
        states = []
        for products_of_token in input_products.unbind(1):
            new_cell, output_gate = gated(products_of_token + self.hidden_norm(self.hidden(hidden)), cell)
            cell = self.cell_norm(new_cell)
            hidden = self.dropout(output_gate * cell.tanh())
            states.append(hidden)
        return torch.stack(states, dim=1)

    def _first_states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden state and the cell before the first token, each (batch, width)."""
        if not self.redraws:
            # `export` traces shapes: ``len(x)`` would make the number of rows a constant.
            rows = x.shape[0]
            return self.first_hidden.expand(rows, -1), self.first_cell.expand(rows, -1)
        # In evaluation mode the draw is the same each time, so that scores can be repeated.
        seeded = None if self.training else torch.Generator(x.device).manual_seed(0)
        width = len(self.first_hidden)
        hidden, cell = torch.randn(2, len(x), width, generator=seeded, device=x.device) * width**-0.5
        return hidden, cell


def _gated(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new cell before its norm and the output gate, both (batch, width).

    ``gates`` (batch, 4 width) is the sum of the normalised products of input and hidden state; its quarters are the
    input, forget and output gates and the candidate g, before their nonlinearities.
    """
    i, f, o, g = gates.chunk(4, dim=-1)
    return f.sigmoid() * cell + i.sigmoid() * g.tanh(), o.sigmoid()


def redraw_first_states(model: nn.Module) -> None:
    """Let each LSTM of a model draw new first states for each row, as the authors' code does."""
    for module in model.modules():
        if isinstance(module, LSTMCell):
            module.redraws = True


class LSTMLayer(nn.Module):
    """An LSTM layer, with or without a residual connection around it."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.cell = LSTMCell(config.width)
        self.residual = config.residual

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        return x + self.cell(x) if self.residual else self.cell(x)


class StackedLSTM(nn.Module):
    """LSTM layers on top of each other, with or without learned positions."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.positions = (
            nn.Parameter(torch.zeros(config.positions, config.width)) if config.positions else None
        )
        self.blocks = nn.ModuleList(LSTMLayer(config) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x


def _draw_lstm(
    name: str, shape: tuple[int, ...], config: LSTMConfig, generator: np.random.Generator
) -> np.ndarray:
    """Return the first values of a parameter, float32.

    Weights and biases are uniform within ±``width ** -0.5`` as those of torch's LSTM, and norms within ±n^-1/2 for n
    channels. Positions are normal with deviation `POSITION_DEVIATION`, and first states are normal with deviation
    ``width ** -0.5``.
    """
    if name == "positions":
        return generator.standard_normal(shape, dtype=np.float32) * POSITION_DEVIATION
    # The standard deviation of a normal draw, or the largest absolute value of a uniform one.
    scale = config.width**-0.5
    if ".first_" in name:
        return generator.standard_normal(shape, dtype=np.float32) * scale
    if "norm." in name:  # a norm has as many gains as channels, four times the width in front of the gates
        scale = shape[0] ** -0.5
    return generator.random(shape, dtype=np.float32) * (2 * scale) - scale


LSTM = Family(
    name="lstm",
    loader=FolderLoader(StackedLSTM),
    config=LSTMConfig,
    pretrained=False,
    shape=lambda config: Shape(config.depth, config.width, config.positions or None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"positions": ("positions",), "layernorm": ("_norm.",), "recurrent": (".cell.",)},
    draw=_draw_lstm,
    scheme="uniform within ±width^-1/2, for norms of n channels within ±n^-1/2; first states normal",
    allows_bfloat16=False,
)
register(LSTM)
