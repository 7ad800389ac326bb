"""A torch module from stored sequences to logits: the same computation as ``predict``, on tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.features import column_shapes
from reservoir.pooling import parse_column
from reservoir.raw_input import RawInput
from reservoir.readouts.linear import LinearReadout
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Scaling, Task


class Branch(nn.Module):
    """Columns of one reservoir on the CPU: windows, input layer, blocks up to the deepest wanted layer, poolings."""

    def __init__(self, model: LoadedModel, columns: Sequence[str]) -> None:
        super().__init__()
        self.fpt = model.fpt
        self.fpt.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        self.columns = list(columns)
        self.shapes = column_shapes(self.fpt.task, self.fpt.backbone.width, columns)
        self.windows = model.windows
        # One window around every value gives as many tokens as values.
        kept = self.windows.pad == "same" and self.windows.stride == 1
        self.windowed = not (self.windows.plain or kept)

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the samples (samples, width) of each column, from scaled sequences and their lengths."""
        x, lengths = self.windows.torch(x, lengths)
        pooled = self.fpt.features(x, lengths, self.columns)
        return [self._samples(column, pooled[column]) for column in self.columns]

    def cut(self) -> object:
        """Return a context in which the blocks above the deepest wanted layer are removed."""
        return self.fpt.backbone.recording({parse_column(column)[0]: lambda _hidden: None for column in self.columns})

    def _samples(self, column: str, values: Tensor) -> Tensor:
        """Pad to the longest sequence and reshape as `reservoir.readouts.samples` does."""
        tokens, _ = self.shapes[column]
        if column.endswith("/all"):
            values = nn.functional.pad(values, (0, 0, 0, tokens - values.shape[1]))
        return values.flatten(0, 1) if 1 < tokens == self.fpt.task.readout_tokens else values.flatten(1)


class SequenceModel(nn.Module):
    """From stored sequences to logits: scaling, frozen maps, readout.

    The product with the readout's weights runs in float64: channels of a frozen transformer may have a mean of 3000
    and a deviation below one, and float32 sums of such products lose all digits in which two rows differ.
    """

    offset: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self, task: Task, scaling: Scaling | None, branches: Sequence[Branch | RawInput], readout: LinearReadout
    ) -> None:
        super().__init__()
        self.scaled = scaling is not None
        if scaling is not None:
            self.register_buffer("offset", torch.from_numpy(np.array(scaling.offset, np.float32)))
            self.register_buffer("scale", torch.from_numpy(np.array(scaling.scale, np.float32)))
        self.branches = nn.ModuleList(branches)
        weight, bias = logit_weights(readout)
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias))
        self.shape = (task.readout_tokens, task.outputs, *([task.classes] if task.classes else []))
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of right-padded sequences as stored (batch, tokens, ...), not scaled, of int64 ``lengths``.

        They are float32, (batch, readout_tokens, outputs, classes), and their softmax gives the probabilities of
        `predict`; for regression the predictions, (batch, readout_tokens, outputs).
        """
        if self.scaled:
            x = (x - self.offset) * self.scale
        features = torch.cat([values for branch in self.branches for values in branch(x, lengths)], dim=1)
        return (features.double() @ self.weight + self.bias).float().reshape(-1, *self.shape)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Remove the blocks that no column needs inside the context."""
        with ExitStack() as stack:
            for branch in self.branches:
                if isinstance(branch, Branch):
                    stack.enter_context(branch.cut())  # pyright: ignore
            yield


def logit_weights(readout: LinearReadout) -> tuple[np.ndarray, np.ndarray]:
    """Return a readout as one linear map to calibrated logits: weights (w, k) and bias (k,), float64.

    k is outputs * classes, the classes fastest; for regression the number of outputs. The codings of `Targets` are
    linear in the scores, so that they and the temperature go into the weights.
    """
    if not readout.targets.classes:
        return readout.coef, readout.intercept
    weight = readout.targets.logits(readout.coef) / readout.temperature
    bias = readout.targets.logits(readout.intercept[None]) / readout.temperature
    return weight.reshape(len(weight), -1), bias.reshape(-1)
