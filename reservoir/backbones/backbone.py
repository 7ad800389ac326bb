"""A frozen sequence model behind one interface, whatever its family; its attention maps and numbers of parameters."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import devices
from reservoir.backbones.block_loop import BlockLoop, run_block
from reservoir.backbones.family import GROUPS, Family, attention_name, copy_numbers
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
    without one, of the last block).

    Parameters
    ----------
    model : Module
        The model, which is changed in place: its parameters are frozen, and become float32, except the matrices of
        blocks, which keep their precision.
    family : Family
        Its family.
    config : object
        Its configuration, as `find` returns it.
    depth : int, optional
        How many blocks the model keeps, the first ones; by default all.
    """

    def __init__(self, model: nn.Module, family: Family, config: Any, depth: int | None = None) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.family = family
        self.config = config
        self.shape = family.shape(config)
        self.width = self.shape.width
        self.max_tokens = self.shape.max_tokens  # None if unlimited
        self.min_tokens = 1  # of a sequence; tests of a generic family may find that it needs two
        self.causal = self.shape.causal  # of a generic family, tests decide it
        self.compute = "float32"  # one of `PRECISIONS`
        # Whether rows of several lengths can be in one batch; tests of a generic family decide it, too.
        self.can_pad = not _scales_by_longest_row(config.to_dict())
        self.allows_bfloat16 = family.allows_bfloat16
        # SHA-256 of the tensors of a file as they are stored, and of the rule by which they are dequantised; None for
        # weights that are not quantised.
        self.stored_digest: str | None = None
        # The blocks, if they are read from their file when they run; None if they are in memory.
        self.streamed: StreamedBlocks | None = None
        # How `run_layers` runs a block: `run_block`, or its compiled form.
        self._step: Callable[..., Any] = run_block
        # Drop what vectors do not use, and the blocks that are not kept.
        for path in family.unused:
            _replace(model, path, nn.Identity())
        if depth is not None:
            _replace(model, family.blocks, self.blocks[:depth])
            if family.is_generic:
                copy_numbers(self.blocks, family.loader.outline(config).get_submodule(family.stored_blocks))
        # Only the matrices of blocks may be in half precision, see `set_compute`.
        matrices = {module for module in self.blocks.modules() if isinstance(module, MATRICES)}
        for module in self.model.modules():
            if module not in matrices:
                _to_float32(module)
        self.depth = len(self.blocks)
        self.layers = layer_names(self.depth)
        # The feedforward of the last block processes each token separately, so it can skip tokens that nobody reads.
        self._last_tokens = LastTokens([self.blocks[-1].get_submodule(path) for path in family.feedforward])

    def forward(
        self,
        embeds: Tensor,
        lengths: Tensor | None = None,
        last: int | None = None,
        is_full: bool | None = None,
    ) -> Tensor:
        """Map embedded sequences (batch, tokens, width) to float32 hidden states of this shape after the last norm.

        Parameters
        ----------
        embeds : Tensor (batch, tokens, width)
            Sequences, which are padded on the right. Padding has no influence on the real tokens.
        lengths : Tensor (batch,), optional
            The number of real tokens of each sequence; by default all tokens are real.
        last : int, optional
            How many of the last real tokens the caller reads; the states of all others are then not valid. By default
            all.
        is_full : bool, optional
            Whether all tokens are real; by default the lengths decide, and reading them may wait for a GPU.
        """
        tokens = embeds.shape[1]
        run = self._prepared(embeds, lengths, last, is_full)
        with self._precision(embeds.device):
            return run()[:, :tokens].float()  # without the padding to a multiple

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
        run = self._prepared(embeds, lengths, None, is_full)
        precision = self._precision(embeds.device)
        step = self._step if self.is_compiled_for(embeds) else run_block
        check_layers(layers, self.family.name, self.depth)
        # Layer 0 is ``embed``, layer n the output of block n, and the last one ``final``.
        deepest = max(self.layers.index(layer) for layer in layers)
        if not self.depth:  # without blocks, the model returns the only layer
            with precision:
                hidden = run()
            yield "embed", hidden[:, :tokens]
            return
        # The blocks above the deepest requested layer do not run, nor the norm if nobody reads its output.
        block_count = min(deepest, self.depth)
        loop = BlockLoop(run, [*self.blocks], block_count, precision, step)
        # A model that nobody has described may change what leaves its last block in any way, so its code runs again.
        run_again = run if self.family.is_generic else None
        # The vectors of this batch are freed before its blocks run. A streamed model runs each block over all
        # batches, and those that wait need memory.
        del run, embeds
        # The loop ends with the block of the deepest layer, the layers only with ``final``.
        for layer, hidden in zip(self.layers, loop, strict=False):
            yield layer, hidden[:, :tokens]
        # ``hidden`` is now the output of the last block that ran.
        if deepest > self.depth:
            if run_again:
                with precision:
                    hidden = loop.run_rest(run_again)
            elif self.family.final_norm:
                with precision:
                    hidden = self._norm(hidden)
            yield "final", hidden[:, :tokens]

    def _norm(self, hidden: Tensor) -> Tensor:
        """Return the output of the last norm."""
        return self.model.get_submodule(self.family.final_norm)(hidden)

    def _prepared(
        self, embeds: Tensor, lengths: Tensor | None, last: int | None, is_full: bool | None
    ) -> Callable[[], Tensor]:
        """Return the function that runs the model on the arguments of `forward`.

        It returns the last hidden states (batch, tokens, width), with tokens padded to a multiple of `Shape.multiple`.
        """
        tokens = embeds.shape[1]
        self.check_length(tokens)
        if lengths is None:
            is_full = True
            lengths = torch.full_like(embeds[:, 0, 0], tokens, dtype=torch.int64)  # (batch,)
        if not self.can_pad:
            are_all_real = int(lengths.min()) == tokens if is_full is None else is_full
            if not are_all_real:
                problem = f"{self.family.name}: padding changes its hidden states"
                raise InputError(problem, "give sequences of equal length")
        added_tokens = -tokens % self.shape.multiple  # to the next multiple
        padded_tokens = tokens + added_tokens
        self._last_tokens.keep(lengths, last, padded_tokens)
        # The added tokens are padding, too.
        mask = self._mask(lengths, padded_tokens, False if added_tokens else is_full)
        if added_tokens:
            # One pair of numbers for each axis from the last one: none for the width, and some tokens at the end.
            embeds = nn.functional.pad(embeds, (0, 0, 0, added_tokens))
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
        is_real = torch.arange(tokens, device=lengths.device) < lengths[:, None]  # (batch, tokens)
        # Of a mask of tokens, transformers reads whether it has zeros, which waits for a GPU, and makes a mask of pairs
        # if it has some. Where it is known that there is padding, the mask of pairs is made here, without waiting.
        has_padding = is_full is False  # with None, it is not known
        if has_padding and self.family.takes_pair_mask and devices.on_gpu(lengths.device):
            sees = is_real[:, None, None].repeat(1, 1, tokens, 1)  # (batch, 1, queries, keys)
            attention = attention_name(self.model.config)
            if attention == "sdpa":
                return sees
            if attention == "eager":  # which adds the mask to its scores
                dtype = self._hidden_type
                zeros = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
                return zeros.masked_fill(~sees, torch.finfo(dtype).min)
            # Any other function makes its own mask of pairs from that of tokens.
        return is_real.to(torch.int64)

    def set_compute(self, compute: str) -> None:
        """Run in one of `PRECISIONS` from now on; models that do not allow bfloat16 stay in float32.

        | compute | what is bfloat16 |
        |---|---|
        | ``float32`` | nothing |
        | ``bfloat16`` | the matrices of the blocks, unless they are trained, and their products |
        | ``bfloat16-all`` | all weights and hidden states, as transformers loads with ``dtype=torch.bfloat16`` |
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
            if not isinstance(module, MATRICES):
                continue
            is_trained = any(parameter.requires_grad for parameter in module.parameters())
            if not is_trained:
                module.to(dtype)

    def set_positions(self, path: str, positions: Tensor) -> None:
        """Set the learned positions (tokens, width), whose number becomes the length of the longest sequence.

        ``path`` is the path of their parameter in the model.
        """
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
        # Layer 0 is ``embed``, layer n the output of block n, and the last one ``final``.
        deepest = max(self.layers.index(layer) for layer in layers)
        if self.family.blocks:
            # One block stays for ``embed`` alone, because most models could not run without any.
            _replace(self.model, self.family.blocks, self.blocks[: max(deepest, 1)])
        if self.family.final_norm and "final" not in layers:
            _replace(self.model, self.family.final_norm, nn.Identity())

    def check_length(self, tokens: int, where: str = "") -> None:
        """Raise `InputError` (message prefix ``where``) if this backbone cannot read sequences of ``tokens`` tokens."""
        if tokens < self.min_tokens:
            raise InputError(
                f"{where}a sequence of {tokens} token is too short for this {self.family.name}, which needs "
                f"{self.min_tokens}",
                "leave out shorter sequences, or choose another backbone",
            )
        if self.max_tokens is not None and tokens > self.max_tokens:
            raise InputError(
                f"{where}the sequences have {tokens} tokens, but this {self.family.name} has "
                f"{self.max_tokens} positions",
                "shorten the sequences, or choose a backbone with more positions",
            )

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of the parameters of each group that this family has, in the order of `GROUPS`."""
        names_by_group: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            names_by_group.setdefault(self.group_of(name), []).append(name)
        return {group: tuple(names_by_group[group]) for group in GROUPS if group in names_by_group}

    def group_of(self, parameter: str) -> str:
        """Return the group of a parameter, by its name in ``named_parameters``."""
        # The first group of which a text occurs in the name counts.
        groups = self.family.groups.items()
        return next(group for group, texts in groups if any(text in parameter for text in texts))


