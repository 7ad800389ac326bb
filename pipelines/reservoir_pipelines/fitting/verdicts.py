"""What the test rows show: whether the reservoir adds to a baseline, how layers differ, and what remains to check."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from reservoir.column import RAW
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import CacheOptions, OutOptions, RowOptions
from reservoir.readouts.evaluation import (
    FALSE_POSITIVE_RATES,
    Evaluation,
    accuracy_interval,
    threshold_for_rate,
)
from reservoir.readouts.paired import (
    Difference,
    p_value_of_difference,
    paired_difference,
    verdict_of_difference,
)
from reservoir.tasks.task import Task
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.refit import FinalReadout, FinalReadouts, Layer
from reservoir_pipelines.fitting.results import PROBING, Against, LayerScore, OperatingPoint, Result
from reservoir_pipelines.output import count_text, score_text

# Standard errors by which a test score may lie below validation before a caution is printed.
CAUTION_ERRORS = 2


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What the test rows show of the readouts of a fit, beside their scores."""

    against: tuple[Against, ...]
    layer_scores: tuple[LayerScore, ...]
    operating_points: tuple[OperatingPoint, ...]
    notices: list[str]  # the lines to print: sentences about baselines, and cautions


def judge(
    finals: FinalReadouts, scores: Mapping[FinalReadout, Scores], valid_error: float | None, task: Task
) -> Verdicts:
    """Return what the scores on test show; ``valid_error`` is the standard error of the saved readout's validation."""
    warnings = cautions(scores[finals.saved], valid_error)
    of_layers = layer_scores(finals.layers, scores, task)
    # Compare the readout of the reservoir with each baseline. The raw input alone is not a reservoir, so there is
    # nothing to compare.
    is_reservoir = finals.best.source.columns != (RAW,)
    against = [
        compared_with(scores[final], scores[finals.best], scores[final].result.name)
        for final in (finals.baselines if is_reservoir else ())
    ]
    sentences = [comparison.sentence for comparison in against if comparison.verdict != "adds"]
    points = operating_points(finals.saved, scores[finals.saved])
    return Verdicts(
        against=tuple(against),
        layer_scores=of_layers,
        operating_points=points,
        notices=[*sentences, *warnings, *threshold_cautions(points)],
    )


def compared_with(other: Scores, ours: Scores, name: str) -> Against:
    """Return how the readout ``ours`` of a reservoir does on the test rows against ``other``, called ``name``."""
    p_value = p_value_of_difference(ours.evaluation, other.evaluation)
    return Against(
        name=name,
        verdict=verdict_of_difference(ours.evaluation, other.evaluation, p_value),
        metric=ours.result.metric,
        difference=ours.test_score - other.test_score,
        p_value=p_value,
        rows=ours.evaluation.rows,
        groups=ours.evaluation.groups,
    )


def raw_choice_notes(best: Result, table: Sequence[Result]) -> list[str]:
    """Return a line if validation chose the raw input among the columns, because no test score of the others is shown.

    ``table`` has the results of all columns, and ``best`` is the chosen one.
    """
    others = [result for result in table if result.columns != (RAW.name,)]
    if best.columns != (RAW.name,) or not others:
        return []
    second = max(others, key=lambda result: result.sort_key)
    ours, theirs = (score_text(result.valid_score, result.metric) for result in (second, best))
    metric = best.metric.replace("_", " ")
    problem = f"validation chose the raw input alone ({metric} {theirs}), not {second.title} ({ours})"
    return [f"{problem}; --columns {second.name} shows what the reservoir adds on test"]


def patches_note(known: Known, folder: Path) -> list[str]:
    """Return the commands that compare a model of the user's own pictures with patches of the training pictures.

    Patches need no trained model and are often far more accurate than raw pixels, so whoever judges a model by raw
    pixels alone may overrate it. ``folder`` is that of the fit.
    """
    has_patches = any(view.spec.input.kind == "patches" for view in known.views)
    call = known.view.made_with.get("call", {})
    settings = call.get("settings")
    if not known.task.pictures or has_patches or not settings:
        return []
    # The same rows, read with the same options of the data, in the same cache.
    task, rows = str(call["task"]), as_group(without_where(settings), RowOptions)
    root = known.view.path.resolve().parents[2]
    cache = CacheOptions(cache=None if root == cache_root().resolve() else root)
    patches = f"{folder}-patches"
    commands = [
        typed("extract", [task], rows, cache),
        typed("fit", [task], cache, OutOptions(out=Path(patches))),
        typed("compare", [str(folder), patches]),
    ]
    problem = (
        "raw pixels are a weak baseline; compare with patches of training pictures, which need no model"
    )
    return [f"{known.task.name}: {problem}: {' && '.join(commands)}"]


