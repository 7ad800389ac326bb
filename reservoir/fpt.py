"""The one model that extraction and training share: input layer, backbone, output (Lu et al. 2021, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones import Backbone
from reservoir.pooling import parse_column, pool
from reservoir.random import generator
from reservoir.tasks.task import Task, Tokens, Vectors

DEFAULT_GAIN = 1.41


class InputLayer(nn.Module):
    r"""The fixed map from a task's tokens to the backbone's width.

    Vectors go through :math:`h = W x` with orthogonal columns of norm ``gain`` and zero bias; symbols through a table
    of Gaussian embeddings with standard deviation ``gain / 1.41`` (Lu et al. 2021, appendix; the gain is the
    ``input_scaling`` of an echo state network).

    Parameters
    ----------
    form : Vectors or Tokens
        What a token is.
    width : int
        Hidden width of the backbone.
    seed : int, default 0
        Seed of the layer, apart from the backbone's.
    gain : float, default 1.41
        Scale of the layer.
    """

    def __init__(self, form: Vectors | Tokens, width: int, seed: int = 0, gain: float = DEFAULT_GAIN) -> None:
        super().__init__()
        size = form.dim if isinstance(form, Vectors) else form.vocabulary
        normal = generator(seed, "input").standard_normal((max(size, width), min(size, width)))
        if isinstance(form, Tokens):
            table = normal.reshape(size, width) * (gain / DEFAULT_GAIN)
            self.map: nn.Module = nn.Embedding.from_pretrained(torch.from_numpy(table).float(), freeze=False)
            self.dropout: nn.Module = nn.Identity()
        else:
            self.map = nn.Linear(size, width)
            with torch.no_grad():
                self.map.weight.copy_(torch.from_numpy(gain * _orthogonal(normal, size, width)))
                self.map.bias.zero_()
            self.dropout = nn.Dropout(0.0)  # as the authors' code has it: behind vectors, not behind symbols

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) floats or (batch, tokens) integers to (batch, tokens, width)."""
        return self.dropout(self.map(x))


def _orthogonal(normal: np.ndarray, size: int, width: int) -> np.ndarray:
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices, and the same for every LAPACK
    return q if size <= width else q.T


class FPT(nn.Module):
    """Input layer, backbone and output, over right-padded sequences.

    Parameters
    ----------
    task : Task
        Gives the form of the input, the readout tokens, and the outputs.
    backbone : Backbone
        The frozen transformer.
    seed : int, default 0
        Seed of the input layer (and of the output, which extraction does not use).
    gain : float, default 1.41
        Scale of the input layer.

    Raises
    ------
    InputError
        If the task's sequences are longer than the backbone's positions.
    """

    def __init__(self, task: Task, backbone: Backbone, seed: int = 0, gain: float = DEFAULT_GAIN) -> None:
        super().__init__()
        backbone.check_length(task.max_tokens, f"task {task.name!r}: ")
        self.task = task
        self.inputs = InputLayer(task.form, backbone.width, seed, gain)
        self.backbone = backbone
        draw = torch.Generator().manual_seed(seed)
        self.output = nn.Linear(backbone.width, task.outputs * max(task.classes, 1))
        with torch.no_grad():
            nn.init.orthogonal_(self.output.weight, gain=DEFAULT_GAIN, generator=draw)
            self.output.bias.zero_()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of the readout tokens.

        Parameters
        ----------
        x : Tensor, (batch, tokens, dim) float32 or (batch, tokens) int64
            Right-padded sequences.
        lengths : Tensor of int64, (batch,)
            Real tokens of each sequence.

        Returns
        -------
        Tensor of float32, (batch, readout_tokens, outputs, max(classes, 1))
        """
        return self.read(self.backbone(self.inputs(x), lengths, self.task.readout_tokens), lengths)

    def read(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits that `forward` returns, from the hidden states (batch, tokens, width) of ``final``."""
        return self.logits(pool(hidden, lengths, "last", self.task.readout_tokens))

    def logits(self, pooled: Tensor) -> Tensor:
        """Return the logits that `forward` returns, from hidden states (batch, readout_tokens, width)."""
        return self.output(pooled).unflatten(-1, (self.task.outputs, max(self.task.classes, 1)))

    @torch.inference_mode()
    def features(self, x: Tensor, lengths: Tensor, columns: list[str]) -> dict[str, Tensor]:
        """Return pooled hidden states from one forward pass that stops after the deepest wanted layer.

        Each layer is pooled inside its hook, so that the states of no two layers are held together.

        Parameters
        ----------
        x, lengths : Tensor
            As for `forward`.
        columns : list of str
            Columns such as ``block06/mean``.

        Returns
        -------
        dict of str to Tensor of float32, (batch, kept tokens, kept width)
            On the device of ``x``.

        Raises
        ------
        InputError
            If a layer or pooling does not exist.
        """
        pooled: dict[str, Tensor] = {}
        wanted: dict[str, list[str]] = {}
        for column in columns:
            layer, _ = parse_column(column)
            wanted.setdefault(layer, []).append(column)

        def record(of_layer: list[str], hidden: Tensor) -> None:
            with torch.autocast(x.device.type, enabled=False):  # means are products too, and would be rounded
                for column in of_layer:
                    pooled[column] = pool(hidden, lengths, parse_column(column)[1], self.task.readout_tokens)

        callbacks: dict[str, Callable[[Tensor], None]] = {
            layer: partial(record, of_layer) for layer, of_layer in wanted.items()
        }
        with self.backbone.recording(callbacks):
            self.backbone(self.inputs(x), lengths)
        return pooled
