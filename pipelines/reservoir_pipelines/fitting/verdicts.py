"""What the test rows show: whether the reservoir adds to a baseline, how layers differ, and what remains to check."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from reservoir.column import RAW, Column
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import CacheOptions, FitOptions, RowOptions
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
    """Return what the scores on test show of the readouts of a fit.

    ``valid_error`` is the standard error of the saved readout's validation score; None if it is not known.
    """
    # Compare the readout of the reservoir with each baseline. The raw input and its statistics alone are no reservoir,
    # so there is nothing to compare.
    is_reservoir = any(isinstance(column, Column) for column in finals.best.source.columns)
    against = [
        compared_with(scores[baseline], scores[finals.best], scores[baseline].result.name)
        for baseline in (finals.baselines if is_reservoir else ())
    ]
    # That the reservoir adds something is no reason for a notice.
    sentences = [comparison.sentence for comparison in against if comparison.verdict != "adds"]
    points = operating_points(finals.saved, scores[finals.saved])
    # R² of a forecast also falls if a drifting series varies less in test, so the errors must be larger, too. (Other
    # targets may have several units, whose errors have no meaningful mean.)
    saved = scores[finals.saved]
    is_comparable = not task.horizon or saved.evaluation.scores["rmse"] > finals.saved.held_out_rmse
    cautions_on_scores = cautions(saved, valid_error if is_comparable else None)
    return Verdicts(
        against=tuple(against),
        layer_scores=layer_scores(finals.layers, scores, task),
        operating_points=points,
        notices=[*sentences, *cautions_on_scores, *threshold_cautions(points)],
    )


def compared_with(other: Scores, ours: Scores, name: str) -> Against:
    """Return what the test rows show of a reservoir's readout, ``ours``, against the ``other`` one, called ``name``."""
    p_value = p_value_of_difference(ours.evaluation, other.evaluation)
    return Against(
        name=name,
        verdict=verdict_of_difference(ours.evaluation, other.evaluation, p_value),
        metric=ours.result.metric,
        difference=ours.test_score - other.test_score,
        p_value=p_value,
        rows=ours.evaluation.rows,
        groups=ours.evaluation.groups,
        below_constant=ours.test_score < _constant_score(ours.evaluation, ours.result.metric)[1],
    )


def raw_choice_notes(best: Result, table: Sequence[Result]) -> list[str]:
    """Return a line if validation chose the raw input among the columns, because no test score of the others is shown.

    ``table`` has the results of all columns, and ``best`` is the chosen one.
    """
    results_of_reservoir = [result for result in table if result.columns != (RAW.name,)]
    if best.columns != (RAW.name,) or not results_of_reservoir:
        return []
    second = max(results_of_reservoir, key=lambda result: result.sort_key)
    score_of_raw = score_text(best.valid_score, best.metric)
    score_of_second = score_text(second.valid_score, second.metric)
    metric = best.metric.replace("_", " ")
    problem = f"validation chose the raw input alone ({metric} {score_of_raw}), not {second.title} ({score_of_second})"
    return [f"{problem}; --columns {second.name} shows what the reservoir adds on test"]


def patches_note(known: Known, folder: Path, options: FitOptions) -> list[str]:
    """Return the commands that compare a model of the user's own pictures with patches of the training pictures.

    Patches need no trained model and are often far more accurate than raw pixels, so whoever judges a model by raw
    pixels alone may overrate it. ``folder`` is that of the fit, and ``options`` are its options. Empty for other data
    than pictures, for a model that reads patches itself, and for an entry that does not record its options.
    """
    has_patches = any(view.spec.input.kind == "patches" for view in known.views)
    call = known.view.made_with.get("call", {})
    settings = call.get("settings")
    if not known.task.pictures or has_patches or not settings:
        return []
    # The same rows, read with the same options of the data, in the same cache, which is named unless it is the default.
    task = str(call["task"])
    row_options = as_group(without_where(settings), RowOptions)
    root = known.view.path.resolve().parents[2]  # an entry is the folder <cache>/features/<task>/<entry>
    cache = CacheOptions(cache=None if root == cache_root().resolve() else root)
    patches_folder = f"{folder}-patches"
    # The same options of the fit, so that the scores can be compared; but the columns of patches have other names.
    fit_options = replace(options, columns="all", out=Path(patches_folder))
    commands = [
        typed("extract", [task], row_options, cache),
        typed("fit", [task], cache, fit_options),
        typed("compare", [str(folder), patches_folder]),
    ]
    problem = (
        "raw pixels are a weak baseline; compare with patches of training pictures, which need no model"
    )
    return [f"{known.task.name}: {problem}: {' && '.join(commands)}"]


