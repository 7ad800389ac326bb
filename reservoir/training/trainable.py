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
TRAINED_GROUPS = ("input", "output", *GROUPS, "last-attention", "all")
"""Groups of ``--train``; ``last-attention`` is the attention of the last block, ``all`` every parameter."""


def make_trainable(
    model: LoadedModel,
    groups: str | Sequence[str] | None,
    precision: str,
    *,
    dropout: float = 0.0,
    drops_below: bool = False,
) -> tuple[LoadedModel, tuple[str, ...]]:
    """Unfreeze groups of parameters of a model, by default those of an FPT; return the model and the groups.

    The model is changed in place. It was loaded in float32, in which trained weights stay; its frozen matrices get the
    ``precision``. The rate ``dropout`` applies above the lowest trained layer, with ``drops_below`` also below it.
    """
    backbone = model.fpt.backbone
    # A backbone without blocks returns its input, so it has nothing to train, and no layer `final`, which the output
    # layer reads.
    if not backbone.depth:
        raise InputError(
            f"--backbone {model.settings.backbone}: it has no blocks, and train needs some",
            "choose another backbone, such as mini",
        )
    chosen = split_names(groups) if groups else default_groups(backbone)
    # What is trained decides where dropout applies and which matrices are rounded.
    unfreeze(model.fpt, chosen)
    set_dropout(model.fpt, dropout, below=drops_below)
    # On a CPU, torch has no fused attention with dropout, and its dropout draws random numbers slowly. `speed_up` puts
    # faster equivalents in their place, with the rates that were just set; a GPU does not need them.
    if model.device.type == "cpu":
        speed_up(model.fpt)
    backbone.set_compute(precision)
    return replace(model, compute=backbone.compute), chosen


def default_groups(backbone: Backbone) -> tuple[str, ...]:
    """Return the groups of `FPT_GROUPS` that this backbone has."""
    return tuple(group for group in FPT_GROUPS if group in ("input", "output", *backbone.groups))


def unfreeze(model: FPT, groups: Sequence[str]) -> tuple[str, ...]:
    """Make exactly the parameters of some groups trainable, and return their names.

    Raise `InputError` if there are no groups, or for one that the model does not have.
    """
    backbone = model.backbone
    groups_of = _groups_of_parameters(model)
    available = [group for group in TRAINED_GROUPS if any(group in own for own in groups_of.values())]
    remedy = f"it has {', '.join(available)}"
    if not groups:
        raise InputError(f"--train: names no group of this {backbone.family.name}", remedy)
    for group in groups:
        if group not in available:
            raise InputError(f"--train {group}: not in this {backbone.family.name}", remedy)
    trained = tuple(name for name, own in groups_of.items() if own & set(groups))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


def _groups_of_parameters(model: FPT) -> dict[str, set[str]]:
    """Return the groups of each parameter by its name: that of its role, ``all``, and perhaps ``last-attention``."""
    backbone = model.backbone
    last_block = f".{backbone.family.blocks}.{backbone.depth - 1}."
    groups_of: dict[str, set[str]] = {}
    for name, _ in model.named_parameters():
        # A name is that of the part of the FPT (inputs, backbone or output), and the name in it.
        part, _, inner_name = name.partition(".")
        is_in_backbone = part == "backbone"
        role = backbone.group_of(inner_name) if is_in_backbone else part.removesuffix("s")
        groups_of[name] = {role, "all"}
        if role == "attention" and last_block in f".{inner_name}":
            groups_of[name].add("last-attention")
    return groups_of


def trained_layer(model: FPT) -> str | None:
    """Return the last layer up to which nothing is trained; None if a parameter before the first block is trained."""
    backbone = model.backbone
    layers, norm = backbone.layers, backbone.family.final_norm
    # The layer that the module of each parameter reads, by the identity of the parameter: the output layer reads
    # `final`, the last norm reads the output of the last block, and each block reads the layer below it. Blocks come
    # last, from the top down, so that a parameter of several blocks has the lowest layer.
    layer_below = {id(p): "final" for p in model.output.parameters()}
    if norm:
        last_block_layer = layers[backbone.depth]
        layer_below |= {id(p): last_block_layer for p in backbone.model.get_submodule(norm).parameters()}
    # The first layers are the inputs of the blocks; not ``strict``, because more layers follow.
    blocks_with_input = list(zip(layers, backbone.blocks, strict=False))
    for layer, block in reversed(blocks_with_input):
        layer_below |= {id(p): layer for p in block.parameters()}
    # The lowest of these layers over all trained parameters.
    lowest = "final"
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        layer = layer_below.get(id(parameter))
        if layer is None:  # of the input layer or of the positions, which come before the first block
            return None
        lowest = min(lowest, layer, key=layers.index)
    return lowest


def set_dropout(model: FPT, rate: float, *, below: bool = False) -> None:
    """Set the rate of every dropout; below the lowest trained layer it is zero, unless ``below`` is true."""
    # Below that layer nothing can overfit, and hidden states without dropout can be cached. With None, every module has
    # dropout.
    lowest_layer = None if below else trained_layer(model)
    if lowest_layer is None:
        modules_with_dropout = set(model.modules())
    else:
        # Layer n is the input of block n, both counted from 0.
        first_block = model.backbone.layers.index(lowest_layer)
        blocks_above = model.backbone.blocks[first_block:]
        modules_with_dropout = {module for block in blocks_above for module in block.modules()}
    for module in model.modules():
        module_rate = rate if module in modules_with_dropout else 0.0
        if isinstance(module, nn.Dropout):
            module.p = module_rate
        # Families whose attention is a function store the rate as a number.
        stored_rates = [
            name for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)
        ]
        for name in stored_rates:
            setattr(module, name, module_rate)
    config: Any = getattr(model.backbone.model, "config", None)
    if hasattr(config, "layerdrop"):  # audio models skip whole blocks at random in training
        config.layerdrop = 0.0
