"""The stage ``compare``: pairs the predictions of two fits or runs on the same test rows."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.readouts.evaluation import balanced_interval, evaluate_labels
from reservoir.readouts.linear import metric_name
from reservoir.readouts.paired import paired_difference
from reservoir_pipelines.files import read_checked, require_intact
from reservoir_pipelines.fitting.predictions_csv import (
    BEST,
    GROUP_COLUMN,
    GROUP_NUMBER,
    PREDICTIONS,
    RESERVOIR,
)
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.training.run_folder import RESULT

# A readout was chosen by its score on validation rows, so only test rows compare two of them.
SPLIT = "test"
BALANCED = "balanced_accuracy"


@dataclass(frozen=True, kw_only=True)
class Comparison(Record):
    """Two fits or runs on the same test rows.

    Parameters
    ----------
    first, second : Path
        The folders that were compared.
    metric : {"accuracy", "balanced_accuracy", "R²"}
        The metric of the scores: balanced accuracy if both were chosen by it.
    rows : int
        Number of test rows that both predict; the scores are those on these rows.
    groups : int
        Number of groups of these rows, or of the stretches or distinct inputs that intervals count; 0 without any.
    only_first, only_second : int
        Numbers of test rows that only one of them predicts.
    first_score, second_score : float
        Scores of the model of a run, or of the best readout of the reservoir, even if the fit saved a baseline.
    first_interval, second_interval : tuple of (float, float), optional
        95% intervals of the scores over rows, or over their groups or units.
    difference : float
        ``first_score`` minus ``second_score``.
    difference_interval : tuple of (float, float), optional
        Paired 95% interval of the difference.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good.
    """

    first: Path
    second: Path
    metric: str
    rows: int
    groups: int
    only_first: int
    only_second: int
    first_score: float
    second_score: float
    first_interval: tuple[float, float] | None
    second_interval: tuple[float, float] | None
    difference: float
    difference_interval: tuple[float, float] | None
    p_value: float | None


LabelPlace = tuple[str, str]  # token and output of a label in its row, both "" if each row has one label
LabelPair = tuple[str, str]  # the true label and the predicted one


@dataclass(frozen=True, kw_only=True, eq=False)
class _Predictions:
    """The test predictions of a run's model, or of the best readout of a fit's reservoir."""

    folder: Path
    metric: str  # by which the readout was chosen
    classes: tuple[str, ...]  # empty for a regression
    # The labels of each row by their place, by the id of the row.
    rows: dict[str, dict[LabelPlace, LabelPair]]
    # The group of each row, or its unit as `row_units` returns it, by the row's id; empty if each row is a unit.
    groups: dict[str, str]


def compare(first: Path, second: Path) -> Comparison:
    """Compare two folders of `fit` or `train`; see `api.compare`."""
    first_run, second_run = _read(first), _read(second)
    common = [row for row in first_run.rows if row in second_run.rows]
    if not common:
        raise InputError(
            f"{first_run.folder} and {second_run.folder} have no test rows in common",
            "compare fits of the same data with the same split",
        )
    # Each token of a row is a sample, with one or several outputs; a row without tokens is one sample.
    counts = np.array([len({token for token, _ in first_run.rows[row]}) for row in common])
    classes = dict.fromkeys([*first_run.classes, *second_run.classes])  # those of both, each once
    codes = {name: number for number, name in enumerate(classes)}
    truth, *predicted = _paired_labels(first_run, second_run, common, codes, int(counts.sum()))
    # Evaluate both on these samples.
    groups = _units_of_both(first_run, second_run, common)
    metric = _common_metric(first_run, second_run)
    is_balanced = metric == BALANCED
    first_evaluation, second_evaluation = (
        evaluate_labels(truth, labels, [*codes], None, counts, groups, balanced=is_balanced)
        for labels in predicted
    )
    # Samples of one row depend on each other, and so do rows of one group: the difference is over rows or groups.
    units = np.repeat(np.arange(len(common)) if groups is None else groups, counts)
    difference = paired_difference(
        (first_evaluation, second_evaluation),
        truth,
        (predicted[0], predicted[1]),
        units,
        balanced=is_balanced,
    )
    interval_of = balanced_interval if is_balanced else attrgetter("interval")
    return Comparison(
        first=first_run.folder,
        second=second_run.folder,
        metric=metric,
        rows=len(common),
        groups=first_evaluation.groups,
        only_first=len(first_run.rows) - len(common),
        only_second=len(second_run.rows) - len(common),
        first_score=first_evaluation.scores[metric],
        second_score=second_evaluation.scores[metric],
        first_interval=interval_of(first_evaluation),
        second_interval=interval_of(second_evaluation),
        difference=difference.value,
        difference_interval=difference.interval,
        p_value=difference.p_value,
    )


def _units_of_both(
    first_run: _Predictions, second_run: _Predictions, rows: Sequence[str]
) -> np.ndarray | None:
    """Return the number of the group or unit (n,) of each common row; None if each row is a unit in both.

    If both have groups, and others, such as subjects and distinct inputs, rows that share one of either are in one
    unit, and so are all rows that are connected in this way: rows of two units then have nothing in common.
    """
    partitions = [
        np.unique([run.groups[row] for row in rows], return_inverse=True)[1]
        for run in (first_run, second_run)
        if run.groups
    ]
    if len(partitions) < 2:
        return partitions[0] if partitions else None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of the groups of both, in which each row connects its two groups.
    first_groups, second_groups = partitions
    first_count = int(first_groups.max()) + 1
    count = first_count + int(second_groups.max()) + 1
    connections = coo_array(
        (np.ones(len(rows)), (first_groups, first_count + second_groups)), shape=(count, count)
    )
    unit_of_group = connected_components(connections, directed=False)[1]
    return unit_of_group[first_groups]


def _common_metric(first_run: _Predictions, second_run: _Predictions) -> str:
    """Return the metric by which two readouts are compared; print a line if one of them was chosen by another."""
    if first_run.metric == second_run.metric == BALANCED:
        return BALANCED
    metric = metric_name(len(first_run.classes))
    for run in (first_run, second_run):
        if run.metric == BALANCED:
            notify(f"compared by {metric}, although {run.folder} was chosen by balanced accuracy")
    return metric


def _read(path: Path) -> _Predictions:
    """Return the test predictions in a folder of `fit` or `train`, or in the folder of a file such as readout.json."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", "name a folder that fit or train wrote")
    folder = path if path.is_dir() else path.parent
    file = folder / PREDICTIONS
    summary = next((folder / name for name in (SUMMARY, RESULT) if (folder / name).is_file()), None)
    if summary is None:
        raise InputError(
            f"{path}: not the folder of a fit or a run", "name a folder that fit or train wrote"
        )
    if not file.is_file():
        raise InputError(
            f"{folder}: no {PREDICTIONS}, which earlier versions did not write", "run its command again"
        )
    rows: dict[str, dict[LabelPlace, LabelPair]] = {}
    groups: dict[str, str] = {}
    with as_input_error(f"{folder}: damaged", "run the command that wrote it again"):
        summary_values = read_checked(summary)
        require_intact(file, summary_values)
        evaluation = summary_values["evaluation"]
        classes = tuple(map(str, evaluation["classes"]))
        column = _compared_column(summary_values, folder)
        for line in _lines(file):
            # Files with one label in each row have no columns for tokens and outputs.
            place = line.get("token", ""), line.get("output", "")
            # With very many labels, the file has one column of predictions (see `MAX_PREDICTIONS`).
            if column == RESERVOIR and column not in line:
                raise InputError(
                    f"{file}: too large to hold the predictions of the reservoir beside those of a baseline",
                    "run fit again with --columns, which saves no baseline",
                )
            labels = rows.setdefault(line["id"], {})
            if place in labels:
                raise InputError(
                    f"{file}: several test rows have the id {line['id']!r}, so they cannot be paired",
                    "give each row another id",
                )
            labels[place] = line["label"], line[column]
            group = next(
                (line[name] for name in ("unit", GROUP_COLUMN, GROUP_NUMBER) if name in line), None
            )
            if group is not None:
                groups[line["id"]] = group
        if evaluation.get("groups") and not groups:
            raise InputError(
                f"{file}: it lacks the units of its rows, which earlier versions did not write",
                "run its command again",
            )
    metric = summary_values.get("metric", "")
    return _Predictions(folder=folder, metric=metric, classes=classes, rows=rows, groups=groups)


