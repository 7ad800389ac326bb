"""An input layer for whitened image windows: each unit's weights are a window of a random image of discs."""

import numpy as np

from reservoir.errors import InputError
from reservoir.random import generator
from reservoir.tasks.patches import contrast_normalised, whitening
from reservoir.tasks.task import Task, Vectors

DISCS = 40  # drawn over each other, the last one on top, in a field of `FIELD` pixels
FIELD = 48.0


def edges(task: Task, width: int, seed: int) -> np.ndarray:
    """Return the weights (width, dim) of an input layer, each row of norm 1.

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
