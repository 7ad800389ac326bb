"""A torch module that maps stored sequences to the logits of ``predict``, and the effect of hiding parts of them."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from reservoir.column import Column, column_shapes
from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.native import PixelReader
from reservoir.loaded_model import LoadedModel
from reservoir.pooling import find_pooling
from reservoir.raw_input import raw_pooling
from reservoir.readouts.linear import LinearReadout, check_width
from reservoir.tasks.task import Scaling, Task, Tokens

PIECES = 32  # parts of a sequence that are hidden one by one
DRAWS = 4  # random replacements of hidden symbols


class Branch(nn.Module):
    """Columns of one reservoir on the CPU: windows, input layer, blocks up to the deepest wanted layer, poolings."""

    def __init__(self, model: LoadedModel, columns: Sequence[Column]) -> None:
        super().__init__()
        self.fpt = model.fpt
        self.fpt.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        for column in columns:
            if find_pooling(column.pooling).mask not in ("", "words"):
                raise InputError(
                    f"column {column}: the module reads token IDs alone, without the mask of {column.pooling}",
                    "fit --columns of other poolings",
                )
        self.shapes = column_shapes(self.fpt.task, self.fpt.backbone.width, columns)
        self.windows, self.convolution = model.windows, model.convolution
        self.reader = model.reader

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the samples (samples, width) of each column, from scaled sequences and their lengths."""
        # Rows become tokens of the backbone: responses of kernels or patches, if the model has them, or windows.
        make_tokens = self.convolution or self.windows.of_tensors
        x, lengths = make_tokens(x, lengths)
        pooled = self.fpt.features(x, lengths, list(self.shapes))
        samples: list[Tensor] = []
        for column, (tokens, _) in self.shapes.items():
            values = pooled[column]
            if find_pooling(column.pooling).per_token:  # padded to the longest sequence of the task
                values = nn.functional.pad(values, (0, 0, 0, tokens - values.shape[1]))
            # If the column has as many tokens as the task has labels for each row, each token is a sample.
            sample_per_token = 1 < tokens == self.fpt.task.readout_tokens
            samples.append(values.flatten(0, 1) if sample_per_token else values.flatten(1))
        return samples


class RawInput(nn.Module):
    """The raw input of a task as a branch: `raw_features`, which `torch.export` can trace."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.form, self.longest = task.form, task.max_tokens
        self.pooling = raw_pooling(task)

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features of scaled vectors or of symbols, (rows, width) of float32."""
        values = one_hot(x.long(), self.form.vocabulary) if isinstance(self.form, Tokens) else x
        # Poolings read no padding.
        states = HiddenStates(values, lengths, max_tokens=self.longest)
        return [self.pooling.of(states).flatten(1)]


class SequenceModel(nn.Module):
    """Module that maps stored sequences to logits, by scaling, frozen maps and a readout.

    Parameters
    ----------
    task : Task
        The task of the readout, whose labels give the shape of the logits.
    scaling : Scaling or None
        Of values; None if the sequences are read as they are stored.
    branches : sequence of Branch or RawInput
        The maps whose columns the readout reads, in this order.
    readout : LinearReadout
        The fitted readout.
    """

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
        self.has_scaling = scaling is not None
        if scaling is not None:
            self.register_buffer("offset", torch.from_numpy(np.array(scaling.offset, np.float32)))
            self.register_buffer("scale", torch.from_numpy(np.array(scaling.scale, np.float32)))
        self.branches = nn.ModuleList(branches)
        # All branches read the same sequences, so the first one's reader, if it has one, is that of all.
        self.reader = branches[0].reader if isinstance(branches[0], Branch) else None
        weight, bias = _logit_weights(readout)
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias))
        classes = (task.classes,) if task.classes else ()  # a regression has one value instead of classes
        self.logits_shape = (task.readout_tokens, task.outputs, *classes)
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of stored, unscaled, right-padded sequences (batch, tokens, ...) with int64 ``lengths``.

        The logits are float32 (batch, readout_tokens, outputs, classes), and their softmax gives the
        probabilities of `predict`. For regression, return the predictions (batch, readout_tokens,
        outputs).
        """
        if self.has_scaling:
            x = (x - self.offset) * self.scale
        features = torch.cat([values for branch in self.branches for values in branch(x, lengths)], dim=1)
        check_width(len(self.weight), features.shape[1])
        # Channels of a frozen transformer may have a mean of 3000 and a deviation below one. Sums of
        # their products in float32 would lose all the digits in which two rows differ.
        return (features.double() @ self.weight + self.bias).float().reshape(-1, *self.logits_shape)


def _logit_weights(readout: LinearReadout) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (features, logits) and intercepts (logits,) of a readout's logits, or of its predictions."""
    if not readout.targets.classes:
        return readout.coef, readout.intercept.reshape(-1)
    # The coding of the classes and the temperature are linear, so they become a part of the weights.
    weight = readout.targets.logits(readout.coef)
    bias = readout.targets.logits(readout.intercept[None])
    return weight.reshape(len(weight), -1) / readout.temperature, bias.reshape(-1) / readout.temperature


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
        self.model = model
        self.patch, self.tokens = reader.patch, reader.max_tokens
        self.height, self.width = reader.height, reader.width

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of pixels (batch, channels, height, width)."""
        # Cut both sides into patches: (batch, patch rows, patch columns, values), and the patches one after the other.
        grid = pixel_values[:, :, : self.height, : self.width]
        grid = grid.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        patches = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.model(patches, torch.full_like(patches[:, 0, 0], self.tokens, dtype=torch.int64))


def occlusion(
    model: Callable[[Tensor, Tensor], Tensor], x: Tensor, lengths: Tensor, symbols: int = 0
) -> Tensor:
    """Return the decrease of the logits when a stretch of the input is hidden, per position (rows, positions, k)."""
    draw = torch.Generator().manual_seed(0)
    effects: list[Tensor] = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        bounds = torch.linspace(0, length, min(length, PIECES) + 1).long()
        hidden = [row]
        for begin, end in pairwise(bounds.tolist()):
            for _ in range(DRAWS if symbols else 1):
                # Random symbols, or the mean of each channel in the row, replace what is hidden.
                changed = row.clone()
                filler = (
                    torch.randint(symbols, (end - begin,), generator=draw)
                    if symbols
                    else row[:length].mean(0)
                )
                changed[begin:end] = filler.to(row.dtype)
                hidden.append(changed)
        # One forward pass of the row and of its changed copies. The decrease of each stretch, averaged over the
        # draws, is divided evenly among the positions of the stretch.
        logits = model(torch.stack(hidden), lengths.new_full((len(hidden),), length)).flatten(1).double()
        drops = (logits[0] - logits[1:]).reshape(len(bounds) - 1, -1, logits.shape[1]).mean(1)
        sizes = bounds.diff()
        spread = torch.repeat_interleave(drops / sizes[:, None], sizes, dim=0)
        effects.append(torch.nn.functional.pad(spread, (0, 0, 0, x.shape[1] - length)))
    return torch.stack(effects)
