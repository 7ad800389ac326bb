"""What tells one family of sequence models from another, and the groups of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from reservoir.backbones.built_here import FolderLoader
from reservoir.backbones.hub import HubLoader

GROUPS: tuple[str, ...] = ("positions", "layernorm", "attention", "feedforward", "recurrent")

Draw = Callable[[str, tuple[int, ...], Any, np.random.Generator], np.ndarray | None]
"""``draw(parameter_name, shape, config, generator)``: a tensor; None keeps the constant that it is built with."""


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it reads a sequence."""

    depth: int  # number of blocks
    width: int
    max_tokens: int | None  # longest sequence; None where nothing limits it
    causal: bool  # whether a token sees only itself and those before it
    multiple: int = 1  # sequences are padded to a multiple of so many tokens


@dataclass(frozen=True)
class Family:
    """The facts that tell one family of models from another; each family is one value of this type."""

    name: str  # the `model_type` of its configurations
    loader: HubLoader | FolderLoader
    shape: Callable[[Any], Shape]  # of a configuration
    # run(model, embeds, mask) -> hidden states (batch, tokens, width); the mask (batch, tokens) is 1 at real tokens and
    # None where it changes nothing
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
    blocks: str  # path of the list of blocks inside the model
    groups: dict[str, tuple[str, ...]]  # of some of GROUPS the pieces of parameter names; the first that matches counts
    draw: Draw  # its default initialisation
    scheme: str = "normal, deviation initializer_range"  # the same in words
    note: str = ""  # what else one should know of its models
    final_norm: str = ""  # path of the norm after the last block, if there is one
    # Paths of modules that no sequence of vectors passes through: the token embeddings, which an input layer replaces.
    # They are dropped from memory and do not count in the weights' digest.
    unused: tuple[str, ...] = ()
    door: str = ""  # path of the module that is the model's own way in, if it has one
    reads: str = ""  # what passes it: text, letters one by one, pixels, or sounds
    heads: tuple[str, ...] = ()  # prefixes of checkpoint entries of a task head, which may be left unread
    own: tuple[str, ...] = ()  # prefixes of parameters that no checkpoint has, drawn for every init
    attention: str = ""  # path inside a block of the module whose last output is its attention map, if there is one
    feedforward: tuple[str, ...] = ()  # paths inside a block of the modules that are its feedforward, in their order
    # Whether products may run in bfloat16: a recurrent state feeds its rounding back at every token.
    rounds: bool = True
