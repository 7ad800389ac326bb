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
from reservoir.inputs.native import PixelReader, TextReader
from reservoir.loaded_model import LoadedModel
from reservoir.pooling import find_pooling
from reservoir.raw_input import raw_pooling
from reservoir.readouts.linear import LinearReadout, check_width
from reservoir.tasks.task import Scaling, Task, Tokens

MAX_STRETCHES = 32  # of a sequence that are hidden one by one
DRAWS = 4  # random replacements of the symbols of a stretch


class Branch(nn.Module):
    """Columns of one reservoir on the CPU: windows, input layer, blocks up to the deepest wanted layer, poolings.

    It takes the FPT of the model, whose output layer is replaced: the readout of the `SequenceModel` stands for it.
    """

    def __init__(self, model: LoadedModel, columns: Sequence[Column]) -> None:
        super().__init__()
        self.fpt = model.fpt
        # The declared type is that of the output layer; nothing here reads its weights.
        self.fpt.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        reads_chats = isinstance(model.reader, TextReader) and model.reader.template is not None
        # Masks come with the text of a row. All tokens (no mask) follow from the length, and so do those of words, but
        # not in chats, whose template prints special tokens anywhere.
        masks_of_lengths = ("",) if reads_chats else ("", "words")
        for column in columns:
            if find_pooling(column.pooling).mask not in masks_of_lengths:
                raise InputError(
                    f"column {column}: the module reads token IDs alone, without the mask of {column.pooling}",
                    "fit --columns of other poolings",
                )
        self.shapes = column_shapes(self.fpt.task, self.fpt.backbone.width, columns)
        self.windows, self.convolution = model.windows, model.convolution
        self.reader = model.reader

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features (samples, width) of each column, from scaled sequences and their lengths.

        Each row is a sample, or each token of a row if tokens have labels.
        """
        # Rows become tokens of the backbone: responses of kernels or patches, if the model has them, or windows.
        make_tokens = self.convolution or self.windows.of_tensors
        x, lengths = make_tokens(x, lengths)
        pooled = self.fpt.features(x, lengths, list(self.shapes))
        features: list[Tensor] = []
        for column, (row_tokens, _) in self.shapes.items():
            values = pooled[column]  # (batch, tokens, width)
            if find_pooling(column.pooling).per_token:  # padded to the longest sequence of the task
                missing_tokens = row_tokens - values.shape[1]
                values = nn.functional.pad(values, (0, 0, 0, missing_tokens))
            # Tokens are samples if a row keeps several, as many as the task has labels for it.
            are_tokens_samples = 1 < row_tokens == self.fpt.task.readout_tokens
            features.append(values.flatten(0, 1) if are_tokens_samples else values.flatten(1))
        return features


class RawInput(nn.Module):
    """The raw input of a task as a branch: the same values as `raw_features` in operations `torch.export` can trace."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.form, self.longest = task.form, task.max_tokens
        self.pooling = raw_pooling(task)

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features of scaled vectors or of symbols, one tensor (rows, width) of float32 in a list."""
        values = one_hot(x.long(), self.form.vocabulary) if isinstance(self.form, Tokens) else x
        # Poolings read no padding, so that of ``values`` need not be zero.
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

    # Buffers, which type checkers do not see where they are registered.
    offset: Tensor  # (dim,), and so is ``scale``; both only with a scaling
    scale: Tensor
    weight: Tensor  # float64 (features, logits)
    bias: Tensor  # float64 (logits,)

    def __init__(
        self,
        task: Task,
        scaling: Scaling | None,
        branches: Sequence[Branch | RawInput],
        readout: LinearReadout,
    ) -> None:
        super().__init__()
        self.has_scaling = scaling is not None
        # Missing values are NaN where they are masked: of the stored sequences of other data, none is.
        self.masks_missing = task.parameters.get("missing") == "mask"
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

    @property
    def shortest(self) -> int:
        """Number of values of the shortest sequence that has a window for every branch."""
        return max(
            (branch.windows.reach for branch in self.branches if isinstance(branch, Branch)), default=1
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of stored, unscaled, right-padded sequences (batch, tokens, ...) with int64 ``lengths``.

        The logits are float32 (batch, readout_tokens, outputs, classes), and their softmax gives the
        probabilities of `predict`. For regression, return the predictions (batch, readout_tokens,
        outputs).
        """
        if self.has_scaling:
            x = (x - self.offset) * self.scale
        if self.masks_missing:  # as `Scaling` does
            x = torch.where(x.isnan(), 0.0, x)
        features = torch.cat([values for branch in self.branches for values in branch(x, lengths)], dim=1)
        check_width(len(self.weight), features.shape[1])
        # Channels of a frozen transformer may have a mean of 3000 and a deviation below one. Sums of
        # their products in float32 would lose all the digits in which two rows differ.
        logits = (features.double() @ self.weight + self.bias).float()
        return logits.reshape(-1, *self.logits_shape)  # tokens that are samples become those of their row


