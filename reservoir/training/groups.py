"""Trained parameters: groups by role, and the layer below which nothing is trained (Lu et al. 2021, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from reservoir.backbones import GROUPS, Backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.inputs.native import content_digest

FPT_GROUPS = ("input", "layernorm", "positions", "output")
"""Groups that a Frozen Pretrained Transformer trains."""

NAMES = ("input", "output", *GROUPS, "last-attention", "all")
"""Groups of ``--train``; ``last-attention`` is the attention of the last block, ``all`` every parameter."""


def parse_groups(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the groups of a comma-separated list, each once; raise `InputError` for an unknown group."""
    parts = text.split(",") if isinstance(text, str) else text
    groups = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for group in groups:
        if group not in NAMES:
            raise InputError(f"--train {group}: no such group; choose among {', '.join(NAMES)}")
    if not groups:
        raise InputError(f"--train: name at least one group of {', '.join(NAMES)}")
    return groups


def default_groups(backbone: Backbone) -> tuple[str, ...]:
    """Return the groups of `FPT_GROUPS` that this backbone has."""
    return tuple(group for group in FPT_GROUPS if group in ("input", "output", *backbone.groups))


def unfreeze(model: FPT, groups: Sequence[str]) -> tuple[str, ...]:
    """Make exactly the parameters of some groups trainable, and return their names."""
    roles = {name: _roles(model, name) for name, _ in model.named_parameters()}
    for group in groups:
        if not any(group in of for of in roles.values()):
            have = [name for name in NAMES if any(name in of for of in roles.values())]
            raise InputError(
                f"--train {group}: this {model.backbone.family.name} has no such parameters; it has {', '.join(have)}"
            )
    trained = tuple(name for name, of in roles.items() if of & set(groups))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


def trained_layer(model: FPT) -> str | None:
    """Return the highest layer up to which nothing is trained; None if a parameter before the first block is."""
    backbone = model.backbone
    blocks = [id(p) for block in backbone.blocks for p in block.parameters()]
    path = backbone.family.final_norm
    norm = [id(p) for p in backbone.model.get_submodule(path).parameters()] if path else []
    inside = {id(p) for p in backbone.parameters()}
    behind = {id(p) for p in model.output.parameters()} | set(blocks) | set(norm)
    if any(p.requires_grad and id(p) not in behind for p in model.parameters()):
        return None
    for number, block in enumerate(backbone.blocks):
        if any(p.requires_grad for p in block.parameters()):
            return backbone.layers[number]
    trains_norm = any(p.requires_grad and id(p) in inside for p in model.parameters())
    return backbone.layers[backbone.depth] if trains_norm else "final"


def frozen_digest(model: nn.Module) -> str:
    """Return the SHA-256 of names, types and bytes of all parameters and buffers that are not trained."""
    return content_digest(model, {name for name, parameter in model.named_parameters() if parameter.requires_grad})


def count(parameters: Iterable[nn.Parameter]) -> int:
    """Return the total number of values of some parameters."""
    return sum(parameter.numel() for parameter in parameters)


def _roles(model: FPT, name: str) -> set[str]:
    part, _, rest = name.partition(".")
    if part in ("inputs", "output"):
        return {part.removesuffix("s"), "all"}
    group = model.backbone.group_of(rest)
    last = f"{model.backbone.family.blocks}.{model.backbone.depth - 1}."
    return {group, "all"} | ({"last-attention"} if group == "attention" and f".{last}" in f".{rest}" else set())
