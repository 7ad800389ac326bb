"""What only Lu et al. (2021) need: their LSTM, Linformer and a convolutional network, and the rules of their code.

`reservoir.backbones.registry` loads the models' files, which register themselves, and `reservoir.tasks` loads
`variants`. Commands that show the paper's numbers import `paper_counts`; nothing else outside imports from this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservoir.backbones.backbone import Backbone
    from reservoir.tasks.task import Task


def paper_counts(backbone: Backbone, task: Task) -> dict[str, int] | None:
    """Return `trained_counts` as Lu et al. 2021 count them, without output bias and last norm; None if not GPT-2."""
    from reservoir.backbones.backbone import trained_counts  # imports torch, which the tasks do not need

    if backbone.family.name != "gpt2":
        return None
    width = backbone.width
    counts = trained_counts(backbone, task)
    counts["output"] -= task.outputs * max(task.classes, 1)  # a bias for each class, or for each target
    counts["layernorm"] = 4 * width * backbone.depth  # two norms in each block, each with a gain and a bias
    if task.name == "cifar10":  # counted with 16 values per token, not the 48 of a patch
        counts["input"] = (16 + 1) * width
    return counts
