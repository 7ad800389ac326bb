"""Parameters of a backbone: their number by group, the number trained, and their deviations by layer."""

from __future__ import annotations

import math

import numpy as np

from reservoir.backbones.backbone import Backbone
from reservoir.backbones.family import GROUPS
from reservoir.tasks.task import Task, Vectors

# The paper counts the input layer of cifar10 for tokens of 16 values, although a patch of 4 x 4 pixels has 48.
PAPER_DIM = {"cifar10": 16}


def group_counts(backbone: Backbone) -> dict[str, int]:
    """Return the number of parameters of each of `GROUPS`; zero if the family has none."""
    counts = dict.fromkeys(GROUPS, 0)
    for name, parameter in backbone.named_parameters():
        counts[backbone.group_of(name)] += parameter.numel()
    return counts


def whole_count(backbone: Backbone) -> int:
    """Return the number of parameters of the model with its token embeddings, without the blocks that were cut off."""
    cut = backbone.shape.depth - backbone.depth
    per_block = sum(parameter.numel() for parameter in backbone.blocks[-1].parameters())
    return backbone.family.loader.count(backbone.config) - cut * per_block


def trained_counts(backbone: Backbone, task: Task) -> dict[str, int]:
    """Return how many parameters an FPT trains on a task, by group, without positions that no sequence reaches."""
    outputs = task.outputs * max(task.classes, 1)
    inputs = (task.form.dim + 1) if isinstance(task.form, Vectors) else task.form.vocabulary
    positions = 0
    for name in backbone.groups.get("positions", ()):
        shape = backbone.get_parameter(name).shape
        positions += min(shape[0], task.max_tokens) * math.prod(shape[1:])
    return {
        "output": outputs * (backbone.width + 1),
        "input": inputs * backbone.width,
        "layernorm": group_counts(backbone)["layernorm"],
        "positions": positions,
    }


def paper_counts(backbone: Backbone, task: Task) -> dict[str, int] | None:
    """Return `trained_counts` of a GPT-2 as Lu et al. 2021 count, without output bias and last norm; else None."""
    if backbone.family.name != "gpt2":
        return None
    width = backbone.width
    counts = trained_counts(backbone, task)
    counts["output"] -= task.outputs * max(task.classes, 1)
    counts["layernorm"] = 4 * width * backbone.depth
    if task.name in PAPER_DIM:
        counts["input"] = (PAPER_DIM[task.name] + 1) * width
    return counts


def deviations(backbone: Backbone) -> dict[str, np.ndarray]:
    """Return the deviation of each tensor by block, (depth,), NaN where a block has none (Lu et al. 2021, Figure 6)."""
    spread: dict[str, np.ndarray] = {}
    for number, block in enumerate(backbone.blocks):
        for name, parameter in block.named_parameters():
            values = spread.setdefault(name, np.full(backbone.depth, np.nan))
            values[number] = parameter.detach().float().std(correction=0).item()
    return spread
