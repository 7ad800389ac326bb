r"""Echo state networks (Jaeger 2001): a sparse random recurrent layer of leaky units, with reservoirpy's names.

.. math::

    x_t = (1 - \mathrm{lr}) \, x_{t-1} + \mathrm{lr} \, \tanh(\mathrm{input\_scaling} \cdot e_t + W
    x_{t-1})

with :math:`e_t` the output of the input layer for token t. The input matrix of reservoirpy is thus
``input_scaling`` times that of the input layer, whose entries have a root mean square of ``gain /
sqrt(units)``.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.errors import InputError


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
        # The largest values. Eigenvalues of more units take hours; a radius or a scaling above a million is a mistake.
        limits = {"units": 1e4, "sr": 1e6, "lr": 1.0, "input_scaling": 1e6, "rc_connectivity": 1.0}
        for name, largest in limits.items():
            value = getattr(self, name)
            if not 0 < value <= largest:  # also if it is NaN
                problem = f"backbone 'esn': {name}={value}"
                raise InputError(problem, f"give more than 0, at most {largest:g}")


class LeakyUnits(nn.Module):
    """The recurrent layer of an echo state network."""

    def __init__(self, config: ESNConfig) -> None:
        super().__init__()
        self.lr = config.lr
        self.input_scaling = config.input_scaling
        self.recurrent = nn.Linear(config.units, config.units, bias=False)

    def forward(self, embeds: Tensor) -> Tensor:
        """Map (batch, tokens, units) to the states (batch, tokens, units), starting from zero."""
        scaled_embeds = self.input_scaling * embeds
        state = torch.zeros_like(scaled_embeds[:, 0])  # (batch, units)
        next_state = devices.compiled(_next_state, embeds.device)
        states: list[Tensor] = []
        for scaled_token in scaled_embeds.unbind(1):
            state = next_state(state, scaled_token + self.recurrent(state), self.lr)
            states.append(state)
        return torch.stack(states, dim=1)


def _next_state(state: Tensor, drive: Tensor, lr: float) -> Tensor:
    """Return the next state (batch, units); ``drive`` is the argument of tanh in the equation of this file."""
    return (1 - lr) * state + lr * drive.tanh()


class EchoStateNetwork(nn.Module):
    """The recurrent layer as the only block of a backbone."""

    def __init__(self, config: ESNConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([LeakyUnits(config)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, units) to the states (batch, tokens, units)."""
        for block in self.blocks:
            x = block(x)
        return x


def _draw_esn(
    _name: str, shape: tuple[int, ...], config: ESNConfig, generator: np.random.Generator
) -> np.ndarray:
    """Draw sparse normal weights, and scale them to the spectral radius ``config.sr``."""
    is_connected = generator.random(shape) < config.rc_connectivity
    matrix = np.where(is_connected, generator.standard_normal(shape), 0.0)
    radius = float(np.abs(np.linalg.eigvals(matrix)).max())
    if radius == 0.0:  # no weight is connected, or the connections have no cycle
        size = f"{config.units} units with rc_connectivity={config.rc_connectivity}"
        raise InputError(
            f"backbone 'esn': {size} have no recurrent weights to scale", "raise one of the two"
        )
    # The last digits of eigenvalues differ between machines, and the tensor must not, so the radius is rounded.
    rounded_radius = float(f"{radius:.8g}")
    return (matrix * (config.sr / rounded_radius)).astype(np.float32)


ESN = Family(
    name="esn",
    loader=FolderLoader(EchoStateNetwork),
    config=ESNConfig,
    pretrained=False,
    shape=lambda config: Shape(depth=1, width=config.units, max_tokens=None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"recurrent": ("recurrent",)},
    draw=_draw_esn,
    scheme="a share rc_connectivity of the weights normal, the others zero, scaled to the spectral radius sr",
    allows_bfloat16=False,  # the errors of the state would accumulate
)
