"""The result of ``pretrain``, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_pipelines.drawing import INK, figure_of, picture, save, style
from reservoir_pipelines.output import Record
from reservoir_pipelines.plots import draw_course
from reservoir_pipelines.training.journal import curve_points


@dataclass(frozen=True, kw_only=True)
class Pretraining(Record):
    """The result of a pretraining: losses in bits for a language model, accuracies for bit memory.

    Parameters
    ----------
    folder : str
        Folder of the model, for ``--backbone``; transformers can load it.
    corpus : dict
        Description of the corpus.
    steps, tokens : int
        Number of steps, and of the tokens that they read.
    parameters : int
        Number of the model's parameters.
    seconds : float
        Wall time of the steps.
    unit : str or None
        Unit of the losses: ``byte`` or ``token``.
    valid_bits, test_bits : float or None
        Mean loss on the held-out parts of the corpus, in bits per unit.
    entropy : float or None
        Lowest possible mean loss in bits per unit, where it is known.
    valid_accuracy, test_accuracy : float or None
        Accuracy on held-out rows of a task.
    floor : float or None
        Accuracy of a constant output, or of copying the input.
    """

    folder: str
    corpus: dict[str, Any]
    steps: int
    tokens: int
    parameters: int
    seconds: float
    unit: str | None = None
    valid_bits: float | None = None
    test_bits: float | None = None
    entropy: float | None = None
    valid_accuracy: float | None = None
    test_accuracy: float | None = None
    floor: float | None = None

    def score_text(self, split: str) -> str:
        """Return the score of a split: ``1.873 bits per byte``, or ``99.98% right (75% by copying)``."""
        bits, accuracy = getattr(self, f"{split}_bits"), getattr(self, f"{split}_accuracy")
        if bits is not None:
            return f"{bits:.3f} bits per {self.unit}"
        return f"{100 * accuracy:.2f}% right ({100 * (self.floor or 0):.0f}% by copying)"


@picture
def plot_pretraining(
    path: Path, history: Sequence[dict[str, Any]], unit: str, entropy: float | None, title: str
) -> None:
    """Draw training and validation loss over the steps, with the lowest possible loss."""
    figure = figure_of(7, 4, title)
    axes = figure.subplots()
    draw_course(axes, curve_points(history, "bits"), curve_points(history, "valid_bits"))
    if entropy is not None:
        axes.axhline(entropy, color=INK, linestyle="--", linewidth=1, label="lowest possible")
    style(axes, "step", f"bits per {unit}")
    save(figure, path)
