"""What the test rows show: whether the reservoir adds to a baseline, how layers differ, and cautions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from reservoir.column import RAW
from reservoir.readouts.evaluation import (
    MIN_UNITS,
    SIGNIFICANT,
    Evaluation,
    balanced_interval,
    evaluate_labels,
    p_value_of_difference,
)
from reservoir.readouts.paired import Difference, paired_difference
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.fitting.folds import groups_of_splits
from reservoir_pipelines.fitting.refit import FinalReadout, FinalReadouts, Layer
from reservoir_pipelines.fitting.results import Against, LayerScore
from reservoir_pipelines.output import count_text, score_text

# Standard errors by which a test score may lie below validation before a caution is printed.
CAUTION_ERRORS = 2


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What the test rows show of the readouts of a fit, beside their scores."""

    against: tuple[Against, ...]
    layer_scores: tuple[LayerScore, ...]
    notices: list[str]  # the lines to print: sentences about baselines, and cautions


def judge(
    finals: FinalReadouts, scores: Mapping[FinalReadout, Scores], valid_error: float | None, task: Task
) -> Verdicts:
    """Return what the scores on test show; ``valid_error`` is the standard error of the saved readout's validation."""
    warnings = cautions(scores[finals.saved], valid_error)
    # The raw input alone is no reservoir, so there is nothing to compare.
    baselines = finals.baselines if finals.best.source.columns != (RAW,) else []
    against = tuple(compare_with(scores[finals.best], scores[baseline]) for baseline in baselines)
    sentences = [comparison.sentence for comparison in against if comparison.verdict != "adds"]
    return Verdicts(
        against=against,
        layer_scores=layer_scores(finals.layers, scores, task),
        notices=[*sentences, *warnings],
    )


def compare_with(ours: Scores, baseline: Scores) -> Against:
    """Return what the test rows show of the reservoir's readout against a baseline."""
    first, second = ours.evaluation, baseline.evaluation
    p_value = p_value_of_difference(first, second)
    units = len(first.row_scores)
    difference = float(ours.result.test_score or 0) - float(baseline.result.test_score or 0)
    # The sign of the mean score of the rows decides, because the p-value is about it; balanced accuracy may differ.
    gain = float(first.row_scores.sum() - second.row_scores.sum())
    verdict = "no difference"
    if p_value is None or units < MIN_UNITS:
        verdict = "cannot be judged"
    elif p_value < SIGNIFICANT:
        verdict = "adds" if gain > 0 else "adds nothing"
    return Against(
        name=baseline.result.name,
        verdict=verdict,
        metric=ours.result.metric,
        difference=difference,
        p_value=p_value,
        rows=first.rows,
        groups=first.groups,
    )


def cautions(scores: Scores, valid_error: float | None) -> list[str]:
    """Return why a test score is worse than it should be: by one label for all rows, a constant, or validation.

    ``valid_error`` is the standard error of the validation score.
    """
    result, evaluation = scores.result, scores.evaluation
    test = result.test_score
    if test is None:
        return []
    lines = _constant_label(scores)
    name, constant = _constant_score(evaluation, result.metric)
    rows, metric = count_text(evaluation.rows, "test row"), result.metric.replace("_", " ")
    written = f"CAUTION: {metric} {score_text(test, result.metric)} on {rows} is"
    if test < constant:
        lines.append(f"{written} below {name}; add rows or discard the readout")
    if result.test_interval and valid_error is not None:
        # The standard error of the test score towards validation, from its interval.
        of_test = (result.test_interval[1] - test) / NormalDist().inv_cdf(0.975)
        if result.valid_score - test > CAUTION_ERRORS * math.hypot(of_test, valid_error):
            valid = f"validation ({score_text(result.valid_score, result.metric)})"
            remedy = "trust the test score, and check that the rows of all splits are alike"
            lines.append(f"{written} more than two standard errors below {valid}; {remedy}")
    return lines


