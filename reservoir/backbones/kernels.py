"""Random kernels alone: a family without blocks, whose only layer is its input layer.

For series, the blocks of a frozen transformer add little to the responses of random kernels, and take most of the
time. `reservoir.inputs.convolutions` computes the responses.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.errors import InputError

GROUP_SIZE = 8
"""Number of adjacent kernels that have one dilation and read the values in one form, so that poolings compare them."""

MAX_WIDTH = 2**16  # kernels


@dataclass
class KernelsConfig(Config):
    """The configuration of random kernels."""

    width: int = 1024  # number of kernels, a multiple of `GROUP_SIZE`
    channel_subsets: bool = False  # whether each kernel reads some of the channels of a row instead of all
    model_type: str = "kernels"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.width <= MAX_WIDTH or self.width % GROUP_SIZE:
            raise InputError(
                f"backbone 'kernels': width={self.width}",
                f"give a multiple of {GROUP_SIZE}, at most {MAX_WIDTH:,}",
            )


class NoBlocks(nn.Module):
    """A model that returns its input: the responses of the kernels, which the input layer computes."""

    def __init__(self, config: KernelsConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens as they are."""
        return x


KERNEL_FAMILY = Family(
    name="kernels",
    loader=FolderLoader(NoBlocks),
    config=KernelsConfig,
    pretrained=False,
    shape=lambda config: Shape(depth=0, width=config.width, max_tokens=None, causal=False),
    run=run_unmasked,
    blocks="",
    groups={},
    scheme="normal with mean 0 over the values of a window, and norm 1",
    allows_bfloat16=False,  # a kernel has few values, so its products take little time
)
