"""A frozen sequence model behind one interface, whatever its family; its attention maps and numbers of parameters."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones.block_loop import BlockLoop, run_block
from reservoir.backbones.family import GROUPS, Family, attention_name
from reservoir.backbones.gpt2 import Projection
from reservoir.backbones.streaming import StreamedBlocks
from reservoir.column import block_name, check_layers, layer_names
from reservoir.errors import InputError
from reservoir.tasks.task import Task, Vectors

MATRICES = (nn.Linear, Projection)
"""Modules whose products run in bfloat16 in every precision but float32, see `Backbone.set_compute`."""


class Backbone(nn.Module):
    """A frozen sequence model that maps vectors to vectors and names its layers.

    Layers are ``embed`` (the input of the first block, with positions added), ``block01`` to
    ``blockNN`` (the output of each block) and ``final`` (the output of the last norm; in a family
    without one, of the last block). The parameters of ``model`` are frozen here; ``family`` and
    ``config`` are as `find` returns them. With ``depth`` the model keeps only its first ``depth``
    blocks and the final norm. Weights become float32, except the matrices of blocks, which keep their precision.
    """

    def __init__(self, model: nn.Module, family: Family, config: Any, depth: int | None = None) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.family = family
        self.config = config
        self.shape = family.shape(config)
        self.width, self.max_tokens = self.shape.width, self.shape.max_tokens
        self.causal = self.shape.causal
        self.compute = "float32"  # one of `PRECISIONS`
        self.can_pad = True  # whether rows of several lengths can be in one batch
        self.allows_bfloat16 = family.allows_bfloat16
        # SHA-256 of the tensors of a file as they are stored, and of the rule by which they are dequantised; None for
        # weights that are not quantised.
        self.stored_digest: str | None = None
        # The blocks, if they are read from their file when they run.
        self.streamed: StreamedBlocks | None = None
        self._step: Callable[..., Any] = run_block
        for path in family.unused:
            _replace(model, path, nn.Identity())
        if depth is not None:
            _replace(model, family.blocks, self.blocks[:depth])
        # Only the matrices of blocks may be in half precision, see `set_compute`.
        matrices = {module for module in self.blocks.modules() if isinstance(module, MATRICES)}
        for module in self.model.modules():
            if module not in matrices:
                _to_float32(module)
        self.depth = len(self.blocks)
        self.layers = layer_names(self.depth)
        self._last_tokens = LastTokens([self.blocks[-1].get_submodule(path) for path in family.feedforward])

    def forward(
        self,
        embeds: Tensor,
        lengths: Tensor | None = None,
        last: int | None = None,
        is_full: bool | None = None,
    ) -> Tensor:
        """Map embedded sequences (batch, tokens, width) to float32 hidden states of this shape after the last norm.

        Sequences are right-padded after their ``lengths`` (batch,), and padding has no influence on
        the real tokens. With ``last``, only the states of the last ``last`` real tokens are valid. ``is_full`` says
        whether all tokens are real; with None the lengths decide, and reading them may wait for a GPU.
        """
        tokens = embeds.shape[1]
        run = self._prepared(embeds, lengths, last, is_full)
        with self._precision(embeds.device):
            return run()[:, :tokens].float()

    def run_layers(
        self,
        embeds: Tensor,
        lengths: Tensor | None = None,
        layers: Collection[str] = ("final",),
        is_full: bool | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield name and hidden states (batch, tokens, width) of each layer, up to the deepest of ``layers``.

        The other arguments are those of `forward`. A block runs when its layer is taken, and padding may have any
        values. With ``bfloat16-all`` hidden states are bfloat16, see `set_compute`.
        """
        tokens = embeds.shape[1]
        run, precision = self._prepared(embeds, lengths, None, is_full), self._precision(embeds.device)
        step = self._step if self.is_compiled_for(embeds) else run_block
        check_layers(layers, self.family.name, self.depth)
        deepest = max(self.layers.index(layer) for layer in layers)
        if not self.depth:
            with precision:
                hidden = run()
            yield "embed", hidden[:, :tokens]
            return
        # The blocks above the deepest requested layer do not run, nor the norm if nobody reads its output.
        loop = BlockLoop(run, [*self.blocks], min(deepest, self.depth), precision, step)
        # A model that nobody has described may change what leaves its last block in any way.
        run_again = run if self.family.is_generic else None
        del run, embeds  # batches of a streamed model wait in turn, and need their memory
        for layer, hidden in zip(self.layers, loop, strict=False):
            yield layer, hidden[:, :tokens]
        if deepest > self.depth:
            if run_again or self.family.final_norm:
                with precision:
                    hidden = loop.run_rest(run_again) if run_again else self._norm(hidden)
            yield "final", hidden[:, :tokens]

    def _norm(self, hidden: Tensor) -> Tensor:
        """Return the output of the last norm."""
        return self.model.get_submodule(self.family.final_norm)(hidden)

    def _prepared(
        self, embeds: Tensor, lengths: Tensor | None, last: int | None, is_full: bool | None
    ) -> Callable[[], Tensor]:
        """Return the function that runs the model on the arguments of `forward`, up to padding for `Shape.multiple`."""
        tokens = embeds.shape[1]
        self.check_length(tokens)
        if lengths is None:
            is_full = True
            lengths = torch.full_like(embeds[:, 0, 0], tokens, dtype=torch.int64)
        if not self.can_pad:
            all_real = int(lengths.min()) == tokens if is_full is None else is_full
            if not all_real:
                problem = f"{self.family.name}: padding changes its hidden states"
                raise InputError(problem, "give sequences of equal length")
        surplus = -tokens % self.shape.multiple  # tokens to the next multiple
        # The last block's feedforward processes each token separately, so it can skip tokens that nobody reads.
        self._last_tokens.keep(lengths, last, tokens + surplus)
        # Tokens up to the next multiple are padding, too.
        mask = self._mask(lengths, tokens + surplus, False if surplus else is_full)
        if surplus:
            embeds = nn.functional.pad(embeds, (0, 0, 0, surplus))
        if self._hidden_type != torch.float32:
            embeds = embeds.to(self._hidden_type)
        return partial(self.family.run, self.model, embeds, mask)

    @property
    def _hidden_type(self) -> torch.dtype:
        """The type of hidden states between blocks."""
        return torch.bfloat16 if self.compute == "bfloat16-all" else torch.float32

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which matrix products have the precision of `set_compute`."""
        if self.compute == "bfloat16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()  # torch.export cannot save an autocast that is disabled

    def _mask(self, lengths: Tensor, tokens: int, is_full: bool | None) -> Tensor | None:
        """Return the mask of `Family.run` for sequences that are padded to ``tokens``; None if it needs no mask."""
        # In a causal model no token sees the padding on its right, so it needs no mask and keeps its fast kernel.
        if self.causal or is_full:
            return None
        is_real = torch.arange(tokens, device=lengths.device) < lengths[:, None]
        # Of a mask of tokens, transformers reads whether it has zeros, which waits for a GPU, and makes a mask of pairs
        # if it has some. Where padding is known, the mask of pairs is made here, without waiting.
        if is_full is False and self.family.takes_pair_mask and devices.on_gpu(lengths.device):
            pairs = is_real[:, None, None].repeat(1, 1, tokens, 1)
            name = attention_name(self.model.config)
            if name == "sdpa":
                return pairs
            if name == "eager":  # which adds the mask to its scores
                dtype = self._hidden_type
                zeros = torch.zeros(pairs.shape, dtype=dtype, device=pairs.device)
                return zeros.masked_fill(~pairs, torch.finfo(dtype).min)
        return is_real.to(torch.int64)

    def set_compute(self, compute: str) -> None:
        """Run in one of `PRECISIONS`; recurrent models stay in float32.

        With ``bfloat16`` the matrix products in the blocks have this precision. With ``bfloat16-all`` all weights and
        hidden states have it, as in a model that transformers loads with ``dtype=torch.bfloat16``.
        """
        if not self.allows_bfloat16:
            return
        self.compute = compute
        if compute == "bfloat16-all":
            # Buffers, such as the frequencies of rotary positions, stay in float32, as in transformers.
            for parameter in self.model.parameters():
                parameter.data = parameter.data.bfloat16()
            return
        # Trained weights stay in float32. So does the residual stream: the error of hidden states is then three
        # quarters of that with everything in bfloat16 (an untrained GPT-2 small, a Llama of six blocks), at the same
        # speed on a CPU.
        dtype = torch.bfloat16 if compute == "bfloat16" else torch.float32
        for module in self.blocks.modules():
            if isinstance(module, MATRICES) and not any(p.requires_grad for p in module.parameters()):
                module.to(dtype)

    def set_positions(self, path: str, positions: Tensor) -> None:
        """Set the learned positions (tokens, width), whose number becomes the length of the longest sequence."""
        _replace(self.model, path, nn.Parameter(positions.clone(), requires_grad=False))
        self.max_tokens = len(positions)
        self.shape = replace(self.shape, max_tokens=len(positions))

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, first to last."""
        if not self.family.blocks:
            return nn.ModuleList()
        return cast(nn.ModuleList, self.model.get_submodule(self.family.blocks))

    def is_compiled_for(self, embeds: Tensor) -> bool:
        """Return whether `run_layers` runs compiled blocks on vectors (batch, tokens, width)."""
        # For a single row or token, torch would make other code, which depends on the first such batch.
        return self._step is not run_block and min(embeds.shape[:2]) > 1

    def compile_steps(self) -> None:
        """Compile blocks for `run_layers`; equal ones share the code, which is right for all rows and tokens."""
        self._step = devices.compile_safely(run_block, dynamic=True, fullgraph=True)

    def cut_above(self, layers: Collection[str]) -> None:
        """Drop the blocks above the deepest of ``layers``, and the last norm if nobody reads its output."""
        deepest = max(self.layers.index(layer) for layer in layers)
        if self.family.blocks:
            # A model without any blocks could not run.
            _replace(self.model, self.family.blocks, self.blocks[: max(deepest, 1)])
        if self.family.final_norm and "final" not in layers:
            _replace(self.model, self.family.final_norm, nn.Identity())

    def check_length(self, tokens: int, where: str = "") -> None:
        """Raise `InputError` (message prefix ``where``) if this backbone has fewer than ``tokens`` positions."""
        if self.max_tokens is not None and tokens > self.max_tokens:
            raise InputError(
                f"{where}the sequences have {tokens} tokens, but this {self.family.name} has "
                f"{self.max_tokens} positions",
                "shorten the sequences, or choose a backbone with more positions",
            )

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of the parameters of each group that this family has."""
        names: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            names.setdefault(self.group_of(name), []).append(name)
        return {group: tuple(names[group]) for group in GROUPS if group in names}

    def group_of(self, parameter: str) -> str:
        """Return the group of a parameter, by its name in ``named_parameters``."""
        groups = self.family.groups.items()
        return next(group for group, pieces in groups if any(piece in parameter for piece in pieces))


def _to_float32(module: nn.Module) -> None:
    """Convert the parameters and buffers of a module, but not those of its children."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.float()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.float())


