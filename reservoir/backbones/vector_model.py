"""Models of transformers without input embeddings run on vectors, which replace the input of their first block.

Such a model is called with a stand-in for its own input, such as an image of zeros, and what it makes of it before the
first block is thrown away. Of the model's own input, a `FrontEnd` returns what reaches the first block: its tokens.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

# The sizes of a stand-in, where a configuration states none.
IMAGE_SIDE = 224  # pixels
PATCH_SIDE = 16  # pixels
MEL_BINS = 80  # channels of the filter banks of a sound

SOUND_INPUTS = ("input_values", "input_features")  # arguments of samples or filter banks

FRAMES_PER_TOKEN = 8  # frames of filter banks, one for each 10 ms, that become a token, at most


RowShape = Callable[[int], tuple[int, ...]]
"""``shape(tokens)`` returns the shape of one row of a model's own input, without the batch axis."""


@dataclass(frozen=True)
class StandIn:
    """The shape of a model's own input in place of which vectors enter."""

    shape: RowShape
    # Whether a batch of one row stands for batches of any size, which saves time. Some models need a row for each.
    shares_row: bool


class _FirstBlockReached(Exception):
    """Ends a forward pass at the first block, and carries its input (batch, tokens, width)."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class VectorModel(nn.Module):
    """A model that maps vectors (batch, tokens, width) to its last hidden states of this shape.

    Parameters
    ----------
    model : Module
        The model of transformers.
    blocks_path : str
        Path of its list of blocks.
    input_name : str
        The argument of the model's own input.
    call_options : dict
        Further arguments of each call.
    config : object
        The configuration of the whole model, of which ``model`` may be a part.
    """

    def __init__(
        self, model: Any, blocks_path: str, input_name: str, call_options: dict[str, Any], config: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.input_name = input_name
        self.front_end = FrontEnd(self)
        # The tests of `reservoir.backbones.generic_checks` may choose another stand-in, and decide about positions.
        self.stand_in = stand_ins(model, input_name)[0]
        self.adds_positions = False  # whether vectors need positions, because blocks do not see their order
        self.has_native_input = False  # whether the vectors come from `front_end`, with their positions
        self._mask_name = _mask_argument(model, input_name)
        self._blocks_path = blocks_path
        self._call_options = call_options
        # What happens at the first block in the current call: these vectors replace its input, or the pass stops there.
        self._vectors: Tensor | None = None
        self._stops_at_blocks = False
        model.get_submodule(blocks_path)[0].register_forward_pre_hook(self._enter_blocks, with_kwargs=True)

    def forward(self, embeds: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the last hidden states of vectors; the mask (batch, tokens) is 1 at real tokens."""
        return self.output(embeds, mask).last_hidden_state

    def output(self, embeds: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
        """Return the output of the model for vectors in place of the input of its first block.

        ``options`` are further arguments of the call. The mask is that of `forward`.
        """
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
        self._stops_at_blocks = True
        try:
            self.run_native(native)
        except _FirstBlockReached as reached:
            return reached.hidden
        finally:
            self._stops_at_blocks = False
        raise ValueError("its own input does not reach the first block")

    def run_native(self, native: Tensor, mask: Tensor | None = None, **options: Any) -> Any:
        """Return the output of the model for its own input, or for a stand-in while vectors replace its tokens.

        The mask (batch, tokens) is 1 at real tokens; ``options`` are further arguments of the call.
        """
        arguments = dict(self._call_options)
        native = native.long() if self.input_name == "input_ids" else native.to(self._outer_type())
        if self._mask_name == "pixel_attention_mask":
            # Such a model takes images of several sizes, as patches (batch, patches, values), and needs a mask and the
            # height and width of each image in patches. Here, each image is a single row of patches.
            rows, patches = native.shape[:2]
            if mask is None:
                mask = torch.ones(rows, patches, dtype=torch.int64, device=native.device)
            arguments["pixel_attention_mask"] = mask
            arguments["spatial_shapes"] = torch.tensor([[1, patches]] * rows, device=native.device)
        elif self._mask_name:
            arguments[self._mask_name] = mask
        return self.model(**{self.input_name: native}, **arguments, **options)

    def _enter_blocks(self, _block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Replace the input of the first block with vectors, or end the pass there.

        A hook of torch: it gets the arguments of the block, and returns others, or None to leave them as they are. The
        input is the first positional argument, or, without any, the keyword argument ``hidden_states``.
        """
        if self._stops_at_blocks:
            raise _FirstBlockReached(inputs[0] if inputs else named["hidden_states"])
        if self._vectors is None:
            return None
        if inputs:
            return (self._vectors, *inputs[1:]), named
        return inputs, named | {"hidden_states": self._vectors}

    def _outer_type(self) -> torch.dtype:
        """Return the type of the weights outside the blocks, which the model's own input needs."""
        for name, parameter in self.model.named_parameters():
            if not name.startswith(self._blocks_path):
                return parameter.dtype  # the same for all of them
        return torch.float32  # there are none

    def _positions(self, embeds: Tensor) -> Tensor:
        """Return the sines and cosines of Vaswani et al. 2017, (tokens, width), with the scale of initial weights."""
        tokens, width = embeds.shape[1:]
        # Channels 2i and 2i + 1 are the sine and the cosine of position / 10,000^(2i / width).
        even_channels = torch.arange(0, width, 2, device=embeds.device)
        rates = torch.exp(even_channels * (-math.log(10_000) / width))
        angles = torch.arange(tokens, device=embeds.device)[:, None] * rates
        pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)
        waves = pairs.flatten(1)[:, :width]  # an odd width ends with a sine
        # Most configurations of transformers have 0.02 as the standard deviation of initial weights.
        deviation = getattr(self.model.config, "initializer_range", None) or 0.02
        return math.sqrt(2) * deviation * waves  # the mean square of a sine is one half


class FrontEnd(nn.Module):
    """Everything before the first block of a `VectorModel`: it maps token numbers, or patches of images, to vectors.

    It has no tensors of its own, so a digest of the model covers it.
    """

    def __init__(self, owner: VectorModel) -> None:
        super().__init__()
        # In a tuple, because torch would make the model a part of this module, which is a part of the model itself.
        self._owner = (owner,)
        # Channels, height and width of the images whose patches are read; None while tokens are read.
        self.pixels: tuple[int, int, int] | None = None
        table = token_table(owner.model) if owner.input_name == "input_ids" else None
        # The size of the vocabulary; None if the model reads no texts. `nn.Embedding` has the same attribute.
        self.num_embeddings: int | None = getattr(table, "num_embeddings", None)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, patches, values), to (batch, tokens, width)."""
        (owner,) = self._owner
        if self.pixels is None:
            return owner.embed(x)
        # Put the images together again. The axes of ``grid`` are row and column of the patch, row and column of the
        # pixel in the patch, and the channel.
        rows = x.shape[0]
        channels, height, width = self.pixels
        side = patch_side(owner.model.config)
        grid = x.reshape(rows, height // side, width // side, side, side, channels)
        images = grid.permute(0, 5, 1, 3, 2, 4).reshape(rows, channels, height, width)
        return owner.embed(images)

    def set_pixels(self, pixels: tuple[int, int, int]) -> None:
        """Read patches of images of these channels, height and width from now on; also set the model's stand-in."""
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