def _scales_by_longest_row(settings: Mapping[str, Any]) -> bool:
    """Return whether a configuration, at any depth, has rotary positions of the type ``longrope``.

    Their frequencies depend on the longest row of a batch: transformers takes others if it is longer than the texts of
    the first pretraining.
    """
    return settings.get("rope_type") == "longrope" or any(
        _scales_by_longest_row(value) for value in settings.values() if isinstance(value, Mapping)
    )


def _to_float32(module: nn.Module) -> None:
    """Convert the parameters and buffers of a module, but not those of its children."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.float()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.float())


def _replace(model: nn.Module, path: str, replacement: nn.Module | nn.Parameter) -> None:
    """Put a module or a parameter in the place of that at a path of the model."""
    parent_path, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent_path), name, replacement)


class LastTokens:
    """Restricts modules to the last tokens of each sequence, those that the caller reads.

    The modules, in the order of the forward pass, form a chain that processes each token separately. The input of the
    chain is reduced to the tokens that are read, and its output has zeros at all others.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # Indices of the rows (batch, 1) and of the tokens (batch, count) that are read, or None for all tokens. They
        # stay after the pass, because a block may run again in the backward pass.
        self._read_tokens: tuple[Tensor, Tensor] | None = None
        self._tokens = 0  # of a sequence with its padding
        for module in modules:
            module.register_forward_pre_hook(self._reduce_inputs)
        for module in modules[-1:]:  # none in a family that does not name these modules
            module.register_forward_hook(self._restore_output)

    def keep(self, lengths: Tensor, count: int | None, tokens: int) -> None:
        """Keep the last ``count`` real tokens of sequences that are padded to ``tokens``; None keeps all.

        ``lengths`` (batch,) has the number of real tokens of each sequence.
        """
        self._tokens = tokens
        self._read_tokens = None
        if count is not None and count < tokens:
            rows = torch.arange(len(lengths), device=lengths.device)[:, None]
            first_tokens = lengths[:, None] - count
            self._read_tokens = rows, first_tokens + torch.arange(count, device=lengths.device)

    def _reduce_inputs(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a module, (batch, tokens, width), with the tokens that are read alone."""
        if self._read_tokens is None:
            return inputs
        # An input with fewer tokens is the output of a module that was restricted already.
        return tuple(x[self._read_tokens] if x.shape[1] == self._tokens else x for x in inputs)

    def _restore_output(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the output of the last module with zeros at the tokens that nobody reads."""
        if self._read_tokens is None:
            return output
        all_tokens = output.new_zeros(output.shape[0], self._tokens, output.shape[2])
        all_tokens[self._read_tokens] = output
        return all_tokens


@torch.inference_mode()
def attention_maps(backbone: Backbone, embeds: Tensor, lengths: Tensor, layer: int = 1) -> Tensor:
    r"""Return the attention maps of one block, :math:`\mathrm{softmax}(Q K^T / \sqrt{d} + \ldots)`.

    The maps are float32, (batch, heads, queries, keys): rows of real queries sum to one, and padding
    has zeros.

    Parameters
    ----------
    backbone : Backbone
        The backbone.
    embeds : Tensor (batch, tokens, width)
        Sequences, which are padded on the right.
    lengths : Tensor (batch,)
        The number of real tokens of each sequence.
    layer : int
        The number of the block, from 1.

    Raises
    ------
    InputError
        If the attention of this family has no maps, or if there is no such block.
    """
    path = backbone.family.attention
    if not path:
        reason = (
            "is not described by hand, so where its maps are is not known"
            if backbone.family.is_generic
            else "has no maps of the whole sequence"
        )
        raise InputError(f"attention: {backbone.family.name} {reason}", "use another backbone")
    if not 1 <= layer <= backbone.depth:
        raise InputError(
            f"attention layer {layer}: this backbone has blocks 1 to {backbone.depth}", "choose one"
        )
    maps: list[Tensor] = []

    def keep_map(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the map, which is the last output of an attention module; a hook of torch."""
        maps.append(output[-1])

    module = backbone.blocks[layer - 1].get_submodule(path)
    handle = module.register_forward_hook(keep_map)
    model: Any = backbone.model
    # Fused kernels do not compute the maps, so this forward pass uses the plain attention function.
    usual_attention = attention_name(model.config)
    model.set_attn_implementation("eager")
    try:
        for _layer in backbone.run_layers(embeds, lengths, [block_name(layer)]):
            pass  # each block runs when its layer is taken
    finally:
        model.set_attn_implementation(usual_attention)
        handle.remove()
    is_real = torch.arange(embeds.shape[1], device=embeds.device) < lengths[:, None]
    is_real_pair = is_real[:, None, :, None] & is_real[:, None, None, :]  # (batch, 1, queries, keys)
    return maps[0].float() * is_real_pair


def group_counts(backbone: Backbone) -> dict[str, int]:
    """Return the number of parameters by group (see `GROUPS`); zero for groups that the family does not have."""
    names_by_group = backbone.groups
    return {
        group: sum(backbone.get_parameter(name).numel() for name in names_by_group.get(group, ()))
        for group in GROUPS
    }


def parameter_count(backbone: Backbone) -> int:
    """Return the number of parameters of the model, without those of blocks that were cut off.

    Unlike the groups of `group_counts`, it includes the token embeddings, which vectors do not use.
    """
    uncut_count = backbone.family.loader.size(backbone.config).parameters
    missing_blocks = backbone.shape.depth - backbone.depth
    if not missing_blocks:
        return uncut_count
    # All blocks have the same size.
    count_of_a_block = sum(parameter.numel() for parameter in backbone.blocks[-1].parameters())
    return uncut_count - missing_blocks * count_of_a_block


def trained_counts(backbone: Backbone, task: Task) -> dict[str, int]:
    """Return how many parameters an FPT trains on a task, by group, without positions that no sequence reaches.

    An FPT is a frozen pretrained transformer: its output, its input, its layer norms and its positions are trained.
    """
    # Each value to predict has an output for each class, or a single one in a regression, which has 0 classes.
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
        "output": outputs * (backbone.width + 1),  # each output has ``width`` weights and a bias
        "input": input_vectors * backbone.width,
        "layernorm": group_counts(backbone)["layernorm"],
        "positions": positions,
    }


def deviations(backbone: Backbone) -> dict[str, np.ndarray]:
    """Return the standard deviations (depth,) of each tensor, one for each block (Lu et al. 2021, Figure 6).

    The keys are the names of the tensors inside a block; a block without a tensor of this name has NaN.
    """
    deviations_by_name: dict[str, np.ndarray] = {}
    for number, block in enumerate(backbone.blocks):
        for name, parameter in block.named_parameters():
            by_block = deviations_by_name.setdefault(name, np.full(backbone.depth, np.nan))
            by_block[number] = parameter.detach().float().std(correction=0).item()
    return deviations_by_name
