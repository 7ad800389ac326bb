"""The result of a training run."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from reservoir.readouts.evaluation import Evaluation
from reservoir.records import from_json
from reservoir_pipelines.output import Record
from reservoir_pipelines.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """The result of a training run.

    Parameters
    ----------
    run : str
        Folder of the run, for `predict` and ``reservoir attention``.
    steps : int
        Number of steps.
    best_step : int or None
        Step of the best validation score, whose weights are saved; the last step if the test rows are the
        validation rows, as in some tasks of the paper. None if the loss diverged before the first validation.
    metric : str
        ``accuracy``, or ``R²`` of a regression, whose losses are squared errors of standardised targets.
    valid_score, valid_loss, test_score, test_loss : float or None
        Scores and losses of the saved weights on the validation split and on the test split.
    test_score_of_all : float or None
        Test accuracy if sequences that were dropped because of their length count as wrong.
    floor : float
        Validation score of a constant output, or of copying the input if that is higher.
    converged_step : int or None
        Step of the first validation after which all scores stay within 0.01 of the last one; None with fewer than three
        validations, or if the last score is not above ``floor``.
    diverged_step : int or None
        Step at which the loss diverged, if it did.
    groups : tuple of str
        The groups that were trained.
    trained : int
        Number of trained parameters.
    frozen_tensors : int
        Number of tensors that were not trained; a checksum verifies that none has changed.
    seconds : float
        Wall time of the steps, without validations.
    evaluation : Evaluation or None
        Measures on the test split, in the unit of the data.
    swept : tuple of dict
        Tried values, ``valid_score``, ``valid_loss``, ``seconds`` and ``run`` of each run of a sweep, best run first.
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
        return RunFolder(self.path).history

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [line["loss"] for line in self.history if "loss" in line]

    @property
    def train_score(self) -> float | None:
        """Accuracy on the training rows over the last tenth of the steps; None for a regression."""
        accuracies = [line["accuracy"] for line in self.history if line.get("accuracy") is not None]
        last = accuracies[-max(1, len(accuracies) // 10) :]
        return fmean(last) if last else None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Training":
        """Build a result from what `to_dict` returned."""
        evaluation = Evaluation.from_dict(values["evaluation"]) if values["evaluation"] else None
        lists = {"groups": tuple(values["groups"]), "swept": tuple(values["swept"])}
        return from_json(cls, {**values, **lists, "evaluation": evaluation})
