"""What the test rows show: whether the reservoir adds to a baseline, and what is wrong with a test score."""

import math
from statistics import NormalDist

import numpy as np

from reservoir.readouts.evaluation import (
    MIN_UNITS,
    SIGNIFICANT,
    Evaluation,
    p_value_of_difference,
    standard_error,
)
from reservoir_pipelines.fitting.against import Against
from reservoir_pipelines.fitting.choice import units_of_samples
from reservoir_pipelines.fitting.column_fit import ColumnFit
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.output import count_text, score_text

# Standard errors by which a test score may lie below validation before a caution is printed.
CAUTION_ERRORS = 2


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


def cautions(scores: Scores, fit: ColumnFit, units: np.ndarray) -> list[str]:
    """Return why a test score is worse than it should be: by one label for all rows, a constant, or validation."""
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
    if result.test_interval and fit.sample_scores is not None:
        # The standard error of the test score towards validation, from the interval, and that of validation.
        of_test = (result.test_interval[1] - test) / NormalDist().inv_cdf(0.975)
        sample_scores = fit.sample_scores()
        of_valid = standard_error(sample_scores, units_of_samples(units, len(sample_scores)))
        if result.valid_score - test > CAUTION_ERRORS * math.hypot(of_test, of_valid):
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