def _compared_column(summary: Mapping[str, Any], folder: Path) -> str:
    """Return the column of the predictions that are compared; print a line if they are not those of the saved readout.

    Fits of two models on the same rows have the same baselines, which would show nothing of the models.
    """
    best = summary.get("best")  # None for a run of `train`
    saved_baseline = summary.get("reservoir", best) != best
    if not saved_baseline:
        return BEST
    notify(f"{folder}: its fit saved a baseline ({summary['title']}); the reservoir is compared")
    return RESERVOIR


def _lines(file: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of test rows of a file of predictions."""
    with file.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines, strict=True):
            if line["split"] == SPLIT:
                yield line


def _paired_labels(
    first_run: _Predictions,
    second_run: _Predictions,
    rows: Sequence[str],
    codes: dict[str, int],
    samples: int,
) -> list[np.ndarray]:
    """Return the true labels of common rows, and those that each predicts, all (samples, outputs).

    ``samples`` is the number of labelled tokens of all ``rows``. Labels are class numbers in ``codes``, or
    values. Raise `InputError` if the true labels differ.
    """
    remedy = "compare fits of the same label of the same data"
    problem = f"{first_run.folder} and {second_run.folder} have different labels"
    if bool(first_run.classes) != bool(second_run.classes):
        raise InputError(f"{problem}, classes in one and values in the other", remedy)
    # Of each label the truth and the prediction in the first, then those in the second.
    labels_of_both: list[tuple[str, str, str, str]] = []
    for row in rows:
        first_labels, second_labels = first_run.rows[row], second_run.rows[row]
        if first_labels.keys() != second_labels.keys():
            numbers_of_labels = f"{len(first_labels)} and {len(second_labels)} in row {row!r}"
            raise InputError(f"{problem} per row, {numbers_of_labels}", remedy)
        labels_of_both += [(*labels, *second_labels[place]) for place, labels in first_labels.items()]
    with as_input_error(
        f"{first_run.folder / PREDICTIONS} or {second_run.folder / PREDICTIONS}: damaged", "run fit again"
    ):
        as_number = codes.__getitem__ if codes else float
        numbers = np.array([[*map(as_number, labels)] for labels in labels_of_both])  # (labels, 4)
    # Labels are in the order row, token, output, so each of the four columns becomes (samples, outputs).
    truth, predicted, second_truth, second_predicted = numbers.T.reshape(4, samples, -1)
    # One run may have stored a value in float32, and the other in float64. Earlier versions of train standardised
    # values and converted them back, with a rounding error in proportion to the largest value.
    largest = np.abs(truth).max(initial=0.0)
    is_equal = np.abs(truth - second_truth) <= 1e-6 * largest
    if not is_equal.all():
        first_label, _, second_label, _ = labels_of_both[int(np.argmin(is_equal))]  # the first unequal pair
        raise InputError(f"{problem}, such as {first_label!r} and {second_label!r} of one row", remedy)
    return [truth, predicted, second_predicted]
