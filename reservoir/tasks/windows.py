"""Windows of a float sequence as tokens, at one or several dilations side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from reservoir.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Pad = Literal["valid", "same"]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How a sequence becomes tokens: its forms side by side, cut into windows of ``patch`` every ``stride``.

    Of so many ``symbols`` each is a channel of its own, 1 where it stands; 0 for floats.
    """

    patch: int = 1
    stride: int = 1
    dilations: tuple[int, ...] = (1,)
    pad: Pad = "valid"
    normalise: str = "channel"
    symbols: int = 0

    @property
    def plain(self) -> bool:
        """Whether each value is a token as it is."""
        return self == Windows(symbols=self.symbols)

    @property
    def forms(self) -> int:
        """Forms of each channel that stand side by side: its own scale, that of the row, or both."""
        return 2 if self.normalise == "both" else 1

    @property
    def reach(self) -> int:
        """Values of a row that the longest window needs."""
        return _reach(self.patch, self.dilations, self.pad)

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the tokens of rows of these lengths, of int32; 0 where none fits."""
        return window_counts(lengths, self.patch, self.stride, self.dilations, self.pad).astype(np.int32)

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of rows (rows, values, channels) and their numbers, as `windows` does."""
        if self.plain:
            return x, lengths
        if self.symbols:
            x = np.eye(self.symbols, dtype=np.float32)[x]
        if self.normalise != "channel":
            import torch

            x = row_forms(torch.from_numpy(x), torch.from_numpy(lengths), self.normalise).numpy()
        return windows(x, lengths, self.patch, self.stride, dilations=self.dilations, pad=self.pad)

    def torch(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a call does of tensors."""
        if self.plain:
            return x, lengths
        if self.symbols:
            import torch

            x = torch.eye(self.symbols, device=x.device)[x]
        return windows_torch(
            row_forms(x, lengths, self.normalise), lengths, self.patch, self.stride, self.dilations, self.pad
        )


def every_dilation(tokens: int, patch: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... as long as a window of ``patch`` values reaches less far than ``tokens``."""
    dilations = [1]
    while (patch - 1) * 2 * dilations[-1] < tokens and patch > 1:
        dilations.append(2 * dilations[-1])
    return tuple(dilations)


def row_forms(x: Tensor, lengths: Tensor, normalise: str) -> Tensor:
    """Return rows (rows, values, channels) as they are, each channel with mean 0 and deviation 1 in its row, or both.

    The forms of ``both`` stand side by side, (rows, values, 2 * channels). A channel that is constant in its row
    becomes 0.
    """
    import torch

    if normalise == "channel":
        return x
    inside = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
    count = lengths[:, None, None].to(x.dtype)
    centred = (x - x.masked_fill(~inside, 0).sum(1, keepdim=True) / count).masked_fill(~inside, 0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    # What rounding leaves of a constant is not blown up to deviation 1.
    level = 1e-5 * x.masked_fill(~inside, 0).abs().amax(1, keepdim=True)
    of_row = torch.where(deviation > level, centred / deviation, 0.0)
    return of_row if normalise == "series" else torch.cat([x, of_row], dim=2)


def window_counts(
    lengths: np.ndarray, patch: int, stride: int, dilations: tuple[int, ...] = (1,), pad: Pad = "valid"
) -> np.ndarray:
    """Return how many windows rows of these lengths give; 0 where none fits.

    Without padding windows lie wholly inside their row: with a reach of (patch - 1) * largest dilation + 1 values,
    ``(length - reach) // stride + 1``. With ``same`` every ``stride``-th value has one: ``ceil(length / stride)``.
    """
    return np.maximum((lengths - _reach(patch, dilations, pad)) // stride + 1, 0)


def windows(
    x: np.ndarray,
    lengths: np.ndarray,
    patch: int,
    stride: int,
    first_row: int = 0,
    *,
    dilations: tuple[int, ...] = (1,),
    pad: Pad = "valid",
) -> tuple[np.ndarray, np.ndarray]:
    """Cut sequences into windows of ``patch`` values every ``stride``, each with all its channels one token.

    The token at position t holds for each dilation d the values x[t + (j - (patch - 1) // 2) d], j from 0 to patch - 1.
    Positions are 0, stride, 2 stride ... with ``pad="same"``, where values outside the row are zeros; without padding
    they begin where the whole window fits. Tokens that have no position in their row are zeros.

    ``x`` is (rows, tokens, channels), ``lengths`` (rows,) the real tokens of each, and ``first_row`` the row number of
    ``x[0]``, for messages; what stands behind a row's length is never used. The tokens are (rows, windows, dilations *
    patch * channels), the channels fastest; their numbers (rows,) are of int32.

    Raises
    ------
    InputError
        Naming a row that is shorter than a window.
    """
    counts = window_counts(lengths, patch, stride, dilations, pad).astype(np.int32)
    if not counts.all():
        row, reach = int(np.argmin(counts)), _reach(patch, dilations, pad)
        raise InputError(
            f"row {first_row + row} has {lengths[row]} values, less than a window of {reach}; take a smaller patch"
        )
    longest = int(window_counts(np.array(x.shape[1]), patch, stride, dilations, pad))
    offsets = np.array(_offsets(patch, dilations, pad))
    index = np.arange(longest)[:, None] * stride + offsets
    before, behind = max(0, -offsets.min()), max(0, index.max() + 1 - x.shape[1])
    inside = np.arange(x.shape[1]) < lengths[:, None]
    x = np.pad(np.where(inside[:, :, None], x, np.zeros((), x.dtype)), ((0, 0), (before, behind), (0, 0)))
    tokens = x[:, index + before].reshape(len(x), longest, -1)
    tokens[np.arange(longest) >= counts[:, None]] = 0
    return tokens, counts


def windows_torch(
    x: Tensor, lengths: Tensor, patch: int, stride: int, dilations: tuple[int, ...] = (1,), pad: Pad = "valid"
) -> tuple[Tensor, Tensor]:
    """Return what `windows` does of tensors, in operations that ``torch.export`` can trace; no row may be too short."""
    import torch

    reach = _reach(patch, dilations, pad)
    longest, counts = (x.shape[1] - reach) // stride + 1, (lengths - reach) // stride + 1
    offsets = _offsets(patch, dilations, pad)
    before, behind = max(0, -min(offsets)), max(0, *offsets)
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    x = torch.nn.functional.pad(x.masked_fill(~inside[:, :, None], 0), (0, 0, before, behind))
    steps = torch.arange(longest, device=x.device)
    tokens = x[:, steps[:, None] * stride + torch.tensor(offsets, device=x.device) + before].flatten(2)
    return tokens.masked_fill((steps >= counts[:, None])[:, :, None], 0), counts


def _reach(patch: int, dilations: tuple[int, ...], pad: Pad) -> int:
    """Return how many values of a row the longest window needs."""
    return 1 if pad == "same" else (patch - 1) * max(dilations) + 1


def _offsets(patch: int, dilations: tuple[int, ...], pad: Pad) -> list[int]:
    """Return where the values of a token lie, from ``stride`` times its number."""
    middle = (patch - 1) // 2
    begin = 0 if pad == "same" else middle * max(dilations)
    return [begin + (value - middle) * dilation for dilation in dilations for value in range(patch)]