def _logit_weights(readout: LinearReadout) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (features, logits) and intercepts (logits,) of a readout's logits, or of its predictions."""
    if not readout.targets.classes:  # a regression, whose scores are the predictions
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
        """Return the logits of token numbers (batch, tokens); the mask is 1 for real tokens, 0 for padding."""
        lengths = attention_mask.sum(1)
        return self.model(input_ids, lengths)


class PixelsModel(nn.Module):
    """Module that maps the output of an image processor to logits."""

    def __init__(self, model: SequenceModel, reader: PixelReader) -> None:
        super().__init__()
        self.model = model
        self.patch, self.tokens = reader.patch, reader.max_tokens
        self.height, self.width = reader.height, reader.width

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of pixels (batch, channels, height, width)."""
        # Cut both sides into patches: (batch, channels, patch rows, patch height, patch columns, patch width).
        image = pixel_values[:, :, : self.height, : self.width]
        grid = image.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        # Move the values of a patch to the end, channels fastest, and join them: (batch, patches, values).
        patches = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        lengths = torch.full_like(patches[:, 0, 0], self.tokens, dtype=torch.int64)
        return self.model(patches, lengths)


def occlusion(
    model: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    lengths: Tensor,
    symbols: int = 0,
    means: Tensor | None = None,
) -> Tensor:
    """Return by how much each logit decreases when the input around a position is hidden, (rows, positions, logits).

    Parameters
    ----------
    model : callable
        Returns the logits of sequences and lengths, such as a `SequenceModel`.
    x : Tensor
        Sequences (rows, positions) of symbols or (rows, positions, channels) of values, right-padded.
    lengths : Tensor
        The real positions of each sequence, (rows,) of int64.
    symbols : int, default 0
        The size of the vocabulary; 0 if sequences are values.
    means : Tensor, optional
        What replaces the values of each position, (positions, channels); by default the mean of the row.
    """
    draw = torch.Generator().manual_seed(0)
    effects: list[Tensor] = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        # A row is divided into stretches of nearly equal length, which are hidden one at a time.
        bounds = torch.linspace(0, length, min(length, MAX_STRETCHES) + 1).long()
        copies = [row]
        for begin, end in pairwise(bounds.tolist()):
            copies += _hidden_copies(row, length, slice(begin, end), symbols, means, draw)
        # One forward pass of the row and of its changed copies. The decrease of each stretch, averaged over the
        # draws, is divided evenly among the positions of the stretch.
        logits = model(torch.stack(copies), lengths.new_full((len(copies),), length)).flatten(1).double()
        stretches = len(bounds) - 1
        drops = (logits[0] - logits[1:]).reshape(stretches, -1, logits.shape[1]).mean(1)
        sizes = bounds.diff()
        effect = torch.repeat_interleave(drops / sizes[:, None], sizes, dim=0)
        effects.append(torch.nn.functional.pad(effect, (0, 0, 0, x.shape[1] - length)))
    return torch.stack(effects)


def _hidden_copies(
    row: Tensor,
    length: int,
    stretch: slice,
    symbols: int,
    means: Tensor | None,
    draw: torch.Generator,
) -> list[Tensor]:
    """Return copies of a row in which other values replace a stretch.

    Symbols are replaced by random ones, in several draws; values, in one copy, by the ``means`` of their positions
    (positions, channels), or without these by the mean of each channel over the row.
    ``length`` is the number of real positions of the row, and ``symbols`` the size of the vocabulary, 0 for values.
    """
    copies: list[Tensor] = []
    for _ in range(DRAWS if symbols else 1):  # a mean is the same in every draw
        if symbols:
            replacement = torch.randint(symbols, (stretch.stop - stretch.start,), generator=draw)
        elif means is not None:
            replacement = means[stretch]
        else:
            replacement = row[:length].nanmean(0)  # NaN stands for a missing value
        copy = row.clone()
        copy[stretch] = replacement.to(row.dtype)
        copies.append(copy)
    return copies