def cautions(scores: Scores, valid_error: float | None) -> list[str]:
    """Return a line for each sign that the test score is worse than it should be; empty if there is none.

    The signs are that all test rows get the same label, a test score below that of a constant prediction, and one far
    below the validation score. ``valid_error`` is the standard error of the latter; if it is None, the two scores are
    not compared.
    """
    result, evaluation = scores.result, scores.evaluation
    test_score = scores.test_score
    lines = _constant_label(scores)
    rows, metric = count_text(evaluation.rows, "test row"), result.metric.replace("_", " ")
    beginning = f"CAUTION: {metric} {score_text(test_score, result.metric)} on {rows} is"
    constant_text, constant_score = _constant_score(evaluation, result.metric)
    if test_score < constant_score:
        lines.append(f"{beginning} below {constant_text}; add rows or discard the readout")
    if result.test_interval and valid_error is not None:
        # The standard error of the test score towards validation, from the upper end of its 95% interval. The errors
        # of the two scores are independent, so their squares add.
        test_error = (result.test_interval[1] - test_score) / NormalDist().inv_cdf(0.975)
        error_of_difference = math.hypot(test_error, valid_error)
        if result.valid_score - test_score > CAUTION_ERRORS * error_of_difference:
            valid = f"validation ({score_text(result.valid_score, result.metric)})"
            remedy = "trust the test score, and check that the rows of all splits are alike"
            lines.append(f"{beginning} more than two standard errors below {valid}; {remedy}")
    return lines


def _constant_label(scores: Scores) -> list[str]:
    """Return a caution if all test rows or tokens, whose labels are of several classes, get one label; else no line."""
    evaluation = scores.evaluation
    # The columns of the confusion matrix are the predicted classes.
    predicted_classes = evaluation.confusion.sum(axis=0).nonzero()[0]
    has_several_classes = len(evaluation.recall) > 1
    has_one_list_of_classes = scores.labels.shape[1] == 1  # several labels of a row may have other classes
    if len(predicted_classes) != 1 or not has_several_classes or not has_one_list_of_classes:
        return []
    samples = "test rows" if evaluation.samples == evaluation.rows else "tokens of the test rows"
    problem = f"CAUTION: all {samples} get the label {evaluation.classes[predicted_classes[0]]!r}"
    remedy = "add rows of the other classes"
    takes_class_weights = scores.result.readout in ("ridge", "logistic")
    if takes_class_weights and scores.result.metric != "balanced_accuracy":
        remedy += ", or pass --class-weight balanced"
    return [f"{problem}, as by a constant; {remedy}"]


def _constant_score(evaluation: Evaluation, metric: str) -> tuple[str, float]:
    """Return the score of the best constant prediction, as the text of a caution and as a number."""
    if metric == "R²":
        return "0, that of predicting the mean", 0.0
    if metric == "balanced_accuracy":
        # The mean of the recalls: that of the constant label is 1, and those of all other classes are 0.
        share = 1 / max(1, len(evaluation.recall))
        return f"{share:.1%}, that of a constant label", share
    share = evaluation.scores["majority_baseline"]
    return f"{share:.1%}, that of the most common class alone", share


