"""What ``train`` returns, and its picture."""

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
from reservoir_pipelines.training.journal import course, read_journal
from reservoir_pipelines.training.run import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """What a training came to.

    Parameters
    ----------
    run : str
        Folder of the run, for `predict` and ``reservoir attention``.
    steps : int
        Steps done.
    best_step : int or None
        Steps after which the weights did best on the validation split; None if the loss diverged before the first
        validation.
    metric : str
        What the scores are: ``accuracy``, or ``R²`` of a regression, whose losses are squared errors of standardised
        targets.
    valid_score, valid_loss : float or None
        Of these weights.
    test_score, test_loss : float or None
        Of these weights.
    test_score_of_all : float or None
        The test accuracy with sequences left out as too long counted as wrong.
    floor : float
        What a constant output scores on the validation split, or copying what is shown, where that is more.
    converged_step : int or None
        First of two validations or more from which on the score stayed within 0.01 of the last one's; None after fewer
        than three, and where the last is not above the floor.
    diverged_step : int or None
        Step at which the loss diverged.
    groups : tuple of str
        What was trained.
    trained : int
        Number of values that were trained.
    frozen_tensors : int
        Number of tensors that were not; each was compared with itself before training and has not changed by a bit.
    seconds : float
        Time of the steps, without validations.
    evaluation : Evaluation or None
        How these weights do on the test split, in the data's own unit.
    swept : tuple of dict
        Of each run of a sweep its values, ``valid_score``, ``valid_loss``, ``seconds`` and ``run``, the best first.
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
        """Accuracy on the training rows, over the last tenth of the steps; None of a regression."""
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
    """Draw loss and score over the steps, on train and on valid, with the chosen step marked; shares in percent."""
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

    draw_course(axes, course(history, name, factor), course(history, measured, factor))
    if best_step is not None:
        axes.axvline(best_step, color=INK, linestyle="--", linewidth=1, label="best")
    axes.set_xlim(0, 1.03 * max([1, *(line["step"] for line in history)]))
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _scale_losses(axes: Axes) -> None:
    """Make the axis of positive losses logarithmic, with at least three labels, which are plain numbers."""
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
