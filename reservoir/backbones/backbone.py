"""A frozen sequence model behind one interface, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.errors import InputError

GROUPS = ("positions", "layernorm", "attention", "feedforward")


@dataclass(frozen=True)
class Family:
    """The facts that tell one family of transformers from another; each family is one value of this type.

    Parameters
    ----------
    name : str
        The ``model_type`` of its configurations.
    build : callable
        ``build(config) -> module``: the model with this configuration and arbitrary weights.
    load : callable
        ``load(source) -> (module, info)``: the pretrained model and what `from_pretrained` reports of its keys.
    shape : callable
        ``shape(config) -> (depth, width, max_tokens)``.
    run : callable
        ``run(model, embeds, mask) -> hidden states`` (batch, tokens, width); ``mask`` is None where it changes nothing.
    blocks : str
        Path of the list of blocks inside the model.
    final_norm : str
        Path of the norm after the last block; empty where there is none.
    unused : tuple of str
        Paths of modules that no sequence of vectors passes through: the token embeddings, which an input layer
        replaces. They are dropped from memory and do not count in the weights' digest.
    heads : tuple of str
        Prefixes of checkpoint entries that belong to a task head and may be left unread.
    groups : dict of str to tuple of str
        For each of `GROUPS`, the pieces of parameter names that belong to it.
    causal : bool
        Whether a token sees only itself and those before it.
    std : callable
        ``std(parameter_name, config) -> float``: standard deviation of the family's default initialisation; 0 keeps
        the constant that the parameter is built with.
    """

    name: str
    build: Callable[[Any], nn.Module]
    load: Callable[[str], tuple[nn.Module, dict[str, Any]]]
    shape: Callable[[Any], tuple[int, int, int]]
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
    blocks: str
    final_norm: str
    unused: tuple[str, ...]
    heads: tuple[str, ...]
    groups: dict[str, tuple[str, ...]]
    causal: bool
    std: Callable[[str, Any], float]


class Backbone(nn.Module):
    """A frozen transformer that maps vectors to vectors and names its layers.

    Layers are ``embed`` (what enters the first block: the input with positions added), ``block01`` to ``blockNN``
    (what leaves each block) and ``final`` (after the last norm; where a family has none, the last block's output).

    Parameters
    ----------
    model : Module
        The transformers model; its parameters are frozen here.
    family : Family
        What there is to know of its kind.
    config : PretrainedConfig
        Its configuration.

    Attributes
    ----------
    depth, width, max_tokens : int
        Number of blocks, hidden width, longest sequence in tokens.
    compute : torch.dtype
        What the matrix products run in; norms, positions and the residual stream stay in float32.
    """

    def __init__(self, model: nn.Module, family: Family, config: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.family = family
        self.config = config
        self.depth, self.width, self.max_tokens = family.shape(config)
        self.compute = torch.float32
        for path in family.unused:
            _replace(model, path, nn.Identity())

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, from the input side to the output side."""
        return ("embed", *(block_name(i) for i in range(1, self.depth + 1)), "final")

    def forward(self, embeds: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map embedded sequences to hidden states after the last norm.

        Parameters
        ----------
        embeds : Tensor, (batch, tokens, width)
            Right-padded sequences; what stands behind a sequence's length has no influence on its real tokens.
        lengths : Tensor of int, (batch,), optional
            Real tokens of each sequence; None means all of them.

        Returns
        -------
        Tensor, (batch, tokens, width)
            In float32 for every ``compute``: the residual stream keeps its precision.
        """
        # A causal model never looks to the right, where all padding is, so it needs no mask and keeps its fast kernel.
        mask = None
        if lengths is not None and not self.family.causal:
            mask = (torch.arange(embeds.shape[1], device=embeds.device) < lengths[:, None]).to(torch.int64)
        with torch.autocast(embeds.device.type, dtype=torch.bfloat16, enabled=self.compute == torch.bfloat16):
            return self.family.run(self.model, embeds, mask)

    def set_compute(self, dtype: torch.dtype) -> None:
        """Run the matrix products in ``dtype`` (float32 or bfloat16).

        Only the weights of the projections are rounded. With the residual stream kept in float32, the hidden states
        of an untrained GPT-2 small come seven times closer to float32's than with everything in bfloat16, at the same
        speed.
        """
        self.compute = dtype
        for module in self.blocks.modules():
            if _is_projection(module):
                module.to(dtype)

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, first to last."""
        blocks = self.model.get_submodule(self.family.blocks)
        if not isinstance(blocks, nn.ModuleList):
            raise TypeError(f"{self.family.name}: {self.family.blocks} is not a list of blocks")
        return blocks

    @contextmanager
    def recording(self, layers: dict[str, Callable[[Tensor], None]]) -> Iterator[None]:
        """Hand the hidden states of some layers to callbacks during every forward pass inside the context.

        Blocks above the deepest of these layers are taken out for the time of the context, so they cost nothing.

        Parameters
        ----------
        layers : dict of str to callable
            For each layer a function of its hidden states (batch, tokens, width).

        Raises
        ------
        InputError
            If a layer does not exist, naming those that do.
        """
        self.check_layers(layers)
        blocks = self.blocks
        handles = [self._hook(blocks, layer, callback) for layer, callback in layers.items()]
        deepest = max(self.layers.index(layer) for layer in layers)
        if deepest < self.depth:
            _replace(self.model, self.family.blocks, blocks[: max(deepest, 1)])
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            _replace(self.model, self.family.blocks, blocks)

    def check_layers(self, layers: Any) -> None:
        """Raise `InputError` if one of ``layers`` is not a layer of this backbone."""
        for layer in layers:
            if layer not in self.layers:
                raise InputError(
                    f"layer {layer!r}: this {self.family.name} has embed, {block_name(1)} to {block_name(self.depth)} "
                    "and final; choose among them"
                )

    def _hook(self, blocks: nn.ModuleList, layer: str, callback: Callable[[Tensor], None]) -> Any:
        if layer == "embed":
            return blocks[0].register_forward_pre_hook(lambda _module, inputs: callback(inputs[0]))
        if layer == "final" and self.family.final_norm:
            module = self.model.get_submodule(self.family.final_norm)
        else:
            module = blocks[self.depth - 1 if layer == "final" else self.layers.index(layer) - 1]
        return module.register_forward_hook(lambda _module, _inputs, output: callback(_tensor(output)))

    def group_of(self, parameter: str) -> str:
        """Return the group of one of this backbone's parameters (as named by ``named_parameters``)."""
        for group, pieces in self.family.groups.items():
            if any(piece in parameter for piece in pieces):
                return group
        raise KeyError(f"{self.family.name}: the parameter {parameter} belongs to no group")


def block_name(number: int) -> str:
    """Return the name of a block: ``block01`` for the first."""
    return f"block{number:02d}"


def _is_projection(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (nn.Linear, Conv1D))


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
