"""The frozen pretrained transformer (FPT) of Lu et al. 2021, section 2.2: input layer, backbone and output."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from reservoir.backbones import Backbone
from reservoir.column import Column
from reservoir.hidden_states import HiddenStates, RealTokens
from reservoir.inputs.counter import BracketCounter
from reservoir.inputs.native import NativeInput
from reservoir.inputs.random_input import InputLayer, NoInputLayer
from reservoir.options import GAIN
from reservoir.pooling import Last, find_pooling
from reservoir.random import generator
from reservoir.tasks.task import Task


class FPT(nn.Module):
    """Input layer, backbone and output, over right-padded sequences.

    With ``output_init="orthogonal"``, the output starts with rows of norm 1.41 and zero biases; with
    ``"linear"``, as in torch's `Linear` and the authors' code (rows of norm 0.58).
    """

    def __init__(
        self,
        task: Task,
        backbone: Backbone,
        inputs: InputLayer | NoInputLayer | BracketCounter | NativeInput,
        seed: int = 0,
        output_init: str = "orthogonal",
    ) -> None:
        super().__init__()
        backbone.check_length(task.max_tokens, f"task {task.name!r}: ")
        self.task = task
        self.inputs = inputs
        self.backbone = backbone
        self.output = nn.Linear(backbone.width, task.outputs * max(task.classes, 1))
        # ``linear`` draws as `torch.nn.Linear` does, uniformly, but the same values on every machine.
        if output_init == "linear":
            bound = backbone.width**-0.5
            with torch.no_grad():
                for name, parameter in self.output.named_parameters():
                    draw = generator(seed, f"output.{name}")
                    parameter.copy_(torch.from_numpy(draw.uniform(-bound, bound, parameter.shape)))
        else:
            nn.init.orthogonal_(self.output.weight, GAIN, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, lengths: Tensor, is_full: bool | None = None) -> Tensor:
        """Return the logits (batch, readout_tokens, outputs, max(classes, 1)) of right-padded sequences, float32.

        ``is_full`` says whether all tokens are real; with None the lengths decide, which may wait for a GPU.
        """
        hidden = self.backbone(self.inputs(x), lengths, self.task.readout_tokens, is_full)
        return self.logits(Last().of(HiddenStates(hidden, lengths, self.task.readout_tokens)))

    def logits(self, pooled: Tensor) -> Tensor:
        """Return the logits of pooled hidden states (batch, readout_tokens, width), shaped as in `forward`."""
        return self.output(pooled).unflatten(-1, (self.task.outputs, max(self.task.classes, 1)))

    @torch.inference_mode()
    def features(
        self,
        x: Tensor,
        lengths: Tensor,
        columns: Sequence[Column],
        is_full: bool | None = None,
        masks: Mapping[str, Tensor] | None = None,
        deepest: str | None = None,
    ) -> dict[Column, Tensor]:
        """Return pooled hidden states (batch, kept tokens, kept width) by column, from the needed layers alone.

        ``is_full`` says whether all tokens are real, so that nothing waits for a GPU to compare ``lengths``. ``masks``
        are those (batch, tokens) of bool that the poolings read. The forward pass goes to the layer ``deepest``, if
        that is given.
        """
        pooled: dict[Column, Tensor] = {}
        of_layer: dict[str, list[Column]] = {}
        for column in columns:
            of_layer.setdefault(column.layer, []).append(column)
        if deepest:
            of_layer.setdefault(deepest, [])

        embeds = self.inputs(x)
        real_tokens = RealTokens(lengths, embeds.shape[1], is_full, masks)

        # A layer is pooled inside its hook, so that the hidden states of only one layer are in memory.
        def record(layer: str, hidden: Tensor) -> None:
            with torch.autocast(x.device.type, enabled=False):  # autocast would round means
                sizes = self.task.readout_tokens, self.task.max_tokens
                states = HiddenStates(hidden, lengths, *sizes, self.inputs.special, real_tokens)
                for column in of_layer[layer]:
                    pooled[column] = find_pooling(column.pooling).of(states)

        with self.backbone.recording({layer: partial(record, layer) for layer in of_layer}):
            self.backbone(embeds, lengths, is_full=is_full)
        return pooled
