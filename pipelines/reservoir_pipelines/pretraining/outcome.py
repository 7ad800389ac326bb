"""What ``pretrain`` returns, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_pipelines.drawing import INK, figure_of, picture, save, style
from reservoir_pipelines.output import Record
from reservoir_pipelines.plots import draw_course
from reservoir_pipelines.training.journal import course


@dataclass(frozen=True, kw_only=True)
class Pretraining(Record):
    """What a pretraining came to.

    On bit memory there is no next token, and instead of a loss in bits there is the share of bits recalled.

    Parameters
    ----------
    folder : str
        The model, as transformers keeps one; for ``--backbone``.
    corpus : dict
        What it was trained on.
    steps, tokens : int
        Steps, and tokens read in them.
    parameters : int
        Number of the model's parameters.
    seconds : float
        Time of the steps.
    unit : str or None
        What the losses are given per: ``byte`` or ``token``.
    valid_bits, test_bits : float or None
        Mean loss on the held-out parts, in bits per unit.
    entropy : float or None
        The least mean loss possible, in bits per unit, where that is known.
    valid_accuracy, test_accuracy : float or None
        Share of right labels on held-out rows, of a task.
    floor : float or None
        The share that a constant, or copying what is shown, gets right.
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
        """Return how the model does on ``valid`` or ``test``: ``1.873 bits per byte``, ``99.98% right (75% ...)``."""
        bits, accuracy = getattr(self, f"{split}_bits"), getattr(self, f"{split}_accuracy")
        if bits is not None:
            return f"{bits:.3f} bits per {self.unit}"
        return f"{100 * accuracy:.2f}% right ({100 * (self.floor or 0):.0f}% by copying)"


@picture
def plot_pretraining(
    path: Path, history: Sequence[dict[str, Any]], unit: str, entropy: float | None, title: str
) -> None:
    """Draw the loss over the steps, on train and on valid, beside the least possible."""
    figure = figure_of(7, 4, title)
    axes = figure.subplots()
    draw_course(axes, course(history, "bits"), course(history, "valid_bits"))
    if entropy is not None:
        axes.axhline(entropy, color=INK, linestyle="--", linewidth=1, label="least possible")
    style(axes, "step", f"bits per {unit}")
    save(figure, path)