def _replace(model: nn.Module, path: str, module: nn.Module | nn.Parameter) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


class LastTokens:
    """Restricts modules that process each token separately to some of the tokens; ``parts`` are in forward order."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        # Rows and positions, or None for all tokens; not cleared, because a block may run again in the backward pass.
        self._read: tuple[Tensor, Tensor] | None = None
        self._tokens = 0
        for part in parts:
            part.register_forward_pre_hook(self._take)
        for part in parts[-1:]:
            part.register_forward_hook(self._put)

    def keep(self, lengths: Tensor, count: int | None, tokens: int) -> None:
        """Keep the last ``count`` real tokens of sequences that are padded to ``tokens``; None keeps all."""
        self._read, self._tokens = None, tokens
        if count is not None and count < tokens:
            first = lengths[:, None] - count
            rows = torch.arange(len(lengths), device=lengths.device)[:, None]
            self._read = rows, first + torch.arange(count, device=lengths.device)

    def _take(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._read is None:
            return inputs
        return tuple(x[self._read] if x.shape[1] == self._tokens else x for x in inputs)

    def _put(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if self._read is None:
            return output
        whole = output.new_zeros(output.shape[0], self._tokens, output.shape[2])
        whole[self._read] = output
        return whole


@torch.inference_mode()
def attention_maps(backbone: Backbone, embeds: Tensor, lengths: Tensor, layer: int = 1) -> Tensor:
    r"""Return the attention maps of one block (from 1), :math:`\mathrm{softmax}(Q K^T / \sqrt{d} + \ldots)`.

    The maps are float32, (batch, heads, queries, keys): rows of real queries sum to one, and padding
    has zeros.
    """
    # Fused kernels do not compute the maps, so this forward pass uses the plain attention function.
    path = backbone.family.attention
    if not path:
        raise InputError(
            f"attention: {backbone.family.name} has no maps of the whole sequence", "use another backbone"
        )
    if not 1 <= layer <= backbone.depth:
        raise InputError(
            f"attention layer {layer}: this backbone has blocks 1 to {backbone.depth}", "choose one"
        )
    maps: list[Tensor] = []
    module = backbone.blocks[layer - 1].get_submodule(path)
    handle = module.register_forward_hook(lambda _module, _inputs, output: maps.append(output[-1]))
    model: Any = backbone.model
    before = attention_name(model.config)
    model.set_attn_implementation("eager")
    try:
        for _layer in backbone.run_layers(embeds, lengths, [block_name(layer)]):
            pass
    finally:
        model.set_attn_implementation(before)
        handle.remove()
    real = torch.arange(embeds.shape[1], device=embeds.device) < lengths[:, None]
    return maps[0].float() * (real[:, None, :, None] & real[:, None, None, :])


def group_counts(backbone: Backbone) -> dict[str, int]:
    """Return the number of parameters by group (see `GROUPS`); zero for groups that the family does not have."""
    names = backbone.groups
    return {
        group: sum(backbone.get_parameter(name).numel() for name in names.get(group, ()))
        for group in GROUPS
    }


def whole_count(backbone: Backbone) -> int:
    """Return the number of parameters of the model with its token embeddings, without the blocks that were cut off."""
    whole = backbone.family.loader.size(backbone.config).parameters
    missing_blocks = backbone.shape.depth - backbone.depth
    if not missing_blocks:
        return whole
    # All blocks have the same size.
    of_a_block = sum(parameter.numel() for parameter in backbone.blocks[-1].parameters())
    return whole - missing_blocks * of_a_block


def trained_counts(backbone: Backbone, task: Task) -> dict[str, int]:
    """Return how many parameters an FPT trains on a task, by group, without positions that no sequence reaches."""
    # Each output has `width` weights and a bias.
    outputs = task.outputs * max(task.classes, 1)
    # Vectors of `width` values: a linear input layer has one for each channel, and its bias; a table of symbols has one
    # for each symbol.
    input_vectors = (task.form.dim + 1) if isinstance(task.form, Vectors) else task.form.vocabulary
    # No sequence of the task reaches a position after its longest one.
    positions = 0
    for name in backbone.groups.get("positions", ()):
        shape = backbone.get_parameter(name).shape
        positions += min(shape[0], task.max_tokens) * math.prod(shape[1:])
    return {
        "output": outputs * (backbone.width + 1),
        "input": input_vectors * backbone.width,
        "layernorm": group_counts(backbone)["layernorm"],
        "positions": positions,
    }


def deviations(backbone: Backbone) -> dict[str, np.ndarray]:
    """Return the standard deviation of each tensor by block, (depth,), NaN if absent (Lu et al. 2021, Figure 6)."""
    spread: dict[str, np.ndarray] = {}
    for number, block in enumerate(backbone.blocks):
        for name, parameter in block.named_parameters():
            values = spread.setdefault(name, np.full(backbone.depth, np.nan))
            values[number] = parameter.detach().float().std(correction=0).item()
    return spread
