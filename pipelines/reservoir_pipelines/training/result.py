"""The result of a training run: what it holds, and how the saved weights are scored on the test rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from reservoir.file_checks import from_json
from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir.readouts.linear import metric_name
from reservoir.tasks.task import Split
from reservoir.training.steps import FPTSteps
from reservoir_pipelines.fitting.predictions_csv import (
    BEST,
    LabelledRows,
    Predicted,
    ReadoutPredictions,
    row_units,
    write_predictions,
)
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.training.checkpoints import TrainedSteps
from reservoir_pipelines.training.job import Job
from reservoir_pipelines.training.run_folder import RunFolder

TOLERANCE = 0.01  # validation scores have converged when they stay this close to the last one
MIN_VALIDATIONS = 3  # smallest number of validations that can show convergence


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
        Validation score of the best constant output; in a task with a copy baseline, such as bit-memory, the
        accuracy of copying the input if that is higher.
    converged_step : int or None
        Step of the first validation after which all scores stay within 0.01 of the last one; None with fewer than three
        validations, or if the last score is not above ``floor``.
    diverged_step : int or None
        Step at which the loss diverged, if it did.
    stopped_step : int or None
        Step at which the run stopped because ``--patience`` validations had neither a better score nor an equal score
        with a lower loss; None if it did not stop early.
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
    trials : tuple of dict
        Values, ``valid_score``, ``valid_loss``, ``seconds`` and ``run`` of each run of a sweep, best run first.
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
    stopped_step: int | None = None
    trials: tuple[dict[str, Any], ...] = ()

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
        tenth = max(1, len(accuracies) // 10)
        last_accuracies = accuracies[-tenth:]
        return fmean(last_accuracies) if last_accuracies else None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Training":
        """Build a result from what `to_dict` returned, or its JSON, which has lists in place of tuples."""
        fields = dict(values)
        trials = fields.pop("swept", None) or fields.get("trials", ())  # earlier versions wrote "swept"
        evaluation = fields["evaluation"]
        converted = {
            "groups": tuple(fields["groups"]),
            "trials": tuple(trials),
            "evaluation": Evaluation.from_dict(evaluation) if evaluation else None,
        }
        return from_json(cls, {**fields, **converted})

    @classmethod
    def from_folder(cls, folder: Path, values: dict[str, Any]) -> "Training":
        """Build a result from the values stored in the folder of its run, which may have been moved since."""
        return cls.from_dict({**values, "run": str(folder)})


@dataclass(frozen=True)
class _TestScores:
    """The scores of the saved weights on the test rows."""

    score: float  # accuracy, or R² of a regression
    loss: float
    evaluation: Evaluation


def training_result(
    job: Job, folder: RunFolder, steps: FPTSteps, trained: TrainedSteps, test_rows: Split | None
) -> Training:
    """Return the result of a training, with the test scores of the saved weights if the caller gives the test rows.

    The test predictions are written into the folder.
    """
    fpt = job.model.fpt
    task = job.prepared.task
    state = trained.state
    # The score of a model that has learned nothing, and the step from which the run was clearly better.
    floor = max(baseline(steps.rows.valid.y, task.classes), task.floor or 0.0)
    valid_scores = [
        (line["step"], line["valid_score"])
        for line in folder.history
        if line.get("valid_score") is not None
    ]
    converged = converged_step(valid_scores, floor)
    has_saved_weights = state.step > 0  # else the run diverged before its first validation
    tested = None
    if has_saved_weights and test_rows is not None:
        tested = _test(job, folder, steps, test_rows)
    trained_parameters = [parameter for parameter in fpt.parameters() if parameter.requires_grad]
    return Training(
        run=str(folder.path),
        steps=trained.diverged_step or state.step,
        best_step=state.best_step if has_saved_weights else None,
        metric=metric_name(task.classes),
        valid_score=state.best.get("valid_score"),
        valid_loss=state.best.get("valid_loss"),
        test_score=tested.score if tested else None,
        test_loss=tested.loss if tested else None,
        test_score_of_all=job.prepared.kept("test") * tested.score if tested and task.classes else None,
        floor=floor,
        converged_step=converged,
        diverged_step=trained.diverged_step,
        stopped_step=state.step if trained.lost_patience else None,
        groups=tuple(job.options.train or ()),
        trained=sum(parameter.numel() for parameter in trained_parameters),
        frozen_tensors=len(fpt.state_dict()) - len(trained_parameters),
        seconds=round(state.seconds, 3),
        evaluation=tested.evaluation if tested else None,
    )


def _test(job: Job, folder: RunFolder, steps: FPTSteps, rows: Split) -> _TestScores:
    """Score the saved weights, which the model has, on the test ``rows``, and write their predictions for `compare`."""
    task = job.prepared.task
    job.model.fpt.eval()
    scored = steps.score(rows)
    # 1. Labels and predictions, both (rows, labels per row). A regression predicts standardised targets, which go back
    # to the unit of the data; the labels are read from the data, because converting back would round them.
    stored = job.prepared.split("test")
    index = job.rows["test"]
    y = stored.y[index].reshape(len(index), -1)
    if job.target_scale:
        predicted = job.target_scale.restore(scored.predicted.reshape(rows.y.shape)).reshape(y.shape)
    else:
        predicted = scored.predicted.astype(int)
    groups = None if stored.groups is None else stored.groups[index]
    stretches = None if stored.stretches is None else stored.stretches[index]
    units, note = row_units(task, index, groups, stretches, lambda: stored)
    # 2. The predictions of each row, which one of the processes writes.
    if job.ranks.first:
        if note:
            notify(note)
        labelled = LabelledRows(
            ids=stored.ids[index],
            y=y.reshape(len(y), task.readout_tokens, task.outputs),
            groups=groups,
            group_names=None if stored.group_names is None else stored.group_names[index],
            units=units,
        )
        predictions = ReadoutPredictions(
            name=BEST, of_splits={"test": Predicted(predicted, None)}, rows={"test": slice(None)}
        )
        write_predictions(folder.path, task, {"test": labelled}, [predictions])
        if task.horizon:
            notify(f"{task.name}: train does not score the last value as a forecast; fit does")
    # 3. The measures.
    if job.target_scale:
        evaluation = evaluate_values(y, predicted, groups=units)
        if task.horizon:
            evaluation = evaluation.of_forecast()
    else:
        names = [str(task.label(number)) for number in range(task.classes)]
        evaluation = evaluate_classes(y, predicted, names, scored.margins, groups=units)
        evaluation = evaluation.with_baseline(task.floor, job.prepared.kept("test"))
    return _TestScores(scored.score, scored.loss, evaluation)


def baseline(y: np.ndarray, classes: int) -> float:
    """Return the score of the best constant output for labels (rows, readout_tokens, outputs).

    It is the share of the most frequent class, a mean over the labels of a row, or R² 0 if there are no ``classes``.
    """
    if not classes:
        return 0.0
    labels_of_rows = y.reshape(len(y), -1)
    shares = [np.bincount(column).max() / len(y) for column in labels_of_rows.T]
    return float(np.mean(shares))


def converged_step(history: Sequence[tuple[int, float]], floor: float) -> int | None:
    """Return the first validated step after which the score stays close to its last value.

    ``history`` has the step and the score of each validation. None if the score still moves, if there are
    too few validations, or if the last score is not above ``floor``, the score of a constant output: such a
    run has not learned anything that could converge.
    """
    if len(history) < MIN_VALIDATIONS:
        return None
    last_step, last_score = history[-1]
    if not last_score > floor:  # so that NaN returns None, too
        return None
    # Walk back from the end while the scores stay close to the last one.
    first_close_step = last_step
    for step, score in reversed(history):
        is_close = abs(score - last_score) <= TOLERANCE  # False for NaN
        if not is_close:
            break
        first_close_step = step
    # If only the last score is close to itself, the score still moves.
    return first_close_step if first_close_step < last_step else None
