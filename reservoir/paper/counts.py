"""Numbers of trained parameters, counted as Lu et al. (2021) count them."""

from reservoir.backbones import Backbone
from reservoir.backbones.backbone import trained_counts
from reservoir.tasks.task import Task


def paper_counts(backbone: Backbone, task: Task) -> dict[str, int] | None:
    """Return `trained_counts` as Lu et al. 2021 count them, without output bias and last norm; None if not GPT-2."""
    if backbone.family.name != "gpt2":
        return None
    width = backbone.width
    counts = trained_counts(backbone, task)
    counts["output"] -= task.outputs * max(task.classes, 1)
    counts["layernorm"] = 4 * width * backbone.depth
    if task.name == "cifar10":  # counted with 16 values per token, not the 48 of a patch
        counts["input"] = (16 + 1) * width
    return counts
