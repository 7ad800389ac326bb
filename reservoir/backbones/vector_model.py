"""Models of transformers without input embeddings run on vectors, which replace the input of their first block.

Such a model gets a stand-in for its own input, such as an image of zeros, and what it makes of it before the first
block is thrown away. With the model's own input, what reaches the first block are its tokens (`FrontEnd`).
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

IMAGE_SIDE = 224  # pixels of a stand-in, if the configuration states no size
# Of a stand-in for filter banks: frames of 10 ms that become a token, at most, and their channels.
FRAMES_PER_TOKEN, MEL_BINS = 8, 80


@dataclass(frozen=True)
class StandIn:
    """The shape of a model's own input in place of which vectors enter."""

    shape: Callable[[int], tuple[int, ...]]  # of one row, for a number of tokens
    shares_row: bool  # whether one row stands for all, which saves time; some models need one for each


class _FirstBlockReached(Exception):
    """Ends a forward pass at the first block, whose input it carries."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class VectorModel(nn.Module):
    """A model that maps vectors (batch, tokens, width) to its last hidden states of this shape.

    ``takes`` is the argument of the model's own input. The tests of `reservoir.backbones.generic_checks` choose
    ``stand_in`` and ``adds_positions``.
    """

    def __init__(self, model: Any, blocks: str, takes: str, call: dict[str, Any], config: Any) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.takes = takes
        self.masks = _mask_argument(model, takes)
        self.front_end = FrontEnd(self)
        self.stand_in = stand_ins(model, takes)[0]
        self.adds_positions = False  # whether vectors need positions, because blocks do not see their order
        self.has_native_input = False  # whether the vectors come from `front_end`, with their positions
        self._blocks, self._call = blocks, call
        self._vectors: Tensor | None = None
        self._stops = False
        model.get_submodule(blocks)[0].register_forward_pre_hook(self._enter, with_kwargs=True)

    def forward(self, embeds: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the last hidden states of vectors; the mask (batch, tokens) is 1 at real tokens."""
        return self.output(embeds, mask).last_hidden_state

    def output(self, embeds: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
        """Return what the model returns for vectors in place of the input of its first block."""
        if self.adds_positions and not self.has_native_input:
            embeds = embeds + self._positions(embeds).to(embeds.dtype)
        rows = 1 if self.stand_in.shares_row else len(embeds)
        native = torch.zeros(rows, *self.stand_in.shape(embeds.shape[1]), device=embeds.device)
        self._vectors = embeds
        try:
            return self.run_native(native, mask, **options)
        finally:
            self._vectors = None

    def embed(self, native: Tensor) -> Tensor:
        """Return the tokens (batch, tokens, width) that the model makes of its own input."""
        self._stops = True
        try:
            self.run_native(native)
        except _FirstBlockReached as reached:
            return reached.hidden
        finally:
            self._stops = False
        raise ValueError("its own input does not reach the first block")

    def run_native(self, native: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
        """Return what the model returns for its own input, of which a stand-in may have any values."""
        arguments = dict(self._call)
        native = native.long() if self.takes == "input_ids" else native.to(self._outer_type())
        if self.masks == "pixel_attention_mask":
            # The patches of images of several sizes, here of one row of patches each.
            rows, patches = native.shape[:2]
            everywhere = torch.ones(rows, patches, dtype=torch.int64, device=native.device)
            arguments["pixel_attention_mask"] = everywhere if mask is None else mask
            arguments["spatial_shapes"] = torch.tensor([[1, patches]] * rows, device=native.device)
        elif self.masks:
            arguments[self.masks] = mask
        return self.model(**{self.takes: native}, **arguments, **options)

    def _enter(self, _block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Replace the input of the first block with vectors, or end the pass there."""
        if self._stops:
            raise _FirstBlockReached(inputs[0] if inputs else named["hidden_states"])
        if self._vectors is None:
            return None
        if inputs:
            return (self._vectors, *inputs[1:]), named
        return inputs, named | {"hidden_states": self._vectors}

    def _outer_type(self) -> torch.dtype:
        """Return the type of the weights outside the blocks, which the model's own input needs."""
        weights = self.model.named_parameters()
        return next((p.dtype for name, p in weights if not name.startswith(self._blocks)), torch.float32)

    def _positions(self, embeds: Tensor) -> Tensor:
        """Return the sines and cosines of Vaswani et al. 2017, (tokens, width), with the scale of initial weights."""
        tokens, width = embeds.shape[1:]
        channels = torch.arange(0, width, 2, device=embeds.device)
        rates = torch.exp(channels * (-math.log(10_000) / width))
        angles = torch.arange(tokens, device=embeds.device)[:, None] * rates
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
        # Most configurations of transformers have 0.02 as the standard deviation of initial weights.
        deviation = getattr(self.model.config, "initializer_range", None) or 0.02
        return math.sqrt(2) * deviation * waves  # the mean square of a sine is one half


class FrontEnd(nn.Module):
    """Everything before the first block of a `VectorModel`: it maps token numbers, or patches of images, to vectors.

    It has no tensors of its own, so a digest of the model covers it.
    """

    def __init__(self, owner: VectorModel) -> None:
        super().__init__()
        self._owner = (owner,)  # in a tuple, because the model is not part of this module
        self.pixels: tuple[int, int, int] | None = None  # channels, height and width of images
        words = token_table(owner.model) if owner.takes == "input_ids" else None
        self.num_embeddings: int | None = getattr(words, "num_embeddings", None)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, patches, values), to (batch, tokens, width)."""
        (owner,) = self._owner
        if self.pixels is None:
            return owner.embed(x)
        channels, height, width = self.pixels
        side = patch_side(owner.model.config)
        grid = x.reshape(x.shape[0], height // side, width // side, side, side, channels)
        return owner.embed(grid.permute(0, 5, 1, 3, 2, 4).reshape(x.shape[0], channels, height, width))

    def set_pixels(self, pixels: tuple[int, int, int]) -> None:
        """Read images of these channels, height and width from now on, as patches."""
        (owner,) = self._owner
        self.pixels = pixels
        owner.has_native_input = True
        # Positions that are relative to the image need a stand-in of its size.
        owner.stand_in = replace(owner.stand_in, shape=lambda _tokens: pixels)


def token_table(model: Any) -> nn.Module | None:
    """Return the token embeddings of a model, if it has any."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # of a model of images or sounds
        return None


def patch_side(config: Any) -> int:
    """Return the height and width in pixels of the patches of a model of images."""
    size = config.patch_size
    return size if isinstance(size, int) else int(size[-1])


def image_shape(config: Any) -> tuple[int, int, int]:
    """Return channels, height and width of the images of a model."""
    size = getattr(config, "image_size", None) or IMAGE_SIDE
    height, width = (size, size) if isinstance(size, int) else size
    return getattr(config, "num_channels", 3), height, width


def stand_ins(model: Any, takes: str) -> list[StandIn]:
    """Return the stand-ins to try, the best first: those that become the given number of tokens."""
    config = model.config
    if takes == "input_ids":
        return [StandIn(lambda tokens: (tokens,), shares_row=False)]
    shapes: list[Callable[[int], tuple[int, ...]]] = []
    mel_bins = getattr(config, "num_mel_bins", MEL_BINS)
    if takes == "pixel_values":
        channels, height, width = image_shape(config)
        side = patch_side(config) if hasattr(config, "patch_size") else 16
        if _mask_argument(model, takes):
            return [StandIn(lambda tokens: (tokens, channels * side * side), shares_row=False)]
        shapes = [
            lambda tokens: (channels, side, side * tokens),
            lambda tokens: (channels, side, side * max(tokens - 1, 1)),  # after a class token
            lambda _tokens: (channels, height, width),
        ]
        if frames := getattr(config, "num_frames", 0):
            shapes.append(lambda _tokens: (frames, channels, height, width))
    elif takes == "input_values":
        if hasattr(config, "conv_kernel"):
            shapes.append(lambda tokens: (_samples(config, tokens),))
        shapes.append(lambda _tokens: (getattr(config, "max_length", None) or 1024, mel_bins))
    elif takes == "input_features":
        features = getattr(config, "feature_projection_input_dim", getattr(config, "input_dim", mel_bins))
        frames = 2 * getattr(config, "max_source_positions", 1500)
        shapes = [
            lambda tokens: (tokens, features),
            lambda tokens: (mel_bins, 2 * tokens),
            lambda _tokens: (mel_bins, frames),
            lambda tokens: (FRAMES_PER_TOKEN * tokens, mel_bins),
        ]
    return [StandIn(shape, shares_row) for shape in shapes for shares_row in (True, False)]


def _samples(config: Any, tokens: int) -> int:
    """Return the number of samples that convolutions shorten to a number of tokens."""
    samples = tokens
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return samples


def _mask_argument(model: Any, takes: str) -> str:
    """Return the argument for a mask of tokens; empty if there is none, or if it is one of samples."""
    arguments = inspect.signature(model.forward).parameters
    name = {"input_ids": "attention_mask", "pixel_values": "pixel_attention_mask"}.get(takes, "")
    if name == "pixel_attention_mask" and "spatial_shapes" not in arguments:
        return ""
    return name if name in arguments else ""
