"""The result of ``train``, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.readouts.evaluation import Evaluation
from reservoir_pipelines.drawing import INK, figure_of, picture, save, style
from reservoir_pipelines.output import Record
from reservoir_pipelines.plots import draw_course, in_unit
from reservoir_pipelines.training.journal import curve_points, read_journal
from reservoir_pipelines.training.run_folder import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """The result of a training.

    Parameters
    ----------
    run : str
        Folder of the run, for `predict` and ``reservoir attention``.
    steps : int
        Steps done.
    best_step : int or None
        Step of the best validation score, whose weights are kept; None if the loss diverged before the first
        validation.
    metric : str
        ``accuracy``, or ``R²`` of a regression, whose losses are squared errors of standardised targets.
    valid_score, valid_loss : float or None
        Score and loss of these weights on the validation split.
    test_score, test_loss : float or None
        Score and loss of these weights on the test split.
    test_score_of_all : float or None
        Test accuracy when sequences that were dropped as too long count as wrong.
    floor : float
        Validation score of a constant output, or of copying the input if that is higher.
    converged_step : int or None
        First validation from which on the score stays within 0.01 of the last one; None with fewer than three
        validations, or if the last score is not above the floor.
    diverged_step : int or None
        Step at which the loss diverged, if it did.
    groups : tuple of str
        The groups that were trained.
    trained : int
        Number of trained parameters.
    frozen_tensors : int
        Number of tensors that were not trained; a checksum shows that none has changed.
    seconds : float
        Wall time of the steps, without validations.
    evaluation : Evaluation or None
        Measures on the test split, in the unit of the data.
    swept : tuple of dict
        For each run of a sweep its values, ``valid_score``, ``valid_loss``, ``seconds`` and ``run``; the best first.
    """

    run: str
    steps: int
    best_step: int | None
    metric: str
    valid_score: float | None
    valid_loss: float | None
    test_score: float | None
    test_loss: float | None
    test_score_of_all: float | None
    floor: float
    converged_step: int | None
    diverged_step: int | None
    groups: tuple[str, ...]
    trained: int
    frozen_tensors: int
    seconds: float
    evaluation: Evaluation | None = field(compare=False)
    swept: tuple[dict[str, Any], ...] = ()

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return Path(self.run)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: ``step`` with ``loss``, or with ``valid_loss``."""
        return read_journal(self.path / METRICS)

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [line["loss"] for line in self.history if "loss" in line]

    @property
    def train_score(self) -> float | None:
        """Accuracy on the training rows over the last tenth of the steps; None for a regression."""
        right = [line["accuracy"] for line in self.history if line.get("accuracy") is not None]
        last = right[-max(1, len(right) // 10) :]
        return fmean(last) if last else None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Training:
        """Build a result from what `to_dict` returned."""
        found = values["evaluation"]
        evaluation = Evaluation.from_dict(found) if found else None
        lists = {"groups": tuple(values["groups"]), "swept": tuple(values["swept"])}
        return cls(**{**values, **lists, "evaluation": evaluation})


@picture
def plot_training(
    path: Path, history: Sequence[dict[str, Any]], best_step: int | None, title: str, *, metric: str = "accuracy"
) -> None:
    """Draw training and validation loss and score over the steps, with the best step marked; accuracies in percent."""
    figure = figure_of(10, 4, title)
    loss, score = figure.subplots(1, 2)
    factor, unit = in_unit(metric)
    _draw(loss, history, "loss", "valid_loss", best_step)
    style(loss, "step", "loss")
    _scale_losses(loss)
    _draw(score, history, "accuracy", "valid_score", best_step, factor)
    style(score, "step", unit)
    save(figure, path)


def _draw(
    axes: Axes, history: Sequence[dict[str, Any]], name: str, measured: str, best_step: int | None, factor: float = 1.0
) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    draw_course(axes, curve_points(history, name, factor), curve_points(history, measured, factor))
    if best_step is not None:
        axes.axvline(best_step, color=INK, linestyle="--", linewidth=1, label="best")
    axes.set_xlim(0, 1.03 * max([1, *(line["step"] for line in history)]))
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _scale_losses(axes: Axes) -> None:
    """Make the loss axis logarithmic if all losses are positive, with at least three plain numbers as labels."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    losses = np.concatenate([line.get_ydata() for line in axes.lines if line.get_label() in ("train", "valid")] or [[]])
    if not len(losses) or losses.min() <= 0:
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    locator = LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,))
    labelled = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    axes.yaxis.set_major_locator(locator if len(labelled) >= 3 else MaxNLocator(5))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
