"""Random input layers: orthogonal maps and embeddings, and edges for windows of images."""

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.random import generator
from reservoir.tasks.patches import contrast_normalised, whitening
from reservoir.tasks.task import Task, Tokens, Vectors

GAIN = 1.41  # of orthogonal input and output layers, as published (about the square root of 2)

# Images for `edges`: discs drawn over each other, the last one on top, in a square field.
DISCS = 40
FIELD = 48.0  # pixels


class InputLayer(nn.Module):
    """The fixed map from tokens to the backbone's width (Lu et al. 2021, appendix).

    Vectors are multiplied by a matrix with orthogonal columns of norm ``gain``, or by ``gain`` times
    ``weights`` (width, dim). Symbols get Gaussian embeddings of standard deviation ``gain / 1.41``.
    """

    special = 0, 0  # it adds no special tokens before and after those of the data

    def __init__(
        self,
        form: Vectors | Tokens,
        width: int,
        seed: int = 0,
        gain: float = GAIN,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        vectors = isinstance(form, Vectors)
        size = form.dim if vectors else form.vocabulary
        self.map: nn.Module = nn.Linear(size, width) if vectors else nn.Embedding(size, width)
        self.dropout: nn.Module = nn.Dropout(0.0)  # after vectors, not after symbols, as published
        if weights is not None:
            set_parameters(self.map, gain * weights)
            return
        # The same draw for both forms, so that a seed means one matrix.
        normal = generator(seed, "input").standard_normal((max(size, width), min(size, width)))
        if isinstance(form, Tokens):
            set_parameters(self.map, normal.reshape(size, width) * (gain / GAIN))
            self.dropout = nn.Identity()
        else:
            q, r = np.linalg.qr(normal)
            q = q * np.sign(np.diag(r))  # a uniform draw, the same for every LAPACK
            set_parameters(self.map, gain * (q if size <= width else q.T))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) floats or (batch, tokens) integers to (batch, tokens, width)."""
        return self.dropout(self.map(x))


class NoInputLayer(nn.Module):
    """Passes on tokens that have the backbone's width already, such as the responses of kernels."""

    special = 0, 0  # it adds no special tokens before and after those of the data

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (batch, tokens, width) as they are."""
        return x


@torch.no_grad()
def set_parameters(layer: nn.Module, weight: np.ndarray, bias: np.ndarray | float = 0.0) -> None:
    """Copy values to the weight of a layer, and to its bias if it has one."""
    for name, parameter in layer.named_parameters():
        parameter.copy_(torch.from_numpy(weight) if name == "weight" else torch.as_tensor(bias))


def edges(task: Task, width: int, seed: int) -> np.ndarray:
    """Return the weights (width, dim) of an input layer for whitened windows of images, each row of norm 1.

    Each row is a window of an image of opaque random discs ("dead leaves", Lee, Mumford and Huang
    2001), which has edges like those of photographs. It is contrast-normalised and whitened like the
    task's windows. No data are used.
    """
    window = task.parameters.get("window")
    if not window or not isinstance(task.form, Vectors):
        raise InputError(
            f"--input edges: task {task.name!r} has no whitened windows of images as tokens",
            "add --param window=6 --param stride=2, or use orthogonal",
        )
    channels = task.form.dim // window**2
    # Some windows lie within one disc; twice as many are drawn as are needed, and those with contrast come first.
    drawn = _windows_of_discs(2 * width, window, channels, generator(seed, "input")).reshape(2 * width, -1)
    first = np.argsort(np.ptp(drawn, axis=1) == 0, kind="stable")[:width]
    weights = contrast_normalised(drawn[first]) @ whitening(window, channels)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def _windows_of_discs(count: int, side: int, channels: int, draw: np.random.Generator) -> np.ndarray:
    """Return windows (count, side, side, channels) in the middle of fields of discs of all sizes, float64 in 0..255."""
    windows = np.full((count, side, side, channels), 128.0)
    pixels = np.arange(side) + (FIELD - side) / 2
    for _ in range(DISCS):
        # A disc in each field: its centre, radius and colour. It is an ellipse, turned by an angle.
        down, right = (pixels - centre[:, None] for centre in draw.uniform(0, FIELD, (2, count)))
        radius = 4 / (draw.uniform(size=count) ** 0.6 + 0.12)  # few large discs, many small ones
        flattened, angle = draw.uniform(0.4, 1, count), draw.uniform(0, 2 * np.pi, count)
        along = (
            np.cos(angle)[:, None, None] * down[:, :, None]
            + np.sin(angle)[:, None, None] * right[:, None, :]
        )
        across = (
            np.cos(angle)[:, None, None] * right[:, None, :]
            - np.sin(angle)[:, None, None] * down[:, :, None]
        )
        # The disc hides what was drawn before it.
        inside = along**2 + (across / flattened[:, None, None]) ** 2 < radius[:, None, None] ** 2
        colour = 128 + 60 * draw.standard_normal((count, 1)) + 25 * draw.standard_normal((count, channels))
        filled = np.broadcast_to(np.clip(colour, 0, 255)[:, None, None], windows.shape)
        windows = np.where(inside[..., None], filled, windows)
    return windows
