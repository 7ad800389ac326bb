"""The common parts of all tasks of square images."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.images.patches import LEVELS, MARGIN, joined, patches, whitened_windows
from reservoir.tasks.source import Source, classes_of, full_lengths
from reservoir.tasks.task import Scaling, Split, Task, Vectors


@dataclass(frozen=True, kw_only=True)
class ImageSource(Source):
    """Square images of ten classes. Each token is a patch, or an overlapping, whitened window."""

    data: Path | None = None  # the folder of the files
    window: int = 0  # side of the windows in pixels; 0 for patches
    stride: int = 2  # pixels from one window to the next, down and to the right

    name: ClassVar[str]
    raw = "images of whole numbers, or "
    shape: ClassVar[tuple[int, ...]]  # shape of an image as published: (side, side) or (side, side, 3)
    channels: ClassVar[int] = 1  # values of a pixel in a token
    patch: ClassVar[int] = 4  # side of a patch in pixels
    labels: ClassVar[tuple[str, ...]] = ()
    white: ClassVar[int] = 255  # the largest value
    # constants that standardise each channel, for values from 0 to 1
    mean: ClassVar[tuple[float, ...]] = (0.0,)
    deviation: ClassVar[tuple[float, ...]] = (1.0,)
    border = 0  # pixels of zero padding at each edge

    @property
    def task(self) -> Task:
        """The description of the task; parameters that differ from the default are part of the cache key."""
        side = self.shape[0]
        own = [item for item in fields(self) if item.name not in ("data", "window", "stride")]
        parameters = {
            item.name: value for item in own if (value := getattr(self, item.name)) != item.default
        }
        size, grid = self.patch, (side + 2 * self.border) // self.patch
        if self.window:
            size, (steps, rest) = self.window, divmod(side + 2 * MARGIN - self.window, max(self.stride, 1))
            if not (2 <= size <= side and 1 <= self.stride <= size) or rest:
                start = (
                    f"task {self.name!r}: windows of {size} pixels with stride {self.stride} do not fill"
                )
                raise InputError(f"{start} {side} + {2 * MARGIN} pixels", "try window=6 and stride=2")
            grid = steps + 1
            parameters |= {"window": size, "stride": self.stride}
        return Task(
            name=self.name,
            form=Vectors(size**2 * self.channels),
            max_tokens=grid**2,
            classes=10,
            parameters=parameters,
            labels=self.labels,
        )

    def scaling(self) -> Scaling:
        """Return the map from stored bytes to standardised or whitened values."""
        if self.window:
            return Scaling.constant(1 / LEVELS, self.window**2 * self.channels, offset=128)
        offset, deviation = (
            self.white * np.tile(one, self.patch**2) for one in (self.mean, self.deviation)
        )
        return Scaling(offset=offset.astype(np.float32), scale=(1 / deviation).astype(np.float32))

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images (rows, *shape) of whole numbers, or sequences, as sequences."""
        if x.shape[1:] == self.shape and x.dtype.kind in "uif" and np.array_equal(x, x.astype(np.uint8)):
            x = self.tokens(x.astype(np.uint8))
        return super().encode(x)

    def tokens(self, images: np.ndarray) -> np.ndarray:
        """Return the sequences (rows, tokens, dim) of images (rows, *shape), all of bytes."""
        images = images.reshape(*images.shape[:3], -1)
        if self.window:
            return whitened_windows(images, self.window, self.stride)
        edges = (self.border, self.border)
        return patches(np.pad(images, ((0, 0), edges, edges, (0, 0))), self.patch)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Return images (rows, side, side, channels) of values 0 to 255."""
        if self.window:
            raise InputError(
                "whitened windows cannot be converted back to images", "choose a task without window"
            )
        inside = slice(self.border, self.border + self.shape[0])
        images = joined(x, self.shape[0] + 2 * self.border, self.patch)[:, inside, inside]
        return np.rint(images * (255 / self.white)).astype(np.uint8)

    def split(self, path: Path, images: np.ndarray, labels: np.ndarray, first: int = 0) -> Split:
        """Return images and labels (rows,) from a file as rows of the task; ``first`` is the id of the first."""
        largest = labels.max(initial=0)
        if not 0 < len(images) == len(labels) or largest > 9:
            found = f"{len(images)} images and {len(labels)} labels up to {largest}"
            raise InputError(
                f"{path}: {found}, instead of a label from 0 to 9 for each image", "fetch the files again"
            )
        x = self.tokens(images)
        return Split(x=x, y=classes_of(labels), lengths=full_lengths(x), ids=first + np.arange(len(x)))
