"""The frozen pretrained transformer (FPT) of Lu et al. 2021, section 2.2: input layer, backbone and output."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones import Backbone
from reservoir.column import Column
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.native import NativeInput
from reservoir.pooling import Last, find_pooling
from reservoir.random import generator
from reservoir.tasks.task import Task, Tokens, Vectors

GAIN = 1.41  # of orthogonal input and output layers, as published (about the square root of 2)


class InputLayer(nn.Module):
    """The fixed map from tokens to the backbone's width (Lu et al. 2021, appendix).

    Vectors are multiplied by a matrix with orthogonal columns of norm ``gain``, or by ``gain`` times
    ``weights`` (width, dim). Symbols get Gaussian embeddings of standard deviation ``gain / 1.41``.
    """

    special = 0, 0  # it adds no special tokens before and after those of the data

    def __init__(
        self,
        form: Vectors | Tokens,
        width: int,
        seed: int = 0,
        gain: float = GAIN,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        vectors = isinstance(form, Vectors)
        size = form.dim if vectors else form.vocabulary
        self.map: nn.Module = nn.Linear(size, width) if vectors else nn.Embedding(size, width)
        self.dropout: nn.Module = nn.Dropout(0.0)  # after vectors, not after symbols, as published
        if weights is not None:
            _set(self.map, gain * weights)
            return
        # The same draw for both forms, so that a seed means one matrix.
        normal = generator(seed, "input").standard_normal((max(size, width), min(size, width)))
        if isinstance(form, Tokens):
            _set(self.map, normal.reshape(size, width) * (gain / GAIN))
            self.dropout = nn.Identity()
        else:
            q, r = np.linalg.qr(normal)
            q = q * np.sign(np.diag(r))  # a uniform draw, the same for every LAPACK
            _set(self.map, gain * (q if size <= width else q.T))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) floats or (batch, tokens) integers to (batch, tokens, width)."""
        return self.dropout(self.map(x))


def kernels(width: int, seed: int, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return random kernels (width, dilations * patch * forms * channels) of norm 1, an input layer for windows.

    As in ROCKET (Dempster et al. 2020), the Gaussian weights of a unit sum to zero over the taps of
    one dilation and one of the channels' `row_forms`. Units cycle through the dilations, then through
    the forms.
    """
    dilations, patch, forms, _ = shape
    weights = generator(seed, "input").standard_normal((width, *shape))
    if patch > 1:  # a single tap would become zero
        weights -= weights.mean(axis=2, keepdims=True)
    # Each unit keeps the weights of its own dilation and form, and has zeros elsewhere.
    unit = np.arange(width)
    mask = np.zeros((width, dilations, 1, forms, 1))
    mask[unit, unit % dilations, 0, unit // dilations % forms] = 1
    weights = (weights * mask).reshape(width, -1)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


class FPT(nn.Module):
    """Input layer, backbone and output, over right-padded sequences.

    With ``output_init="orthogonal"``, the output starts with rows of norm 1.41 and zero biases; with
    ``"linear"``, as in torch's `Linear` and the authors' code (rows of norm 0.58).
    """

    def __init__(
        self,
        task: Task,
        backbone: Backbone,
        inputs: InputLayer | NativeInput | None = None,
        seed: int = 0,
        output_init: str = "orthogonal",
    ) -> None:
        super().__init__()
        backbone.check_length(task.max_tokens, f"task {task.name!r}: ")
        self.task = task
        self.inputs = inputs or InputLayer(task.form, backbone.width, seed)
        self.backbone = backbone
        self.output = nn.Linear(backbone.width, task.outputs * max(task.classes, 1))
        if output_init == "linear":
            bound, (outputs, width) = backbone.width**-0.5, self.output.weight.shape
            weight = generator(seed, "output.weight").uniform(-bound, bound, (outputs, width))
            _set(self.output, weight, generator(seed, "output.bias").uniform(-bound, bound, outputs))
        else:
            nn.init.orthogonal_(self.output.weight, GAIN, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits (batch, readout_tokens, outputs, max(classes, 1)) of right-padded sequences, float32."""
        hidden = self.backbone(self.inputs(x), lengths, self.task.readout_tokens)
        return self.logits(Last().of(HiddenStates(hidden, lengths, self.task.readout_tokens)))

    def logits(self, pooled: Tensor) -> Tensor:
        """Return the logits of pooled hidden states (batch, readout_tokens, width), shaped as in `forward`."""
        return self.output(pooled).unflatten(-1, (self.task.outputs, max(self.task.classes, 1)))

    @torch.inference_mode()
    def features(self, x: Tensor, lengths: Tensor, columns: Sequence[Column]) -> dict[Column, Tensor]:
        """Return pooled hidden states (batch, kept tokens, kept width) by column, from the needed layers alone."""
        pooled: dict[Column, Tensor] = {}
        of_layer: dict[str, list[Column]] = {}
        for column in columns:
            of_layer.setdefault(column.layer, []).append(column)

        # A layer is pooled inside its hook, so that the hidden states of only one layer are in memory.
        def record(layer: str, hidden: Tensor) -> None:
            with torch.autocast(x.device.type, enabled=False):  # autocast would round means
                sizes = self.task.readout_tokens, self.task.max_tokens
                states = HiddenStates(hidden, lengths, *sizes, self.inputs.special)
                for column in of_layer[layer]:
                    pooled[column] = find_pooling(column.pooling).of(states)

        with self.backbone.recording({layer: partial(record, layer) for layer in of_layer}):
            self.backbone(self.inputs(x), lengths)
        return pooled


@torch.no_grad()
def _set(layer: nn.Module, weight: np.ndarray, bias: np.ndarray | float = 0.0) -> None:
    for name, parameter in layer.named_parameters():
        parameter.copy_(torch.from_numpy(weight) if name == "weight" else torch.as_tensor(bias))
