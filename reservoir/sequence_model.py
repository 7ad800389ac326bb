"""A torch module that maps stored sequences to the logits of ``predict``, and the contribution of each position."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.features import column_shapes
from reservoir.inputs.native import PixelReader
from reservoir.pooling import RawInput, parse_column, pooled_shape, token_weights
from reservoir.readouts.linear import LinearReadout, check_width
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Scaling, Task, Tokens

PIECES = 32  # parts of a sequence that are hidden one by one
DRAWS = 4  # random replacements of hidden symbols


class Branch(nn.Module):
    """Columns of one reservoir on the CPU: windows, input layer, blocks up to the deepest wanted layer, poolings."""

    def __init__(self, model: LoadedModel, columns: Sequence[str]) -> None:
        super().__init__()
        self.fpt = model.fpt
        self.fpt.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        self.shapes = column_shapes(self.fpt.task, self.fpt.backbone.width, columns)
        self.windows = model.windows
        self.reader = model.reader

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the samples (samples, width) of each column, from scaled sequences and their lengths."""
        x, lengths = self.windows.torch(x, lengths)
        pooled, found = self.fpt.features(x, lengths, list(self.shapes)), []
        for column, (tokens, _) in self.shapes.items():
            values = pooled[column]
            if column.endswith("/all"):  # padded to the longest sequence of the task
                values = nn.functional.pad(values, (0, 0, 0, tokens - values.shape[1]))
            per_token = 1 < tokens == self.fpt.task.readout_tokens
            found.append(values.flatten(0, 1) if per_token else values.flatten(1))
        return found


class SequenceModel(nn.Module):
    """Module that maps stored sequences to logits, by scaling, frozen maps and a readout."""

    offset: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        task: Task,
        scaling: Scaling | None,
        branches: Sequence[Branch | RawInput],
        readout: LinearReadout,
    ) -> None:
        super().__init__()
        self.scaled = scaling is not None
        for name in ("offset", "scale") if scaling else ():
            self.register_buffer(name, torch.from_numpy(np.array(getattr(scaling, name), np.float32)))
        self.branches = nn.ModuleList(branches)
        self.reader = branches[0].reader if isinstance(branches[0], Branch) else None
        weight, bias = readout.coef, readout.intercept
        if readout.targets.classes:  # coding and temperature are linear
            weight, bias = readout.targets.logits(weight), readout.targets.logits(bias[None])
            weight, bias = (part.reshape(len(part), -1) / readout.temperature for part in (weight, bias))
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias.reshape(-1)))
        self.shape = (task.readout_tokens, task.outputs, *([task.classes] if task.classes else []))
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of stored, unscaled, right-padded sequences (batch, tokens, ...) with int64 ``lengths``.

        The logits are float32 (batch, readout_tokens, outputs, classes), and their softmax gives the
        probabilities of `predict`. For regression, return the predictions (batch, readout_tokens,
        outputs).
        """
        if self.scaled:
            x = (x - self.offset) * self.scale
        features = torch.cat([values for branch in self.branches for values in branch(x, lengths)], dim=1)
        check_width(len(self.weight), features.shape[1])
        # Channels of a frozen transformer may have a mean of 3000 and a deviation below one. Sums of
        # their products in float32 would lose all the digits in which two rows differ.
        return (features.double() @ self.weight + self.bias).float().reshape(-1, *self.shape)


class TokensModel(nn.Module):
    """Module that maps the output of a tokenizer, padded on the right, to logits."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of token numbers (batch, tokens); the mask is 1 for real tokens."""
        return self.model(input_ids, attention_mask.sum(1))


