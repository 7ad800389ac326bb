"""What tells one family of sequence models from another, and the groups of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

GROUPS: tuple[str, ...] = ("positions", "layernorm", "attention", "feedforward", "recurrent")


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it reads a sequence.

    Parameters
    ----------
    depth : int
        Number of blocks.
    width : int
        Hidden width.
    max_tokens : int or None
        Longest sequence; None where nothing limits it.
    causal : bool
        Whether a token sees only itself and those before it.
    multiple : int, default 1
        Sequences are padded to a multiple of so many tokens.
    """

    depth: int
    width: int
    max_tokens: int | None
    causal: bool
    multiple: int = 1


class Maker(Protocol):
    """How the models of a family come into being."""

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights, less what no sequence of vectors needs."""
        ...

    def load(self, source: str, config: Any, **more: str) -> tuple[nn.Module, dict[str, Any]]:
        """Return the model of a folder or hub name in float32, and what its checkpoint lacks or has too much.

        ``more`` are further arguments of transformers' loader. The second value has the ``missing_keys``,
        ``unexpected_keys`` and ``mismatched_keys`` of transformers.
        """
        ...

    def count(self, config: Any) -> int:
        """Return the number of parameters of the whole model, token embeddings included, without building it."""
        ...


@dataclass(frozen=True)
class Family:
    """The facts that tell one family of models from another; each family is one value of this type.

    Parameters
    ----------
    name : str
        The ``model_type`` of its configurations.
    maker : Maker
        Builds and loads its models.
    shape : callable
        ``shape(config) -> Shape``.
    run : callable
        ``run(model, embeds, mask) -> hidden states`` (batch, tokens, width); ``mask`` (batch, tokens) is 1 at real
        tokens, and None where it changes nothing.
    blocks : str
        Path of the list of blocks inside the model.
    groups : dict of str to tuple of str
        For some of `GROUPS`, the pieces of parameter names that belong to it; the first that matches counts.
    draw : callable
        ``draw(parameter_name, shape, config, generator) -> array``: a tensor of the family's default initialisation;
        None keeps the constant that the parameter is built with.
    final_norm : str, default ""
        Path of the norm after the last block; empty where there is none.
    unused : tuple of str
        Paths of modules that no sequence of vectors passes through: the token embeddings, which an input layer
        replaces. They are dropped from memory and do not count in the weights' digest.
    heads : tuple of str
        Prefixes of checkpoint entries that belong to a task head and may be left unread.
    own : tuple of str
        Prefixes of parameters that checkpoints of this family do not have, and that are drawn for every init.
    attention : str, default ""
        Path inside a block of the module whose last output is its attention map; empty where there is none.
    feedforward : tuple of str
        Paths inside a block of the modules that are its feedforward, in their order; empty where there is none.
    rounds : bool, default True
        Whether products may run in bfloat16. A recurrent state feeds its rounding back at every token, so not there.
    """

    name: str
    maker: Maker
    shape: Callable[[Any], Shape]
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
    blocks: str
    groups: dict[str, tuple[str, ...]]
    draw: Callable[[str, tuple[int, ...], Any, np.random.Generator], np.ndarray | None]
    final_norm: str = ""
    unused: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    attention: str = ""
    feedforward: tuple[str, ...] = ()
    rounds: bool = True
