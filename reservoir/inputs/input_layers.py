"""Input layers of a backbone that does not read a task by its own input: random layers, a counter, or convolutions.

Random layers are orthogonal maps and embeddings, kernels for windows of values, and edges for windows of images.

A counter of brackets yields each symbol at its level, as a one-hot vector. Attention of a random block does not compute
how deep a bracket is nested. A running sum of opened minus closed brackets does, so the structure is given here, not
learned.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.backbone import Backbone
from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.errors import InputError
from reservoir.inputs.convolutions import KernelConvolution, PatchConvolution
from reservoir.inputs.patch_units import PatchUnits
from reservoir.options import GAIN
from reservoir.random import generator
from reservoir.reservoir import Reservoir
from reservoir.tasks.listops import CLOSE, OPERATIONS, OPERATOR, SYMBOLS
from reservoir.tasks.pictures import Picture, contrast_normalised, whitening
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows

# Deeper symbols count as being on the deepest of these levels. On ListOps three levels have nearly all of the accuracy.
BRACKET_LEVELS = 4
PAIRS = ("()", "[]", "{}", "<>")

# Images for `edges`: discs drawn over each other, the last one on top, in a square field. All numbers are chosen
# by hand.
DISCS = 40
FIELD = 48.0  # pixels
GREY = 128.0  # of the background, and the mean of the discs, in 0..255
DEVIATION_OF_BRIGHTNESS = 60  # between discs, equal in all channels
DEVIATION_OF_CHANNELS = 25  # of each channel of a disc from its brightness
FLATTEST = 0.4  # smallest ratio of the axes of an ellipse


@dataclass(frozen=True)
class Brackets:
    """The symbols of a vocabulary that open and close a level."""

    vocabulary: int  # number of symbols
    opening: tuple[int, ...]  # numbers of the symbols that open a level
    closing: tuple[int, ...]  # numbers of the symbols that close one

    @classmethod
    def of(cls, task: Task) -> "Brackets":
        """Return the brackets of a task's symbols; raise `InputError` if it has none."""
        vocabulary = task.form.vocabulary if isinstance(task.form, Tokens) else 0
        if task.name == "listops" and vocabulary == len(SYMBOLS):
            # An operator opens the list of its arguments.
            return cls(vocabulary, tuple(range(OPERATOR, OPERATOR + len(OPERATIONS))), (CLOSE,))
        # Of your own texts, the pairs of brackets of which the alphabet has both.
        pairs = [pair for pair in PAIRS if set(pair) <= set(task.alphabet)]
        if not vocabulary or not pairs:
            raise InputError(
                f"--input counter: the symbols of task {task.name!r} have no pairs of brackets",
                "use another --input",
            )
        opening = tuple(task.alphabet.index(left) for left, _ in pairs)
        closing = tuple(task.alphabet.index(right) for _, right in pairs)
        return cls(vocabulary, opening, closing)

    @property
    def channels(self) -> int:
        """The number of channels that the counter uses: one for each symbol at each level."""
        return BRACKET_LEVELS * self.vocabulary