def _constant_label(scores: Scores) -> list[str]:
    """Return a caution if all test rows get the same label."""
    evaluation = scores.evaluation
    predicted = evaluation.confusion.sum(axis=0).nonzero()[0]
    if len(predicted) != 1 or len(evaluation.recall) < 2 or evaluation.samples != evaluation.rows:
        return []
    problem = f"CAUTION: all test rows get the label {evaluation.classes[predicted[0]]!r}"
    balanced = "" if scores.result.metric == "balanced_accuracy" else ", or pass --class-weight balanced"
    return [f"{problem}, as by a constant; add rows of the other classes{balanced}"]


def _constant_score(evaluation: Evaluation, metric: str) -> tuple[str, float]:
    """Return the name and the score of the best constant prediction."""
    if metric == "R²":
        return "0, that of predicting the mean", 0.0
    if metric == "balanced_accuracy":
        share = 1 / max(1, len(evaluation.recall))
        return f"{share:.1%}, that of a constant label", share
    share = evaluation.scores["majority_baseline"]
    return f"{share:.1%}, that of the most common class alone", share


def layer_scores(
    layers: Sequence[Layer], scores: Mapping[FinalReadout, Scores], task: Task
) -> tuple[LayerScore, ...]:
    """Return the scores of layers, each with its difference to the layer with the best validation score."""
    if not layers:
        return ()
    # Test scores are only shown.
    leader = max(layers, key=lambda layer: layer.fit.result.sort_key)
    of_layers: list[LayerScore] = []
    for layer in layers:
        of_layer, of_leader = scores[layer.final], scores[leader.final]
        difference = None if layer is leader else _difference(of_layer, of_leader, task)
        of_layers.append(_score(layer, of_layer, difference, task))
    return tuple(of_layers)


def _evaluate_validation(final: FinalReadout, task: Task) -> Evaluation:
    """Return the evaluation of a readout on the validation rows, or on the held-out rows of all folds."""
    source, splits = final.source, list(final.predictions)
    predicted = np.concatenate([final.predictions[split].labels for split in splits])
    # Folds in time never hold out the oldest samples, each of which is a row.
    labels = np.concatenate([source.labels(split) for split in splits])[-len(predicted) :]
    counts = np.concatenate([source.counts(split) for split in splits])[-len(predicted) :]
    names = [str(task.label(number)) for number in range(task.classes)]
    return evaluate_labels(labels, predicted, names, None, counts, groups_of_splits(source.view, splits))


def _score(layer: Layer, scores: Scores, difference: Difference | None, task: Task) -> LayerScore:
    """Return the score of a layer, and on test its ``difference`` to the best layer, if it is another."""
    test = scores.result
    # The grid of penalties was scored by another solver than a single one, so its score is the one that was compared.
    result = replace(layer.fit.result, test_score=test.test_score, test_interval=test.test_interval)
    valid = _evaluate_validation(layer.final, task)
    balanced = result.metric == "balanced_accuracy"
    return LayerScore(
        layer=layer.name,
        result=result,
        valid_interval=balanced_interval(valid) if balanced else valid.interval,
        difference=difference and difference.value,
        difference_interval=difference and difference.interval,
        p_value=difference and difference.p_value,
    )


def _difference(scores: Scores, of_leader: Scores, task: Task) -> Difference:
    """Return the difference of two layers on the test rows."""
    # Tokens of a row are samples in one column and outputs of a sample in another; their labels have the same order.
    outputs = 1 if task.classes else task.outputs
    truth, first, second = (
        labels.reshape(-1, outputs)
        for labels in (scores.labels, scores.predicted.labels, of_leader.predicted.labels)
    )
    # Rows, or their groups or distinct inputs, are independent.
    unit_of_row = np.arange(len(scores.counts)) if scores.units is None else scores.units
    units = np.repeat(unit_of_row, scores.counts * (scores.labels.shape[1] // outputs))
    return paired_difference((scores.evaluation, of_leader.evaluation), truth, (first, second), units)
