"""Registers the families of models that Lu et al. (2021) compare with, and counts trained parameters as they do."""

from reservoir.backbones.backbone import Backbone, trained_counts
from reservoir.backbones.registry import register
from reservoir.paper.cnn import CNN
from reservoir.paper.linformer import LINFORMER
from reservoir.paper.lstm import LSTM
from reservoir.tasks.task import Task

for family in (LSTM, LINFORMER, CNN):
    register(family)


def paper_counts(backbone: Backbone, task: Task) -> dict[str, int] | None:
    """Return `trained_counts` as Lu et al. 2021 count them, without output bias and last norm; None if not GPT-2."""
    if backbone.family.name != "gpt2":
        return None
    width = backbone.width
    counts = trained_counts(backbone, task)
    counts["output"] -= task.outputs * max(task.classes, 1)  # a bias for each class, or for each target
    counts["layernorm"] = 4 * width * backbone.depth  # two norms in each block, each with a gain and a bias
    if task.name == "cifar10":  # counted with 16 values per token, not the 48 of a patch
        counts["input"] = (16 + 1) * width
    return counts
