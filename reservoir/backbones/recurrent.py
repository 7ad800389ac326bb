r"""Recurrent models: the frozen LSTM of Lu et al. 2021, and echo state networks.

The LSTM (Hochreiter & Schmidhuber 1997) is that of the paper's code, after Ba et al. 2016, equations
20 to 22:

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

An echo state network (Jaeger 2001) is a sparse random recurrent layer of leaky units, with
reservoirpy's names:

.. math::

    x_t = (1 - \mathrm{lr}) \, x_{t-1} + \mathrm{lr} \, \tanh(\mathrm{input\_scaling} \cdot e_t + W
    x_{t-1})

with :math:`e_t` the output of the input layer for token t. The input matrix of reservoirpy is thus
``input_scaling`` times that of the input layer, whose entries have a root mean square of ``gain /
sqrt(units)``.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.errors import InputError


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


@dataclass
class ESNConfig(Config):
    """The configuration of an echo state network; all numbers are above zero."""

    units: int = 768
    sr: float = 0.9  # spectral radius of the recurrent weights
    lr: float = 1.0  # leak rate, at most 1
    input_scaling: float = 3.0  # factor on the input layer
    rc_connectivity: float = 0.1  # share of the recurrent weights that are not zero
    model_type: str = "esn"

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = {"units": 1e4, "sr": 1e6, "lr": 1.0, "input_scaling": 1e6, "rc_connectivity": 1.0}
        for name, most in limits.items():
            if not 0 < getattr(self, name) <= most:
                raise InputError(
                    f"backbone 'esn': {name}={getattr(self, name)}", f"give more than 0, at most {most:g}"
                )


class UnbiasedNorm(nn.LayerNorm):
    """A layer norm that divides by the unbiased standard deviation."""

    def __init__(self, size: int) -> None:
        share = (size - 1) / size
        super().__init__(size, eps=1e-6 * share)
        self._scale = math.sqrt(share)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (..., size)."""
        return nn.functional.layer_norm(
            input, self.normalized_shape, self.weight * self._scale, self.bias, self.eps
        )


class LSTMCell(nn.Module):
    """One layer of the paper's released LSTM."""

    redraws = False  # whether each row gets new first states at each pass of training

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
        if self.redraws:
            fixed = None if self.training else torch.Generator(x.device).manual_seed(0)
            hidden, cell = (
                torch.randn(2, *hidden.shape, generator=fixed, device=x.device) * hidden.shape[1] ** -0.5
            )
        gated, states = devices.compiled(_gated, x.device), []
        for at_token in drive.unbind(1):
            updated, output = gated(at_token + self.hidden_norm(self.hidden(hidden)), cell)
            cell = self.cell_norm(updated)
            hidden = self.dropout(output * cell.tanh())
            states.append(hidden)
        return torch.stack(states, dim=1)


def _gated(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
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
        self.cell, self.residual = LSTMCell(config.width), config.residual

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, width)."""
        return x + self.cell(x) if self.residual else self.cell(x)


class LeakyUnits(nn.Module):
    """The recurrent layer of an echo state network."""

    def __init__(self, config: ESNConfig) -> None:
        super().__init__()
        self.lr, self.input_scaling = config.lr, config.input_scaling
        self.recurrent = nn.Linear(config.units, config.units, bias=False)

    def forward(self, embeds: Tensor) -> Tensor:
        """Map (batch, tokens, units) to the states (batch, tokens, units), starting from zero."""
        drive = self.input_scaling * embeds
        state = torch.zeros_like(drive[:, 0])
        leaked, states = devices.compiled(_leaked, embeds.device), []
        for at_token in drive.unbind(1):
            state = leaked(state, at_token + self.recurrent(state), self.lr)
            states.append(state)
        return torch.stack(states, dim=1)


def _leaked(state: Tensor, drive: Tensor, lr: float) -> Tensor:
    return (1 - lr) * state + lr * drive.tanh()


class Stack(nn.Module):
    """Recurrent layers on top of each other, with or without learned positions."""

    def __init__(self, config: LSTMConfig | ESNConfig) -> None:
        super().__init__()
        if isinstance(config, ESNConfig):
            self.positions, self.blocks = None, nn.ModuleList([LeakyUnits(config)])
            return
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
    """Draw weights and biases like torch's LSTM, uniform within ±``width ** -0.5``; states and positions are normal."""
    bound = config.width**-0.5
    if name == "positions" or ".first_" in name:
        return generator.standard_normal(shape, dtype=np.float32) * (0.02 if name == "positions" else bound)
    bound = shape[0] ** -0.5 if "norm." in name else bound
    return generator.random(shape, dtype=np.float32) * (2 * bound) - bound


def _draw_esn(
    _name: str, shape: tuple[int, ...], config: ESNConfig, generator: np.random.Generator
) -> np.ndarray:
    matrix = np.where(
        generator.random(shape) < config.rc_connectivity, generator.standard_normal(shape), 0.0
    )
    radius = float(np.abs(np.linalg.eigvals(matrix)).max())
    if radius == 0.0:
        start = (
            f"backbone 'esn': {config.units} units with rc_connectivity={config.rc_connectivity} have no"
        )
        raise InputError(f"{start} recurrent weights to scale", "raise one of the two")
    # The last digits of eigenvalues differ between machines; the tensor must not.
    return (matrix * (config.sr / float(f"{radius:.8g}"))).astype(np.float32)


LSTM = Family(
    name="lstm",
    loader=FolderLoader(Stack),
    shape=lambda config: Shape(config.depth, config.width, config.positions or None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"positions": ("positions",), "layernorm": ("_norm.",), "recurrent": (".cell.",)},
    draw=_draw_lstm,
    scheme="uniform within ±width^-1/2, for norms of n channels within ±n^-1/2; first states normal",
    allows_bfloat16=False,
)
ESN = Family(
    name="esn",
    loader=FolderLoader(Stack),
    shape=lambda config: Shape(1, config.units, None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"recurrent": ("recurrent",)},
    draw=_draw_esn,
    scheme="a share rc_connectivity of the weights normal, the others zero, scaled to the spectral radius sr",
    allows_bfloat16=False,
)
