"""The frozen pretrained transformer (FPT) of Lu et al. 2021, section 2.2: input layer, backbone and output."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones import Backbone
from reservoir.column import Column
from reservoir.hidden_states import HiddenStates, RealTokens
from reservoir.inputs.input_layers import BracketCounter, InputLayer, NoInputLayer
from reservoir.inputs.native import NativeInput
from reservoir.options import GAIN
from reservoir.pooling import Last, Pooling, find_pooling
from reservoir.random import generator
from reservoir.tasks.task import Task


class FPT(nn.Module):
    """Input layer, backbone and output, over right-padded sequences.

    Parameters
    ----------
    task : Task
        The task as the model sees it: its tokens are those of the input layer, and its labels shape the logits.
    backbone : Backbone
        The frozen transformer.
    inputs : InputLayer, NoInputLayer, BracketCounter or NativeInput
        Maps tokens to the vectors that the backbone reads.
    seed : int, default 0
        Seed of the output layer.
    output_init : {"orthogonal", "linear"}, default "orthogonal"
        With ``"orthogonal"``, the output starts with rows of norm 1.41 and zero biases; with ``"linear"``, as in
        torch's `Linear` and the authors' code (rows of norm 0.58).
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
        # The poolings of the compiled graph by name, set by `compile_for_gpu`. They are attributes of a module because
        # torch takes whole numbers inside a module, such as the K of a pooling, for constants.
        self._poolings: dict[str, Pooling] = {}
        self._compiled_pool: Callable[..., list[Tensor]] = self._pool_alone
        # Rows of the batch for which the model was compiled; None if it was not.
        self.compiled_for: int | None = None
        logits_per_output = max(task.classes, 1)  # a regression, with 0 classes, has one value
        self.output = nn.Linear(backbone.width, task.outputs * logits_per_output)
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
        states = HiddenStates(hidden, lengths, self.task.readout_tokens)
        return self.logits(Last().of(states))

    def logits(self, pooled: Tensor) -> Tensor:
        """Return the logits of pooled hidden states (batch, readout_tokens, width), shaped as in `forward`."""
        logits_per_output = max(self.task.classes, 1)
        return self.output(pooled).unflatten(-1, (self.task.outputs, logits_per_output))

    @torch.inference_mode()
    def features(
        self,
        x: Tensor,
        lengths: Tensor,
        columns: Sequence[Column],
        is_full: bool | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> dict[Column, Tensor]:
        """Return the columns: pooled hidden states (batch, kept tokens, kept width), from the needed layers alone.

        ``x`` are tokens (batch, tokens, ...) for the input layer, and ``lengths`` (batch,) the number of real ones.
        ``is_full`` says whether all tokens are real, so that nothing waits for a GPU to compare ``lengths``; None if it
        is not known. ``masks`` are those (batch, tokens) of bool that the poolings read, by name.
        """
        pooled: dict[Column, Tensor] = {}
        for columns_of_layer in self.pooled_layers(x, lengths, columns, is_full, masks):
            pooled |= columns_of_layer
        return pooled

    def pooled_layers(
        self,
        x: Tensor,
        lengths: Tensor,
        columns: Sequence[Column],
        is_full: bool | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> Iterator[dict[Column, Tensor]]:
        """Yield the columns of each layer up to the deepest that has one; the arguments are those of `features`.

        A layer is pooled before the next one is computed, so that the hidden states of few layers are in memory.
        """
        return self._pooled_layers(self.inputs(x), lengths, columns, is_full, masks or {})

    def compile_for_gpu(self, rows: int, columns: Sequence[Column], masks: Collection[str] = ()) -> None:
        """Compile blocks and poolings for `features` of ``columns``, which read ``masks``, on a GPU.

        Code that torch makes may depend on the first batch that it sees, and should not depend on the rows with which
        a resumed run begins. So the first batch is always the same: about ``rows`` sequences of zeros, of full length.
        """
        self.compiled_for = rows
        self.backbone.compile_steps()
        self._poolings = {column.pooling: find_pooling(column.pooling) for column in columns}
        self._compiled_pool = devices.compile_safely(self._pool_alone, dynamic=True, fullgraph=True)
        # torch takes sizes that are equal in the first batch for the same size, also those of parameters. So the
        # numbers of rows and of tokens differ from each other and from all sizes of parameters.
        taken_sizes = {size for parameter in self.backbone.parameters() for size in parameter.shape}
        tokens = _size_without(self.task.max_tokens, taken_sizes)
        rows = _size_without(max(rows, 2), taken_sizes | {tokens})
        device = self.output.weight.device
        embeds = torch.zeros(rows, tokens, self.backbone.width, device=device)
        lengths = torch.full((rows,), tokens, device=device)
        full_masks = {name: torch.ones(rows, tokens, dtype=torch.bool, device=device) for name in masks}
        # torch compiles when a function first runs. Batches with and without padding have code of their own.
        with torch.inference_mode():
            for is_full in (True, False):
                for _ in self._pooled_layers(embeds.clone(), lengths, columns, is_full, full_masks):
                    pass

    def _pooled_layers(
        self,
        embeds: Tensor,
        lengths: Tensor,
        columns: Sequence[Column],
        is_full: bool | None,
        masks: Mapping[str, Tensor],
    ) -> Iterator[dict[Column, Tensor]]:
        """Yield the columns of each layer as `pooled_layers` does, from the vectors that the backbone reads."""
        columns_by_layer: dict[str, list[Column]] = {}
        for column in columns:
            columns_by_layer.setdefault(column.layer, []).append(column)
        real_tokens = RealTokens(lengths, embeds.shape[1], is_full, masks)
        is_compiled = self.backbone.is_compiled_for(embeds)
        layers = self.backbone.run_layers(embeds, lengths, columns_by_layer, is_full)
        del embeds  # whose memory the backbone can then free
        for layer, hidden in layers:
            columns_of_layer = columns_by_layer.get(layer, ())  # none of a layer on the way to a deeper one
            names = [column.pooling for column in columns_of_layer]
            if is_compiled and names:
                pooled = self._compiled_pool(hidden, lengths, is_full, masks, names)
            else:
                pooled = self._pool(hidden, real_tokens, [find_pooling(name) for name in names])
            yield dict(zip(columns_of_layer, pooled, strict=True))

    def _pool_alone(
        self,
        hidden: Tensor,
        lengths: Tensor,
        is_full: bool | None,
        masks: Mapping[str, Tensor],
        names: Sequence[str],
    ) -> list[Tensor]:
        """Return the pooled hidden states (batch, kept tokens, kept width) of one layer by each named pooling.

        This is the function that is compiled. It shares nothing with other layers: masks and weights are computed in
        the same kernels.
        """
        real_tokens = RealTokens(lengths, hidden.shape[1], is_full, masks)
        return self._pool(hidden, real_tokens, [self._poolings[name] for name in names])

    def _pool(self, hidden: Tensor, real_tokens: RealTokens, poolings: Sequence[Pooling]) -> list[Tensor]:
        """Return the pooled hidden states (batch, kept tokens, kept width) of one layer by each pooling."""
        states = HiddenStates(
            hidden,
            real_tokens.lengths,
            readout_tokens=self.task.readout_tokens,
            max_tokens=self.task.max_tokens,
            special=self.inputs.special,
            real_tokens=real_tokens,
        )
        return [pooling.of(states) for pooling in poolings]


def _size_without(size: int, taken: Collection[int]) -> int:
    """Return the largest number from ``size`` down to 2 that is not ``taken``; ``size`` itself if all are."""
    free_sizes = (number for number in range(size, 1, -1) if number not in taken)
    return next(free_sizes, size)