class PixelsModel(nn.Module):
    """Module that maps the output of an image processor to logits."""

    def __init__(self, model: SequenceModel, reader: PixelReader) -> None:
        super().__init__()
        self.model, self.patch, self.tokens = model, reader.patch, reader.max_tokens
        self.height, self.width = reader.height, reader.width

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of pixels (batch, channels, height, width)."""
        grid = pixel_values[:, :, : self.height, : self.width]
        grid = grid.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        patches = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.model(patches, torch.full_like(patches[:, 0, 0], self.tokens, dtype=torch.int64))


def contributions(model: SequenceModel, x: Tensor, lengths: Tensor) -> Tensor:
    """Return the contribution of each position to the logits relative to a mean token, (rows, positions, k), float64.

    If a pooling is a weighted sum over tokens, h = sum_t p_t h_t, so are the logits of a linear
    readout: W h + b = (b + sum_t p_t W m) + sum_t p_t W (h_t - m), with m the mean token of the
    explained rows. Other poolings, such as quantiles and extremes, contribute nothing here.
    """
    scaled = (x - model.offset) * model.scale if model.scaled else x
    found = torch.zeros(*x.shape[:2], model.weight.shape[1], dtype=torch.float64)
    weights = model.weight
    for branch in model.branches:
        if isinstance(branch, RawInput):
            values = branch.values(scaled, lengths)
            _, width = pooled_shape(branch.pooling, values.shape[2], branch.longest, 1)
            weight, weights = weights.tensor_split([width])
            found += _of_tokens(values, lengths, branch.pooling, weight)
            continue
        assert isinstance(branch, Branch)
        windows = branch.windows
        read, counts = windows.torch(scaled, lengths)
        for column, (tokens, width) in branch.shapes.items():
            weight, weights = weights.tensor_split([tokens * width])
            layer, pooling = parse_column(column)
            hidden = branch.fpt.features(read, counts, [f"{layer}/all"])[f"{layer}/all"]
            added = _of_tokens(hidden, counts, pooling, weight)
            if isinstance(branch.fpt.task.form, Tokens) or windows.plain:
                found += added
                continue
            # The contribution of a window is spread over the values from its own position to the next window's.
            stride = windows.stride
            begin = 0 if windows.pad == "same" else (windows.reach - stride) // 2
            position = (torch.arange(added.shape[1] * stride) + max(begin, 0)).clamp(max=x.shape[1] - 1)
            found.index_add_(1, position, (added / stride).repeat_interleave(stride, dim=1))
    return found


def occlusion(
    model: Callable[[Tensor, Tensor], Tensor], x: Tensor, lengths: Tensor, symbols: int = 0
) -> Tensor:
    """Return the decrease of the logits when a stretch of the input is hidden, per position (rows, positions, k)."""
    draw, falls = torch.Generator().manual_seed(0), []
    for row, length in zip(x, lengths.tolist(), strict=True):
        bounds = torch.linspace(0, length, min(length, PIECES) + 1).long()
        hidden = [row]
        for begin, end in pairwise(bounds.tolist()):
            for _ in range(DRAWS if symbols else 1):
                # Random symbols, or the mean of each channel in the row, replace what is hidden.
                other = row.clone()
                drawn = (
                    torch.randint(symbols, (end - begin,), generator=draw)
                    if symbols
                    else row[:length].mean(0)
                )
                other[begin:end] = drawn.to(row.dtype)
                hidden.append(other)
        logits = model(torch.stack(hidden), lengths.new_full((len(hidden),), length)).flatten(1).double()
        drops = (logits[0] - logits[1:]).reshape(len(bounds) - 1, -1, logits.shape[1]).mean(1)
        sizes = bounds.diff()
        spread = torch.repeat_interleave(drops / sizes[:, None], sizes, dim=0)
        falls.append(torch.nn.functional.pad(spread, (0, 0, 0, x.shape[1] - length)))
    return torch.stack(falls)


def _of_tokens(hidden: Tensor, lengths: Tensor, pooling: str, weight: Tensor) -> Tensor:
    """Return the contribution of each token (rows, tokens, width) under a pooling; 0 if the pooling is not a sum."""
    rows, tokens, width = hidden.shape
    weight = weight.double().reshape(-1, width, weight.shape[1])
    real = torch.arange(tokens) < lengths[:, None]
    hidden = hidden.double().masked_fill(~real[:, :, None], 0.0)
    hidden = (hidden - hidden.sum((0, 1)) / real.sum()).masked_fill(~real[:, :, None], 0.0)
    if pooling in ("tokens", "all"):
        return torch.einsum("rtw,twk->rtk", hidden, weight[:tokens])
    shares = token_weights(pooling, lengths, tokens)
    if shares is None:
        return hidden.new_zeros(rows, tokens, weight.shape[2])
    return torch.einsum("rst,rtw,swk->rtk", shares.double(), hidden, weight)
