"""Pictures that a task stores as tokens, and the overlapping windows of them that become the tokens of a model."""

import math
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.patches import MARGIN
from reservoir.tasks.task import Task, Vectors
from reservoir.tasks.windows import Windows

MOST_VALUES = 1024
"""Values of a window: 200,000 windows, from which whitening is learnt, then take at most 2 GB."""


@dataclass(frozen=True)
class Picture:
    """A square picture as the tokens of a task, and its windows.

    Parameters
    ----------
    side, channels : int
        Pixels along a side, and values of a pixel: 1 or 3.
    patch : int
        The side of the stored tokens in pixels: 1 if each pixel is a token, as in CIFAR-10-LRA.
    window, stride : int
        The side of the windows in pixels, and the pixels from one window to the next.
    """

    side: int
    channels: int
    patch: int
    window: int
    stride: int

    @classmethod
    def of(cls, task: Task, window: int, stride: int) -> "Picture":
        """Return the picture of a task's rows, with windows of this side and stride.

        Raise `InputError` if the rows are not square pictures, or if the windows do not fit them.
        """
        # A token is a pixel or a patch; a task with windows of its own stores whitened windows instead.
        tokens_along_side = math.isqrt(task.max_tokens)
        is_square = tokens_along_side**2 == task.max_tokens and tokens_along_side > 1
        stores_windows = bool(task.parameters.get("window"))
        patch_shape = _side_and_channels(task.form.dim) if isinstance(task.form, Vectors) else None
        if patch_shape is None or not is_square or stores_windows:
            raise InputError(
                f"--input patches: the rows of task {task.name!r} are not square pictures of plain pixels or patches",
                "use another --input, or a task of pictures without --param window",
            )
        patch, channels = patch_shape
        side = tokens_along_side * patch
        # Steps of the stride must lead from the first window, in one corner of the margin, exactly to the last.
        remainder = (side + 2 * MARGIN - window) % stride
        is_valid = 3 <= window <= side and stride <= window
        if not is_valid or remainder:
            raise InputError(
                f"--patch {window} --stride {stride}: windows do not fill pictures of {side} pixels and a margin of "
                f"{MARGIN} on each side",
                "try --patch 6 --stride 2",
            )
        if window**2 * channels > MOST_VALUES:
            raise InputError(
                f"--patch {window}: windows of {window**2 * channels:,} values are too large to whiten",
                "try --patch 6",
            )
        return cls(side, channels, patch, window, stride)

    @property
    def inner_window(self) -> int:
        """The side of the smaller window in the middle of a window: about half of it, with equal margins around."""
        half = self.window // 2
        return half + (self.window - half) % 2

    @property
    def window_values(self) -> int:
        """The number of values of a window."""
        return self.window**2 * self.channels

    @property
    def places(self) -> int:
        """The number of windows of a picture."""
        windows_along_side = (self.side + 2 * MARGIN - self.window) // self.stride + 1
        return windows_along_side**2


def _side_and_channels(values: int) -> tuple[int, int] | None:
    """Return the side in pixels and the channels of a square patch of so many values; None if no patch has so many."""
    for channels in (1, 3):  # grey or in colour
        side = math.isqrt(values // channels)
        if side**2 * channels == values:
            return side, channels
    return None


@dataclass(frozen=True, kw_only=True)
class PictureWindows(Windows):
    """Windows of pictures of a fixed size, instead of windows along a sequence."""

    stored: int  # stored tokens of a row, which are a picture together
    places: int  # windows of a picture, each of which is a token of the model

    @property
    def plain(self) -> bool:
        """Whether each value is a token, unchanged: never."""
        return False

    @property
    def read_share(self) -> float:
        """The share of a row's values that are in at least one window: all."""
        return 1.0

    @property
    def reach(self) -> int:
        """Number of stored tokens that a row needs for its windows: a whole picture."""
        return self.stored

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of windows of rows of these lengths, int32; 0 for rows that are not a whole picture."""
        return np.where(lengths == self.stored, self.places, 0).astype(np.int32)
