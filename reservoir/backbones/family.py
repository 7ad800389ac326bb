"""Description of a family of sequence models, and the groups of their parameters."""

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
"""``draw(parameter_name, shape, config, generator)`` returns a tensor, or None to keep the initial constant."""


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it reads a sequence."""

    depth: int  # number of blocks
    width: int
    max_tokens: int | None  # longest sequence; None if unlimited
    causal: bool  # whether a token sees only itself and those before it
    multiple: int = 1  # sequences are padded to a multiple of so many tokens


@dataclass(frozen=True)
class Family:
    """A family of models: how to build, load, run and draw them, and where their parts are."""

    name: str  # the `model_type` of its configurations
    loader: HubLoader | FolderLoader
    shape: Callable[[Any], Shape]  # of a configuration
    # run(model, embeds, mask) -> hidden states (batch, tokens, width); the mask (batch, tokens) is 1 at real tokens and
    # None if no token is padding
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
    blocks: str  # path of the list of blocks inside the model
    groups: dict[str, tuple[str, ...]]  # group -> parts of its parameters' names; the first group that matches counts
    draw: Draw  # its default initialisation
    scheme: str = "normal, deviation initializer_range"  # the initialisation in words
    note: str = ""  # limitations of its models
    final_norm: str = ""  # path of the norm after the last block, if any
    # Paths of modules that a sequence of vectors does not use: the token embeddings, which an input layer replaces.
    # They are dropped from memory and left out of the weights' digest.
    unused: tuple[str, ...] = ()
    native_input: str = ""  # path of the model's own input module, if it has one
    reads: str = ""  # data of the native input: text, letters (one token each), pixels, or sounds
    heads: tuple[str, ...] = ()  # prefixes of the tensors of task heads, which are not loaded
    unsaved: tuple[str, ...] = ()  # prefixes of parameters that no checkpoint has; they are drawn for every init
    attention: str = ""  # path inside a block of the module whose last output is the attention map, if any
    feedforward: tuple[str, ...] = ()  # paths inside a block of its feedforward modules, in order
    # Whether products may run in bfloat16. Recurrent models may not: the state feeds its rounding back at every token.
    allows_bfloat16: bool = True
