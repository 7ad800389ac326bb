"""The options of a frozen model with every default resolved, and how it divides a task into tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.errors import InputError
from reservoir.options import GAIN, ReservoirOptions
from reservoir.tasks.picture_windows import Picture, PictureWindows
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows

MAX_WINDOW = 2**18  # values of a token; an input layer of more takes minutes to draw
MAX_SYMBOLS = 64  # largest vocabulary of windows, which have one channel per symbol


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
        values_alone = self.patch == 1 and self.stride == 1 and self.dilations in ("1", "auto")
        return values_alone and self.pad == "valid" and self.normalise == "channel"

    def windows(self, task: Task) -> Windows:
        """Return the windows that become the tokens of a task."""
        if self.input == "patches":
            picture = Picture.of(task, self.patch, self.stride)
            return PictureWindows(
                patch=self.patch, stride=self.stride, stored=task.max_tokens, places=picture.places
            )
        dilations = tuple(map(int, self.with_dilations(task.max_tokens).dilations.split(",")))
        symbols = task.form.vocabulary if isinstance(task.form, Tokens) else 0
        return Windows(
            patch=self.patch,
            stride=self.stride,
            dilations=dilations,
            pad=self.pad,
            normalise=self.normalise,
            symbols=symbols,
        )

    def with_dilations(self, longest: int) -> Reservoir:
        """Replace the dilations ``auto`` by 1, 2, 4 ... up to windows that span a row of the ``longest`` length."""
        if self.dilations != "auto":
            return self
        # A window of ``patch`` values at distances of d spans (patch - 1) d + 1 places.
        dilations = [1]
        while (self.patch - 1) * 2 * dilations[-1] < longest and self.patch > 1:
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
        # Windows of few symbols are vectors of ones and zeros, with a channel for each symbol.
        channels = task.form.dim if isinstance(task.form, Vectors) else windows.symbols
        if windows.symbols > MAX_SYMBOLS:
            raise InputError(
                f"--patch {self.patch}: windows support up to {MAX_SYMBOLS} symbols, and task {task.name!r} "
                f"has {channels}",
                "leave out the window options",
            )
        # Labels of tokens need as many windows as tokens.
        keeps_tokens = task.labels_each_token and self.stride == 1 and self.pad == "same"
        if task.readout_tokens > 1 and not keeps_tokens:
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
        # A window has its values at each dilation, in each form, of each channel.
        dim = len(windows.dilations) * windows.patch * windows.forms * channels
        if dim > MAX_WINDOW:
            raise InputError(
                f"--patch {self.patch}: each token would have {dim:,} values, more than {MAX_WINDOW:,}",
                "give a smaller patch or fewer dilations",
            )
        return replace(task, form=Vectors(dim), max_tokens=tokens)