def stand_ins(model: Any, input_name: str) -> list[StandIn]:
    """Return the stand-ins to try, the best first: those that become the given number of tokens.

    ``input_name`` is the argument of the model's own input. Its shape differs between models, and no configuration
    states it: the tests of `reservoir.backbones.generic_checks` take the first stand-in that works.
    """
    if input_name == "input_ids":
        return [StandIn(lambda tokens: (tokens,), shares_row=False)]
    config = model.config
    if input_name == "pixel_values":
        takes_patches = bool(_mask_argument(model, input_name))
        if takes_patches:
            channels, _height, _width = image_shape(config)
            values = channels * _patch_side_or_default(config) ** 2
            return [StandIn(lambda tokens: (tokens, values), shares_row=False)]
        shapes = _image_shapes(config)
    elif input_name == "input_values":
        shapes = _waveform_shapes(config)
    else:  # input_features
        shapes = _filter_bank_shapes(config)
    return [StandIn(shape, shares_row) for shape in shapes for shares_row in (True, False)]


def _image_shapes(config: Any) -> list[RowShape]:
    """Return the shapes to try of an image, or of a video."""
    channels, height, width = image_shape(config)
    side = _patch_side_or_default(config)
    shapes: list[RowShape] = [
        lambda tokens: (channels, side, side * tokens),  # a row of patches
        lambda tokens: (channels, side, side * max(tokens - 1, 1)),  # the same after a class token
        lambda _tokens: (channels, height, width),  # the images of the training
    ]
    frames = getattr(config, "num_frames", 0)
    if frames:
        shapes.append(lambda _tokens: (frames, channels, height, width))
    return shapes


def _waveform_shapes(config: Any) -> list[RowShape]:
    """Return the shapes to try of a sound in ``input_values``: its samples, or filter banks."""
    shapes: list[RowShape] = []
    if hasattr(config, "conv_kernel"):
        shapes.append(lambda tokens: (_samples(config, tokens),))
    frames = getattr(config, "max_length", None) or 1024  # as in the audio spectrogram transformer
    shapes.append(lambda _tokens: (frames, _mel_bins(config)))
    return shapes


def _filter_bank_shapes(config: Any) -> list[RowShape]:
    """Return the shapes to try of a sound in ``input_features``: filter banks, (frames, channels) or the reverse."""
    mel_bins = _mel_bins(config)
    features = getattr(config, "feature_projection_input_dim", getattr(config, "input_dim", mel_bins))
    # As in Whisper, two frames become a token.
    most_frames = 2 * getattr(config, "max_source_positions", 1500)
    return [
        lambda tokens: (tokens, features),
        lambda tokens: (mel_bins, 2 * tokens),
        lambda _tokens: (mel_bins, most_frames),
        lambda tokens: (FRAMES_PER_TOKEN * tokens, mel_bins),
    ]


def _mel_bins(config: Any) -> int:
    """Return the number of channels of the filter banks of a model of sounds."""
    return getattr(config, "num_mel_bins", MEL_BINS)


def _patch_side_or_default(config: Any) -> int:
    """Return the side in pixels of the patches of a stand-in, also for a model that states none."""
    return patch_side(config) if hasattr(config, "patch_size") else PATCH_SIDE


def _samples(config: Any, tokens: int) -> int:
    """Return the least number of samples that the convolutions of a model shorten to a number of tokens."""
    # From the last convolution back to the first: n outputs need (n - 1) strides and a kernel of inputs.
    samples = tokens
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return samples


def _mask_argument(model: Any, input_name: str) -> str:
    """Return the argument for a mask of tokens; empty if there is none, or if its mask is one of samples or pixels."""
    arguments = inspect.signature(model.forward).parameters
    names = {"input_ids": "attention_mask", "pixel_values": "pixel_attention_mask"}  # by the input
    name = names.get(input_name, "")
    # Only models with ``spatial_shapes`` have patches behind it; in others it is a mask of pixels.
    if name == "pixel_attention_mask" and "spatial_shapes" not in arguments:
        return ""
    return name if name in arguments else ""
