r"""Causal convolutions over the tokens, as in temporal convolutional networks (Bai et al. 2018), with residuals.

.. math::

    h_t \leftarrow h_t + \mathrm{GELU}\left(\sum_{j=0}^{k-1} W_j \, \mathrm{LN}(h_{t - j D})\right)

with kernel size k. The dilation D doubles from block to block. After 1, 2, ..., 512 it starts again at
1, as in WaveNet (van den Oord et al. 2016): larger steps would leave the sequence, so that the later
blocks of a deep network would see one token each.
"""

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.backbones.registry import register
from reservoir.errors import InputError


@dataclass
class CNNConfig(Config):
    """The configuration of a convolutional network."""

    depth: int = 12
    width: int = 768
    kernel: int = 3
    model_type: str = "cnn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.kernel <= 32:  # the zeros before each row would take more memory than the row
            raise InputError(f"backbone 'cnn': kernel={self.kernel}", "give 1 to 32")

    @property
    def initializer_range(self) -> float:
        """Standard deviation of the kernels' weights (He et al. 2015, equation 10)."""
        return (2 / (self.kernel * self.width)) ** 0.5


class ConvolutionBlock(nn.Module):
    """One block: a causal convolution of the normalised hidden states, added to them."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.0)  # `set_dropout` sets its rate for training
        self.convolution = nn.Conv1d(width, width, kernel, dilation=dilation, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (batch, tokens, width) to those of the next layer."""
        # With zeros before the first token and none after the last, an output sees no later token.
        tokens_before = (self.convolution.kernel_size[0] - 1) * self.convolution.dilation[0]
        channels_first = self.norm(hidden).transpose(1, 2)  # (batch, width, tokens), as convolutions need
        padded = nn.functional.pad(channels_first, (tokens_before, 0))
        return hidden + self.dropout(nn.functional.gelu(self.convolution(padded).transpose(1, 2)))


def _build(config: CNNConfig) -> nn.Module:
    """Return the network: its blocks, whose dilations double from 1 to 512 and start again, and a final norm."""
    dilations = [2 ** (number % 10) for number in range(config.depth)]
    blocks = (ConvolutionBlock(config.width, config.kernel, dilation) for dilation in dilations)
    return nn.Sequential(OrderedDict(blocks=nn.Sequential(*blocks), norm=nn.LayerNorm(config.width)))


CNN = Family(
    name="cnn",
    loader=FolderLoader(_build),
    config=CNNConfig,
    pretrained=False,
    shape=lambda config: Shape(config.depth, config.width, None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"layernorm": ("norm.",), "feedforward": (".convolution.",)},
    scheme="normal with standard deviation sqrt(2 / (kernel x width))",
    final_norm="norm",
)
register(CNN)