def operating_points(final: FinalReadout, scores: Scores) -> tuple[OperatingPoint, ...]:
    """Return the thresholds that keep rates of false positives on held-out rows, with what they do on the test rows.

    Empty unless the task has two classes, the readout has probabilities, and the test rows have both classes. A rate
    for which there are too few held-out rows has no threshold.
    """
    negatives, probabilities = final.held_out_negatives, scores.predicted.probabilities
    is_positive = scores.labels[:, 0] == 1
    has_both_classes = is_positive.any() and not is_positive.all()
    if not len(negatives) or probabilities is None or not has_both_classes:
        return ()
    # Of the second class, rounded as those of held-out rows are, so that equal probabilities compare equal.
    probabilities = np.round(probabilities[:, 0].astype(np.float64), 6)

    def interval(exceeds: np.ndarray, rows: np.ndarray) -> tuple[float, float] | None:
        """Return the 95% interval of the share of some rows, a mask (n,), that exceed a threshold."""
        return accuracy_interval(exceeds[rows], None if scores.units is None else scores.units[rows])

    points: list[OperatingPoint] = []
    for rate in FALSE_POSITIVE_RATES:
        threshold = threshold_for_rate(negatives, rate)
        if threshold is None:  # too few held-out rows
            continue
        exceeds = probabilities > threshold
        points.append(
            OperatingPoint(
                rate=rate,
                threshold=threshold,
                negatives=len(negatives),
                recall=float(exceeds[is_positive].mean()),
                false_positive_rate=float(exceeds[~is_positive].mean()),
                recall_interval=interval(exceeds, is_positive),
                false_positive_interval=interval(exceeds, ~is_positive),
            )
        )
    return tuple(points)


def threshold_cautions(points: Sequence[OperatingPoint]) -> list[str]:
    """Return a caution for the thresholds that let more false positives through on test than they should.

    They are set on rows that were held out of the fit, and the saved readout is fitted to these, too. So they
    may miss their rate, most of all if many rows have nearly the same probability.
    """
    # A point counts if the whole 95% interval of its rate on test lies above the rate that it should keep.
    exceeded = [
        point
        for point in points
        if point.false_positive_interval and point.false_positive_interval[0] > point.rate
    ]
    if not exceeded:
        return []
    rates = ", ".join(f"{point.false_positive_rate:.1%} instead of {point.rate:.0%}" for point in exceeded)
    return [f"CAUTION: false positives on test exceed their targets ({rates}); set thresholds on new rows"]


def layer_scores(
    layers: Sequence[Layer], scores: Mapping[FinalReadout, Scores], task: Task
) -> tuple[LayerScore, ...]:
    """Return the scores of layers, each with its difference to the layer with the best validation score.

    Test scores choose nothing here: they are only shown.
    """
    if not layers:
        return ()
    best = max(layers, key=lambda layer: layer.result.sort_key)
    scores_of_layers: list[LayerScore] = []
    for layer in layers:
        result_on_test = scores[layer.final].result
        difference = None  # the best layer has none to itself
        if layer is not best:
            difference = difference_on_test(scores[layer.final], scores[best.final], task)
        scores_of_layers.append(
            LayerScore(
                layer=layer.name,
                # `Layer.result` has the validation score by which the layers were compared; the final readout's may
                # differ slightly.
                result=replace(
                    layer.result,
                    test_score=result_on_test.test_score,
                    test_interval=result_on_test.test_interval,
                    **{name: getattr(result_on_test, name) for name in PROBING},
                ),
                valid_interval=layer.final.valid_interval,
                difference=difference and difference.value,
                difference_interval=difference and difference.interval,
                p_value=difference and difference.p_value,
            )
        )
    return tuple(scores_of_layers)


def difference_on_test(scores: Scores, other: Scores, task: Task) -> Difference:
    """Return the score of a readout minus that of another on the same test rows of a task."""
    # The tokens of a row may be samples of one readout and outputs of a sample of the other. Their labels have the same
    # order, so both are reshaped alike: a row for each class number, or for the values of each token.
    outputs = 1 if task.classes else task.outputs
    true_labels = scores.labels.reshape(-1, outputs)
    predicted = scores.predicted.labels.reshape(-1, outputs)
    predicted_by_other = other.predicted.labels.reshape(-1, outputs)
    # Rows, or their groups or distinct inputs, are independent of each other. Each label has the unit of its row.
    unit_of_row = np.arange(len(scores.counts)) if scores.units is None else scores.units
    labels_per_sample = scores.labels.shape[1] // outputs
    units = np.repeat(unit_of_row, scores.counts * labels_per_sample)
    evaluations = scores.evaluation, other.evaluation
    is_balanced = scores.result.metric == "balanced_accuracy"
    return paired_difference(
        evaluations, true_labels, (predicted, predicted_by_other), units, balanced=is_balanced
    )
