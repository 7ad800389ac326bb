"""Models with trainable groups (Lu et al. 2021, section 2.2), and dropout above the lowest trained layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from reservoir.backbones import GROUPS, Backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.loaded_model import LoadedModel
from reservoir.plan.columns import split_names
from reservoir.training.fast import speed_up

FPT_GROUPS = ("input", "layernorm", "positions", "output")  # trained by default
NAMES = ("input", "output", *GROUPS, "last-attention", "all")
"""Groups of ``--train``; ``last-attention`` is the attention of the last block, ``all`` every parameter."""


def make_trainable(
    model: LoadedModel,
    groups: str | Sequence[str] | None,
    precision: str,
    *,
    dropout: float = 0.0,
    drops_below: bool = False,
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Unfreeze groups of a model, by default those of an FPT, and set the ``precision`` of its frozen matrices.

    The model is loaded in float32, in which trained weights stay. The rate ``dropout`` applies above the lowest trained
    layer, with ``drops_below`` also below it.
    """
    backbone = model.fpt.backbone
    if not backbone.depth:
        raise InputError(
            f"--backbone {model.settings.backbone}: it has no blocks, and train needs some",
            "choose another backbone, such as mini",
        )
    chosen = split_names(groups) if groups else default_groups(backbone)
    unfreeze(model.fpt, chosen)
    set_dropout(model.fpt, dropout, below=drops_below)
    if model.device.type == "cpu":
        speed_up(model.fpt)
    backbone.set_compute(precision)
    return replace(model, compute=backbone.compute), chosen


def default_groups(backbone: Backbone) -> tuple[str, ...]:
    """Return the groups of `FPT_GROUPS` that this backbone has."""
    return tuple(group for group in FPT_GROUPS if group in ("input", "output", *backbone.groups))


def unfreeze(model: FPT, groups: Sequence[str]) -> tuple[str, ...]:
    """Make exactly the parameters of some groups trainable, and return their names."""
    backbone = model.backbone
    last_block = f".{backbone.family.blocks}.{backbone.depth - 1}."
    # The groups of each parameter: that of its role, ``all``, and perhaps ``last-attention``.
    groups_of: dict[str, set[str]] = {}
    for name, _ in model.named_parameters():
        part, _, rest = name.partition(".")
        role = part.removesuffix("s") if part in ("inputs", "output") else backbone.group_of(rest)
        groups_of[name] = {role, "all"}
        if role == "attention" and last_block in f".{rest}":
            groups_of[name].add("last-attention")
    available = [name for name in NAMES if any(name in roles for roles in groups_of.values())]
    for group in groups:
        if group not in available:
            raise InputError(
                f"--train {group}: not in this {backbone.family.name}", f"it has {', '.join(available)}"
            )
    trained = tuple(name for name, roles in groups_of.items() if roles & set(groups))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


def trained_layer(model: FPT) -> str | None:
    """Return the last layer up to which nothing is trained; None if a parameter before the first block is trained."""
    backbone = model.backbone
    layers, norm = backbone.layers, backbone.family.final_norm
    # For each parameter, the layer that its module reads. Blocks come last, from the top down, so that a parameter
    # of several blocks has the lowest layer.
    layer_below = {id(p): "final" for p in model.output.parameters()}
    if norm:
        top = layers[backbone.depth]
        layer_below |= {id(p): top for p in backbone.model.get_submodule(norm).parameters()}
    for layer, block in reversed([*zip(layers, backbone.blocks, strict=False)]):
        layer_below |= {id(p): layer for p in block.parameters()}
    # The lowest of these layers over all trained parameters.
    lowest = "final"
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        layer = layer_below.get(id(parameter))
        if layer is None:
            return None
        lowest = min(lowest, layer, key=layers.index)
    return lowest


def set_dropout(model: FPT, rate: float, *, below: bool = False) -> None:
    """Set the rate of every dropout; below the lowest trained layer it is zero, unless ``below`` is true."""
    # Below it nothing can overfit, and hidden states without dropout can be cached. Layer n is the input of block n.
    layer = None if below else trained_layer(model)
    with_dropout = {*model.modules()}
    if layer is not None:
        blocks_above = model.backbone.blocks[model.backbone.layers.index(layer) :]
        with_dropout = {module for block in blocks_above for module in block.modules()}
    for module in model.modules():
        module_rate = rate if module in with_dropout else 0.0
        if isinstance(module, nn.Dropout):
            module.p = module_rate
        # Families whose attention is a function store the rate as a number.
        for name in [n for n, value in vars(module).items() if "dropout" in n and isinstance(value, float)]:
            setattr(module, name, module_rate)
    config: Any = getattr(model.backbone.model, "config", None)
    if hasattr(config, "layerdrop"):  # audio models skip whole blocks at random in training
        config.layerdrop = 0.0
