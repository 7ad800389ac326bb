"""Windows of a sequence as tokens, at one or several dilations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Division of a sequence into tokens: windows of ``patch`` values of all channels, with a stride.

    The token at position t holds for each dilation d the values x[t + (j - (patch - 1) // 2) d], j
    from 0 to patch - 1. With ``pad="same"`` the positions are 0, stride, 2 stride ... and values
    outside the row are zeros; with ``valid`` the first position is the first where the whole window
    fits.
    """

    patch: int = 1  # values of a window
    stride: int = 1  # values from one window to the next
    dilations: tuple[int, ...] = (1,)  # distances between the values of a window, in values
    pad: str = "valid"  # or "same"
    normalise: str = "channel"  # see `row_forms`
    symbols: int = 0  # channels of one-hot encoded symbols; 0 for floats

    def __post_init__(self) -> None:
        """Convert the dilations to a tuple."""
        object.__setattr__(self, "dilations", tuple(self.dilations))  # JSON has a list

    @property
    def plain(self) -> bool:
        """Whether each value is a token, unchanged."""
        return self == Windows(symbols=self.symbols)

    @property
    def forms(self) -> int:
        """Number of concatenated forms of each channel (see `row_forms`)."""
        return {"both": 2, "differences": 3}.get(self.normalise, 1)

    @property
    def read_share(self) -> float:
        """The share of a long row's values that are in at least one window, from 0 to 1."""
        # Windows begin at multiples of the stride, so an offset in the window reads all values that are congruent to it
        # modulo the stride. Where the first window begins does not matter.
        middle = (self.patch - 1) // 2
        offsets = [(j - middle) * dilation for dilation in self.dilations for j in range(self.patch)]
        remainders = {offset % self.stride for offset in offsets}
        return len(remainders) / self.stride

    @property
    def reach(self) -> int:
        """Number of values that a row needs for one window of every dilation."""
        if self.pad == "same":  # windows may reach beyond both ends
            return 1
        return (self.patch - 1) * max(self.dilations) + 1

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of tokens of rows of these lengths, int32; 0 for rows that are too short."""
        return np.maximum((lengths - self.reach) // self.stride + 1, 0).astype(np.int32)

    def checked_counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of tokens of rows of these lengths; raise `InputError` if a row is too short."""
        counts = self.counts(lengths)
        if not counts.all():
            row = int(np.argmin(counts))
            raise InputError(
                f"row {row} has {lengths[row]} values, fewer than a window of {self.reach}",
                "reduce patch, or the largest dilation",
            )
        return counts

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens (rows, windows, dilations * patch * channels), channels fastest, and their number per row."""
        if self.plain:
            return x, lengths
        import torch

        counts = self.checked_counts(lengths)
        tokens, _ = self.of_tensors(torch.from_numpy(x), torch.from_numpy(lengths))
        return tokens.numpy(), counts

    def of_tensors(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (rows, windows, dilations * patch * channels) and their number per row, (rows,).

        The operations are those that ``torch.export`` can trace. No row may be shorter than a window.
        """
        if self.plain:
            return x, lengths
        import torch

        if self.symbols:
            x = torch.eye(self.symbols, device=x.device)[x.long()]
        x = row_forms(x, lengths, self.normalise)
        # Tokens of the longest row, and of each row.
        most_windows = (x.shape[1] - self.reach) // self.stride + 1
        counts = (lengths - self.reach) // self.stride + 1
        # Zeros stand in for padding, and for values before and after a row that windows reach.
        zeros_before, zeros_after = self.margins
        is_real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = torch.nn.functional.pad(
            x.masked_fill(~is_real[:, :, None], 0), (0, 0, zeros_before, zeros_after)
        )
        # The offsets of the values of a token, (dilations * patch,). Ranges are made on the device; a tensor from a
        # list would be copied there, which waits for a GPU.
        firsts = [self.offsets_of(dilation)[0] for dilation in self.dilations]
        offsets = torch.cat(
            [
                torch.arange(first, first + self.patch * dilation, dilation, device=x.device)
                for first, dilation in zip(firsts, self.dilations, strict=True)
            ]
        )
        # The positions (windows, dilations * patch) of the values of each token, then the values themselves. Indexing
        # x[:, positions] takes three times as long.
        windows = torch.arange(most_windows, device=x.device)
        positions = windows[:, None] * self.stride + offsets + zeros_before
        tokens = x.index_select(1, positions.flatten()).unflatten(1, positions.shape).flatten(2)
        is_after_last = windows >= counts[:, None]  # (rows, windows)
        return tokens.masked_fill_(is_after_last[:, :, None], 0), counts

    def offsets_of(self, dilation: int) -> list[int]:
        """Return the offset of each value of one dilation in token n from position n * ``stride``, ascending."""
        middle = (self.patch - 1) // 2
        # Token 0 is centred at the first value of a row, or so that its widest window begins there.
        centre = 0 if self.pad == "same" else middle * max(self.dilations)
        return [centre + (value - middle) * dilation for value in range(self.patch)]

    @property
    def margins(self) -> tuple[int, int]:
        """The numbers of zeros to put before and after a row so that no window reaches beyond them."""
        offsets = [offset for dilation in self.dilations for offset in self.offsets_of(dilation)]
        return max(0, -min(offsets)), max(0, *offsets)


def row_forms(x: Tensor, lengths: Tensor, normalise: str) -> Tensor:
    """Return rows (rows, values, channels) in one or several forms, concatenated along the channels.

    ``normalise`` chooses the forms: ``channel`` is the row unchanged, ``series`` each channel with mean 0 and variance
    1 in its row (0 if it is constant), ``both`` these two, and ``differences`` these two and the standardised
    differences between neighbouring values.
    """
    import torch

    if normalise == "channel":
        return x
    is_real = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
    standardised = _standardised(x, lengths, is_real)
    if normalise == "series":
        return standardised
    forms = [x, standardised]
    if normalise == "differences":
        # The value before each value, and before the first one the first itself, whose difference is 0. With the
        # shorter slice x[:, :-1], torch.export would require rows of at least three values.
        previous = torch.cat([x[:, :1], x], dim=1)[:, : x.shape[1]]
        forms.append(_standardised(x - previous, lengths, is_real))
    return torch.cat(forms, dim=2)


def _standardised(x: Tensor, lengths: Tensor, is_real: Tensor) -> Tensor:
    """Return rows whose real values have mean 0 and variance 1; zeros at padding, and for constant channels.

    ``x`` and the result are (rows, values, channels), ``lengths`` (rows,) and ``is_real`` (rows, values, 1).
    """
    import torch

    # Mean and deviation over the real values of a row, for each channel: (rows, 1, channels).
    real_values = x.masked_fill(~is_real, 0)
    count = lengths[:, None, None].to(x.dtype)  # (rows, 1, 1)
    mean = real_values.sum(1, keepdim=True) / count
    centred = (x - mean).masked_fill(~is_real, 0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    # The rounding errors of a constant must not be scaled to variance 1.
    rounding_error = 1e-5 * real_values.abs().amax(1, keepdim=True)
    return torch.where(deviation > rounding_error, centred / deviation, 0.0)