class BracketCounter(nn.Module):
    """The one-hot vector of each symbol at its level, level by level, with zeros up to the model's width.

    The level of a symbol is the number of brackets that are open there, from 1, up to `BRACKET_LEVELS`; an opening
    and a closing bracket are on the level that they enclose, and symbols outside of brackets on the first.
    ``gain`` is the value of the channel that is not zero.
    """

    special = 0, 0  # it adds no special tokens before and after those of the data
    steps: Tensor  # (vocabulary,): what each symbol adds to the number of open brackets, 1, -1 or 0

    def __init__(self, brackets: Brackets, width: int, gain: float) -> None:
        super().__init__()
        if width < brackets.channels:
            # The backbone ``kernels`` takes only multiples of the group size as its width, so it is rounded up.
            least_width = -(-brackets.channels // GROUP_SIZE) * GROUP_SIZE
            raise InputError(
                f"--input counter: {width} channels are fewer than {BRACKET_LEVELS} levels of "
                f"{brackets.vocabulary} symbols",
                f"use --backbone kernels:width={least_width}",
            )
        self.brackets, self.width, self.gain = brackets, width, gain
        steps = torch.zeros(brackets.vocabulary, dtype=torch.int64)
        steps[list(brackets.opening)] = 1
        steps[list(brackets.closing)] = -1
        self.register_buffer("steps", steps)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols (batch, tokens) to (batch, tokens, width), zero but for the ``gain`` in one channel each."""
        step = self.steps[x.long()]
        is_closing = step < 0
        # The brackets that are open at each symbol. A closing one has lowered the running sum already, but is itself on
        # the level that it closes. Levels are numbered from 0, which is also that of symbols outside of brackets.
        level = (step.cumsum(dim=1) + is_closing - 1).clamp(0, BRACKET_LEVELS - 1)
        channel = level * self.brackets.vocabulary + x.long()
        hidden = torch.zeros(*x.shape, self.width, device=x.device)
        return hidden.scatter_(2, channel[:, :, None], self.gain)


class InputLayer(nn.Module):
    """The fixed map from tokens to the backbone's width; `draw_layer` draws its weights."""

    special = 0, 0  # it adds no special tokens before and after those of the data

    def __init__(self, form: Vectors | Tokens, width: int) -> None:
        super().__init__()
        if isinstance(form, Vectors):
            self.map: nn.Module = nn.Linear(form.dim, width)
            nn.init.zeros_(self.map.bias)
        else:
            self.map = nn.Embedding(form.vocabulary, width)
        # Of rate 0: training sets the rate. Vectors have dropout, and symbols have none, as published.
        self.dropout: nn.Module = nn.Dropout(0.0) if isinstance(form, Vectors) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) floats or (batch, tokens) integers to (batch, tokens, width)."""
        return self.dropout(self.map(x))


class NoInputLayer(nn.Module):
    """Passes on tokens that have the backbone's width already, such as the responses of kernels."""

    special = 0, 0  # it adds no special tokens before and after those of the data

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (batch, tokens, width) as they are."""
        return x


def draw_inputs(
    task: Task,
    seen_task: Task,
    settings: Reservoir,
    windows: Windows,
    backbone: Backbone,
    units: PatchUnits | None,
) -> InputLayer | BracketCounter | KernelConvolution | PatchConvolution:
    """Return the input layer that reads tokens of a task, or a module that responds to whole rows in its place.

    ``seen_task`` is the task as the model sees it: each of its tokens is one of the ``windows``. ``units`` are those of
    ``--input patches``; None if they have not been drawn.
    """
    width = backbone.width
    if settings.input == "counter":
        if not windows.plain:
            raise InputError(
                "--input counter: it reads symbols, not windows", "leave out the window options"
            )
        return BracketCounter(Brackets.of(task), width, settings.gain)
    if settings.input == "patches":
        if units is None:
            raise InputError(
                "--input patches: its units are drawn from the training rows of an extraction",
                "use reservoir extract, then fit and predict, or another --input",
            )
        return PatchConvolution(units, Picture.of(task, settings.patch, settings.stride), settings.gain)
    # Without blocks behind them, kernels read the rows themselves instead of their windows.
    reads_rows = settings.input == "kernels" and not backbone.depth and not windows.plain
    if reads_rows:
        channels = task.form.dim if isinstance(task.form, Vectors) else windows.symbols
        return KernelConvolution(
            windows,
            channels,
            width,
            settings.seed,
            settings.gain,
            channel_subsets=getattr(backbone.config, "channel_subsets", False),
        )
    return draw_layer(settings.input, seen_task, windows, width, seed=settings.seed, gain=settings.gain)


def draw_layer(
    kind: str, task: Task, windows: Windows, width: int, *, seed: int = 0, gain: float = GAIN
) -> InputLayer:
    """Return the random input layer of a kind, a value of ``--input``, for a task with these windows as tokens.

    By default vectors are multiplied by a matrix (width, dim) with orthogonal columns of norm ``gain``, and symbols
    get Gaussian embeddings of standard deviation ``gain / 1.41`` (Lu et al. 2021, appendix).
    """
    form = task.form
    layer = InputLayer(form, width)
    if kind == "kernels" and isinstance(form, Vectors):
        taps = len(windows.dilations) * windows.patch * windows.forms  # values of one channel in a window
        shape = (len(windows.dilations), windows.patch, windows.forms, form.dim // taps)
        weights = gain * kernels(width, seed, shape)
    elif kind == "edges":
        rows = edges(task, width, seed)
        # The total norm is that of orthogonal columns of norm 1.
        rows *= math.sqrt(rows.shape[1] / rows.shape[0])
        weights = gain * rows
    elif kind == "gaussian" and isinstance(form, Vectors) and not windows.symbols:
        # Windows of symbols stay orthogonal, as in older entries. The mean squared norm is the same.
        normal = generator(seed, "input").standard_normal((width, form.dim))
        weights = gain * (normal / math.sqrt(max(width, form.dim)))
    else:
        weights = _orthogonal_or_embeddings(form, width, seed, gain)
    with torch.no_grad():
        layer.map.get_parameter("weight").copy_(torch.from_numpy(weights))
    return layer


def _orthogonal_or_embeddings(form: Vectors | Tokens, width: int, seed: int, gain: float) -> np.ndarray:
    """Return a matrix (width, dim) with orthogonal columns for vectors, or Gaussian embeddings (vocabulary, width)."""
    # The same draw for both forms, so that a seed means one matrix.
    size = form.dim if isinstance(form, Vectors) else form.vocabulary
    normal = generator(seed, "input").standard_normal((max(size, width), min(size, width)))
    if isinstance(form, Tokens):
        return normal.reshape(size, width) * (gain / GAIN)
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))  # a uniform draw, the same for every LAPACK
    return gain * (q if size <= width else q.T)


def kernels(width: int, seed: int, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return random kernels (width, dilations * patch * forms * channels) of norm 1, an input layer for windows.

    ``shape`` has these four numbers. As in ROCKET (Dempster et al. 2020), the Gaussian weights of a unit sum to zero
    over the taps of one dilation and one of the channels' `row_forms`. Units cycle through the dilations, then through
    the forms.
    """
    dilations, patch, forms, _ = shape
    weights = generator(seed, "input").standard_normal((width, *shape))
    if patch > 1:  # a single tap would become zero
        weights -= weights.mean(axis=2, keepdims=True)
    # Each unit keeps the weights of its own dilation and form, and has zeros elsewhere.
    unit = np.arange(width)
    mask = np.zeros((width, dilations, 1, forms, 1))
    mask[unit, unit % dilations, 0, unit // dilations % forms] = 1
    weights = (weights * mask).reshape(width, -1)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def edges(task: Task, width: int, seed: int) -> np.ndarray:
    """Return the weights (width, dim) of an input layer for whitened windows of images, each row of norm 1.

    Each row is a window of an image of opaque random discs ("dead leaves", Lee, Mumford and Huang
    2001), which has edges like those of photographs. It is contrast-normalised and whitened like the
    task's windows. No data are used.
    """
    window = task.parameters.get("window")
    # Own recordings have windows, too, but of steps and without a stride.
    if not window or not task.parameters.get("stride") or not isinstance(task.form, Vectors):
        raise InputError(
            f"--input edges: task {task.name!r} has no whitened windows of images as tokens",
            "add --param window=6 --param stride=2 if it is a named task of images, or use orthogonal",
        )
    channels = task.form.dim // window**2
    # Some windows lie within one disc, and have no contrast. So twice as many are drawn as are needed, and those with
    # contrast are taken, in the order in which they were drawn. Of small grey windows more must be drawn.
    draw = generator(seed, "input")
    with_contrast = np.empty((0, task.form.dim))
    while len(with_contrast) < width:
        drawn = _windows_of_discs(2 * width, window, channels, draw).reshape(2 * width, -1)
        with_contrast = np.concatenate([with_contrast, drawn[np.ptp(drawn, axis=1) > 0]])
    weights = contrast_normalised(with_contrast[:width]) @ whitening(window, channels)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def _windows_of_discs(count: int, side: int, channels: int, draw: np.random.Generator) -> np.ndarray:
    """Return windows (count, side, side, channels) in the middle of fields of discs of all sizes, float64 in 0..255."""
    windows = np.full((count, side, side, channels), GREY)
    pixels = np.arange(side) + (FIELD - side) / 2  # positions in the field of the window's rows, or columns
    for _ in range(DISCS):
        # One disc in each field. ``down`` (count, side, 1) and ``right`` (count, 1, side) are the distances of the
        # window's rows and columns of pixels from its centre.
        centre_down, centre_right = draw.uniform(0, FIELD, (2, count))
        down = (pixels - centre_down[:, None])[:, :, None]
        right = (pixels - centre_right[:, None])[:, None, :]
        # Few discs are large: radii range from 3.6 to 33 pixels, and half of them are below 5.1.
        radius = (4 / (draw.uniform(size=count) ** 0.6 + 0.12))[:, None, None]
        # Each disc is an ellipse: flattened, and turned by an angle. The distances along and across its long axis say
        # which pixels are inside.
        flattening = draw.uniform(FLATTEST, 1, count)[:, None, None]
        angle = draw.uniform(0, 2 * np.pi, count)[:, None, None]
        along_axis = np.cos(angle) * down + np.sin(angle) * right
        across_axis = np.cos(angle) * right - np.sin(angle) * down
        is_inside = along_axis**2 + (across_axis / flattening) ** 2 < radius**2
        # The disc hides what was drawn before it.
        brightness = DEVIATION_OF_BRIGHTNESS * draw.standard_normal((count, 1))
        of_channels = DEVIATION_OF_CHANNELS * draw.standard_normal((count, channels))
        colour = np.clip(GREY + brightness + of_channels, 0, 255)
        filled = np.broadcast_to(colour[:, None, None], windows.shape)
        windows = np.where(is_inside[..., None], filled, windows)
    return windows
