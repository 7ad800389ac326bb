"""The result of a training run: what it holds, and how the saved weights are scored on the test rows."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir.readouts.linear import metric_name
from reservoir.records import from_json
from reservoir.training.steps import FPTSteps, baseline, converged_step
from reservoir.training.trainer import State
from reservoir_pipelines.fitting.predictions import (
    BEST,
    LabelledRows,
    Predicted,
    ReadoutPredictions,
    write_predictions,
)
from reservoir_pipelines.output import Record
from reservoir_pipelines.training.checkpoints import load_trained
from reservoir_pipelines.training.job import Job
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


@dataclass(frozen=True)
class TrainedSteps:
    """The end of the steps of a run: the state, and the step at which the loss diverged, if it did."""

    state: State
    diverged_step: int | None = None


@dataclass(frozen=True)
class _TestScores:
    """The scores of the best weights on the test rows."""

    score: float
    loss: float
    evaluation: Evaluation


def training_result(
    job: Job, folder: RunFolder, steps: FPTSteps, trained: TrainedSteps, *, test: bool
) -> Training:
    """Return the result, with the score of the saved weights on the test rows in the unit of the data."""
    fpt = job.model.fpt
    task = job.prepared.task
    state = trained.state
    job.ranks.wait()  # until the first process has written checkpoints and journal
    tested = _test(job, folder, steps) if state.step and test else None
    floor = max(baseline(steps.rows.valid.y, task.classes), task.floor or 0.0)
    scores = [
        (line["step"], line["valid_score"])
        for line in folder.history
        if line.get("valid_score") is not None
    ]
    trained_parameters = [parameter for parameter in fpt.parameters() if parameter.requires_grad]
    return Training(
        run=str(folder.path),
        steps=trained.diverged_step or state.step,
        best_step=state.best_step if state.step else None,
        metric=metric_name(task.classes),
        valid_score=state.best.get("valid_score"),
        valid_loss=state.best.get("valid_loss"),
        test_score=tested.score if tested else None,
        test_loss=tested.loss if tested else None,
        test_score_of_all=job.prepared.kept("test") * tested.score if tested and task.classes else None,
        floor=floor,
        converged_step=converged_step(scores, floor),
        diverged_step=trained.diverged_step,
        groups=tuple(job.options.train or ()),
        trained=sum(parameter.numel() for parameter in trained_parameters),
        frozen_tensors=len(fpt.state_dict()) - len(trained_parameters),
        seconds=round(state.seconds, 3),
        evaluation=tested.evaluation if tested else None,
    )


def _test(job: Job, folder: RunFolder, steps: FPTSteps) -> _TestScores:
    """Score the best weights on the test rows, and write their predictions."""
    fpt = job.model.fpt
    task = job.prepared.task
    rows = steps.rows.test
    load_trained(folder.best, fpt)
    fpt.eval()
    scored = steps.score("test")
    labels = rows.y.reshape(len(rows.y), -1)
    if job.targets:
        # Targets were standardised for training; scores are in the unit of the data.
        y = job.targets.restore(rows.y).reshape(labels.shape)
        predicted = job.targets.restore(scored.predicted.reshape(rows.y.shape)).reshape(labels.shape)
        evaluation = evaluate_values(y, predicted, groups=rows.groups)
    else:
        names = [str(task.label(number)) for number in range(task.classes)]
        y, predicted = labels, scored.predicted.astype(int)
        evaluation = evaluate_classes(y, predicted, names, scored.margins, groups=rows.groups)
        evaluation = evaluation.with_baseline(task.floor, job.prepared.kept("test"))
    if job.ranks.first:
        _write_test_predictions(job, folder, y, predicted, rows.groups)
    return _TestScores(scored.score, scored.loss, evaluation)


def _write_test_predictions(
    job: Job, folder: RunFolder, y: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None
) -> None:
    """Write the labels of the test rows and the predictions of the best weights, both (rows, labels per row)."""
    task = job.prepared.task
    labels = y.reshape(len(y), task.readout_tokens, task.outputs)
    ids = job.prepared.split("test").ids[job.rows["test"]]
    predictions = ReadoutPredictions(
        name=BEST, of_splits={"test": Predicted(predicted, None)}, rows={"test": slice(None)}
    )
    write_predictions(
        folder.path, task, {"test": LabelledRows(ids=ids, y=labels, groups=groups)}, [predictions]
    )
