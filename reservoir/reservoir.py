"""The options of a frozen model with every default resolved, and how it divides a task into tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.errors import InputError
from reservoir.options import GAIN, ReservoirOptions
from reservoir.tasks.pictures import Picture, PictureWindows
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows

MAX_WINDOW = 2**18  # values of a token; an input layer of more takes minutes to draw
MAX_WINDOW_SYMBOLS = 64  # largest vocabulary of windows, which have one channel per symbol


class Reservoir(ReservoirOptions):
    """`ReservoirOptions` with every default resolved (see `reservoir.plan`).

    The defaults of these fields are the plain model of Lu et al. (2021): each value is a token, without
    windows. The plan replaces them where the kind of data has better ones.
    """

    backbone: str = DEFAULT_BACKBONE
    init: str = "pretrained"
    input: str = "orthogonal"
    gain: float = GAIN
    patch: int = 1
    stride: int = 1
    dilations: str = "1"
    pad: str = "valid"
    normalise: str = "channel"

    @property
    def plain(self) -> bool:
        """Whether each value is a token as it is, without windows."""
        has_window_of_one = self.patch == 1 and self.stride == 1 and self.dilations in ("1", "auto")
        return has_window_of_one and self.pad == "valid" and self.normalise == "channel"

    def windows(self, task: Task) -> Windows:
        """Return the windows that become the tokens of a task."""
        if self.input == "patches":  # windows of pictures
            picture = Picture.of(task, self.patch, self.stride)
            return PictureWindows(
                patch=self.patch, stride=self.stride, stored=task.max_tokens, places=picture.places
            )
        numbers = self.with_dilations(task.max_tokens).dilations.split(",")
        dilations = tuple(int(number) for number in numbers)
        symbols = task.form.vocabulary if isinstance(task.form, Tokens) else 0  # 0 for values
        return Windows(
            patch=self.patch,
            stride=self.stride,
            dilations=dilations,
            pad=self.pad,
            normalise=self.normalise,
            symbols=symbols,
        )

    def with_dilations(self, longest: int) -> Reservoir:
        """Return these options with ``auto`` replaced by the dilations 1, 2, 4 ... whose windows fit into a row.

        The row has the length ``longest``, in values. Other dilations stay as they are.
        """
        if self.dilations != "auto":
            return self
        # A window of ``patch`` values at distances of d spans (patch - 1) d + 1 places. Windows of one value are the
        # same at all dilations.
        dilations = [1]
        if self.patch > 1:
            while (self.patch - 1) * 2 * dilations[-1] + 1 <= longest:
                dilations.append(2 * dilations[-1])
        return replace(self, dilations=",".join(map(str, dilations)))

    def windowed(self, task: Task) -> Task:
        """Return the task as the model sees it, with windows as tokens; raise `InputError` if no window fits."""
        windows = self.windows(task)
        if windows.plain:
            return task
        if isinstance(windows, PictureWindows):
            picture = Picture.of(task, self.patch, self.stride)
            return replace(task, form=Vectors(picture.window_values), max_tokens=picture.places)
        # Windows of symbols are vectors of ones and zeros, with a channel for each symbol, so these must be few.
        channels = task.form.dim if isinstance(task.form, Vectors) else windows.symbols
        if windows.symbols > MAX_WINDOW_SYMBOLS:
            raise InputError(
                f"--patch {self.patch}: windows support up to {MAX_WINDOW_SYMBOLS} symbols, and task {task.name!r} "
                f"has {channels}",
                "leave out the window options",
            )
        # Labels of tokens need a window around each token.
        has_window_per_token = self.stride == 1 and self.pad == "same"
        can_label_tokens = task.labels_each_token and has_window_per_token
        if task.readout_tokens > 1 and not can_label_tokens:
            raise InputError(
                f"--patch {self.patch}: task {task.name!r} labels tokens, not windows",
                "leave out the window options",
            )
        tokens = int(windows.counts(np.array(task.max_tokens)))
        if tokens < 1:
            raise InputError(
                f"--patch {self.patch}: no window fits the sequences of up to {task.max_tokens} values",
                "give a smaller patch or smaller dilations",
            )
        # A token holds the values of a window at each dilation, of each channel in each of its forms: as it is,
        # standardised, or both and more, as ``normalise`` says (see `row_forms`). ``task.form`` is something else, the
        # type of the stored tokens.
        dim = len(windows.dilations) * windows.patch * windows.forms * channels
        if dim > MAX_WINDOW:
            raise InputError(
                f"--patch {self.patch}: each token would have {dim:,} values, more than {MAX_WINDOW:,}",
                "give a smaller patch or fewer dilations",
            )
        return replace(task, form=Vectors(dim), max_tokens=tokens)