def cautions(scores: Scores, valid_error: float | None) -> list[str]:
    """Return why a test score is worse than it should be: by one label for all rows, a constant, or validation.

    ``valid_error`` is the standard error of the validation score.
    """
    result, evaluation = scores.result, scores.evaluation
    test = scores.test_score
    lines = _constant_label(scores)
    name, constant = _constant_score(evaluation, result.metric)
    rows, metric = count_text(evaluation.rows, "test row"), result.metric.replace("_", " ")
    written = f"CAUTION: {metric} {score_text(test, result.metric)} on {rows} is"
    if test < constant:
        lines.append(f"{written} below {name}; add rows or discard the readout")
    if result.test_interval and valid_error is not None:
        # The standard error of the test score towards validation, from the upper end of its 95% interval. The errors
        # of the two scores are independent, so their squares add.
        test_error = (result.test_interval[1] - test) / NormalDist().inv_cdf(0.975)
        if result.valid_score - test > CAUTION_ERRORS * math.hypot(test_error, valid_error):
            valid = f"validation ({score_text(result.valid_score, result.metric)})"
            remedy = "trust the test score, and check that the rows of all splits are alike"
            lines.append(f"{written} more than two standard errors below {valid}; {remedy}")
    return lines


def _constant_label(scores: Scores) -> list[str]:
    """Return a caution if all test rows get the same label."""
    evaluation = scores.evaluation
    predicted = evaluation.confusion.sum(axis=0).nonzero()[0]  # the classes that are predicted at all
    has_several_classes = len(evaluation.recall) > 1
    has_one_label_per_row = evaluation.samples == evaluation.rows
    if len(predicted) != 1 or not has_several_classes or not has_one_label_per_row:
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


def operating_points(final: FinalReadout, scores: Scores) -> tuple[OperatingPoint, ...]:
    """Return the thresholds that keep rates of false positives, from held-out rows, with their scores on test."""
    negatives, probabilities = final.held_out_negatives, scores.predicted.probabilities
    if not len(negatives) or probabilities is None:
        return ()
    # Of the second class, rounded as those of held-out rows are, so that equal probabilities compare equal.
    probabilities = np.round(probabilities[:, 0].astype(np.float64), 6)
    is_positive = scores.labels[:, 0] == 1
    points: list[OperatingPoint] = []
    for rate in FALSE_POSITIVE_RATES:
        threshold = threshold_for_rate(negatives, rate)
        if threshold is None or is_positive.all() or not is_positive.any():
            continue
        exceeds = probabilities > threshold
        intervals = [
            accuracy_interval(exceeds[rows], None if scores.units is None else scores.units[rows])
            for rows in (is_positive, ~is_positive)
        ]
        points.append(
            OperatingPoint(
                rate=rate,
                threshold=threshold,
                negatives=len(negatives),
                recall=float(exceeds[is_positive].mean()),
                false_positive_rate=float(exceeds[~is_positive].mean()),
                recall_interval=intervals[0],
                false_positive_interval=intervals[1],
            )
        )
    return tuple(points)


def threshold_cautions(points: Sequence[OperatingPoint]) -> list[str]:
    """Return a caution for the thresholds that let more false positives through on test than they should.

    They are set on rows that were held out of the fit, and the saved readout is fitted to these, too. So they
    may miss their rate, most of all if many rows have nearly the same probability.
    """
    missed = [
        point
        for point in points
        if point.false_positive_interval and point.false_positive_interval[0] > point.rate
    ]
    if not missed:
        return []
    rates = ", ".join(f"{point.false_positive_rate:.1%} instead of {point.rate:.0%}" for point in missed)
    return [f"CAUTION: false positives on test exceed their targets ({rates}); set thresholds on new rows"]


def layer_scores(
    layers: Sequence[Layer], scores: Mapping[FinalReadout, Scores], task: Task
) -> tuple[LayerScore, ...]:
    """Return the scores of layers, each with its difference to the layer with the best validation score."""
    if not layers:
        return ()
    # Test scores are only shown.
    leader = max(layers, key=lambda layer: layer.result.sort_key)
    of_layers: list[LayerScore] = []
    for layer in layers:
        test = scores[layer.final].result
        difference = None
        if layer is not leader:
            difference = difference_on_test(scores[layer.final], scores[leader.final], task)
        of_layers.append(
            LayerScore(
                layer=layer.name,
                result=replace(
                    layer.result,
                    test_score=test.test_score,
                    test_interval=test.test_interval,
                    **{name: getattr(test, name) for name in PROBING},
                ),
                valid_interval=layer.final.valid_interval,
                difference=difference and difference.value,
                difference_interval=difference and difference.interval,
                p_value=difference and difference.p_value,
            )
        )
    return tuple(of_layers)


def difference_on_test(scores: Scores, of_other: Scores, task: Task) -> Difference:
    """Return the score of a readout minus that of another on the same test rows of a task."""
    # Tokens of a row are samples in one column and outputs of a sample in another; their labels have the same order.
    outputs = 1 if task.classes else task.outputs
    truth, first, second = (
        labels.reshape(-1, outputs)
        for labels in (scores.labels, scores.predicted.labels, of_other.predicted.labels)
    )
    # Rows, or their groups or distinct inputs, are independent.
    unit_of_row = np.arange(len(scores.counts)) if scores.units is None else scores.units
    labels_per_sample = scores.labels.shape[1] // outputs
    units = np.repeat(unit_of_row, scores.counts * labels_per_sample)
    return paired_difference((scores.evaluation, of_other.evaluation), truth, (first, second), units)
