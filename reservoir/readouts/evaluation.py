"""Comparison of predictions with labels: scikit-learn's scores, and their intervals."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from reservoir.file_checks import fits, from_json
from reservoir.readouts.kernel_ridge import KernelReadout
from reservoir.readouts.linear import LinearReadout, Readout, divisors_of_outputs

# With fewer rows or groups, no sign flip can reach p < .05: the smallest p-value of five is 2 / 2**5.
MIN_UNITS = 6
MAX_PRINTED = 100  # classes whose confusion matrix is written to JSON, at most
MAX_VALUES = 2000  # pairs of a true and a predicted value that are plotted
MAX_UNITS = 2000  # most units that are resampled; more rows are grouped
MAX_LABELS = 8  # largest number of labels of a row that have scores of their own
FALSE_POSITIVE_RATES = (0.01, 0.05)  # for which the recall of the second of two classes is a score
Z95 = 1.96  # standard deviations on each side of a 95% interval
# Groups that an interval needs. Two have a single difference, whose variance nothing can tell: Student's t has a
# quantile of 12.7 then, and still an interval may leave out 0 where no p-value could be small.
MIN_GROUPS = 3


CalibrationBin = tuple[int, float, float]
"""The labels whose probability is in a bin: their number, their mean probability, and the share that is correct."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Scores of predictions against labels.

    The scores of classes are ``accuracy``, ``majority_baseline`` (always the most common class),
    ``balanced_accuracy`` (mean recall of the classes that occur), ``macro_f1``, and for two classes
    ``auc``, ``recall_at_1%_false_positives`` and ``recall_at_5%_false_positives``; those of real
    targets are ``R²``, ``rmse`` and ``mae``, each a mean over the outputs. If rows have 2 to 8 labels,
    those of classes are means over the labels, too, and ``accuracy_of_label_0`` ... (``R²_of_label_0``,
    ``rmse_of_label_0``) are added; of a forecast these are ``R²_1_step_ahead``, ``R²_2_steps_ahead`` and
    so on. Some tasks add ``copy_baseline`` (copying the visible input) and ``accuracy_of_all`` (sequences
    left out as too long count as wrong).
    """

    samples: int  # labels that were compared
    scores: dict[str, float]
    interval: tuple[float, float] | None  # 95%, of the accuracy or of R²
    recall: dict[str, float]  # share of correct labels of each class that occurs
    classes: tuple[str, ...]  # names of the rows and columns of ``confusion``
    confusion: np.ndarray  # samples of each class (rows) with each label
    # Share of correct labels of each row, or its negative squared error in variances of the output, (rows,); or their
    # sums over groups. With ``balanced``, weighted so that the mean is the balanced accuracy.
    row_scores: np.ndarray
    rows: int = 0  # number of rows with a label
    groups: int = 0  # number of groups of these rows, 0 without groups
    outputs: int = 1  # number of values of each sample of a regression, over which the scores are means
    # Calibration in bins of the probability of the predicted label, up to 0.1, up to 0.2 ... 1, without empty bins.
    reliability: tuple[CalibrationBin, ...] = ()
    # True and predicted values of a regression, the first 2,000, (2, n).
    values: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    def with_baseline(self, floor: float | None, kept_share: float) -> "Evaluation":
        """Return a copy with a task's copy baseline, and the accuracy over all sequences if some were left out.

        ``floor`` is the accuracy of copying the visible input, None for tasks without one; ``kept_share`` is the share
        of the sequences that were not left out as too long.
        """
        scores = dict(self.scores)
        if floor is not None:
            scores["copy_baseline"] = floor
        if kept_share < 1 and "accuracy" in scores:
            scores["accuracy_of_all"] = kept_share * scores["accuracy"]
        return replace(self, scores=scores)

    def of_forecast(self) -> "Evaluation":
        """Return a copy in which the scores of single labels, the values of a forecast, are those of steps ahead."""

        def renamed(name: str) -> str:
            """Return the name of a score, with the number of steps instead of that of a label."""
            metric, _, label_number = name.partition("_of_label_")
            if not label_number:
                return name
            steps = int(label_number) + 1
            return f"{metric}_{steps}_step{'s' if steps > 1 else ''}_ahead"

        return replace(self, scores={renamed(name): score for name, score in self.scores.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; with more than 100 classes, the confusion matrix is left out."""
        # None for a regression, too, which has no classes.
        confusion = self.confusion.tolist() if 0 < len(self.classes) <= MAX_PRINTED else None
        interval = list(self.interval) if self.interval else None
        values = {
            "samples": self.samples,
            "rows": self.rows,
            **self.scores,
            "interval": interval,
            "recall": self.recall,
        }
        if self.groups:
            values["groups"] = self.groups
        if self.outputs > 1:
            values["outputs"] = self.outputs
        bins = [list(of_bin) for of_bin in self.reliability]
        return values | {"classes": list(self.classes), "confusion": confusion, "reliability": bins}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Evaluation":
        """Build an evaluation from the values of `to_dict`, which lack ``row_scores``."""
        # The scores stand among the fields, under their own names.
        field_names = {"samples", "rows", "groups", "outputs", "interval", "recall"}
        field_names |= {"classes", "confusion", "reliability"}
        scores = {name: value for name, value in values.items() if name not in field_names}
        if not fits(scores, dict[str, float | None]):  # NaN is None in JSON
            raise ValueError("a score is not a number")
        attributes = {
            # `to_dict` leaves out the groups of rows without groups, and a single output.
            **{name: values.get(name, 0) for name in ("samples", "rows", "groups")},
            "outputs": values.get("outputs", 1),
            "scores": {},  # set below
            "interval": tuple(values["interval"]) if values["interval"] else None,
            "recall": values["recall"],
            "classes": tuple(values["classes"]),
            "confusion": np.array(values["confusion"] or np.zeros((0, 0)), int),
            "row_scores": np.zeros(0),
            "reliability": tuple(map(tuple, values["reliability"])),
        }
        # `from_json` refuses scores that are None, so they are set afterwards; they have been checked above.
        return replace(from_json(cls, attributes), scores=scores)


def evaluate_classes(
    y: np.ndarray,
    predicted: np.ndarray,
    classes: Sequence[str],
    ranks: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    *,
    balanced: bool = False,
) -> Evaluation:
    """Compare predicted class numbers (rows, ...) with the true ones, ``y`` (rows, ...).

    For two classes, ``ranks`` (rows, ...) are probabilities or scores of class 1, by which labels are ranked. If the
    rows of ``y`` are tokens, ``counts`` (sequences,) holds the tokens of each sequence. ``groups`` holds the group of
    each row, or of each sequence. ``balanced`` says whether readouts are compared by balanced accuracy.
    """
    # One column for each label of a row.
    y, predicted = y.reshape(len(y), -1), predicted.reshape(len(y), -1)
    is_correct = y == predicted
    row_scores, group_of_row = _by_row(is_correct.mean(axis=1), counts, groups)
    interval = accuracy_interval(row_scores, group_of_row)
    if balanced:
        weights = _balancing_weights(y)
        row_scores, _ = _by_row((is_correct * weights).mean(axis=1), counts, groups)
    # Only two classes have an area under the curve.
    ranks = ranks.reshape(y.shape) if ranks is not None and len(classes) == 2 else None
    confusion = _confusion(y.ravel(), predicted.ravel(), len(classes))
    # The recall of the classes that occur.
    samples_of_classes = confusion.sum(axis=1)
    present = np.flatnonzero(samples_of_classes).tolist()
    recall = confusion.diagonal()[present] / samples_of_classes[present]
    return Evaluation(
        samples=y.size,
        scores=_scores_of_labels(y, predicted, ranks),
        interval=interval,
        recall={classes[c]: float(share) for c, share in zip(present, recall, strict=True)},
        classes=tuple(classes),
        confusion=confusion,
        **_fields_of_rows(row_scores, group_of_row),
    )


def _balancing_weights(y: np.ndarray) -> np.ndarray:
    """Return the weight of each label, of the shape of ``y``: the mean is 1, and classes have equal sums."""
    _, numbers, counts = np.unique(y, return_inverse=True, return_counts=True)
    return (y.size / (len(counts) * counts))[numbers].reshape(y.shape)


def _scores_of_labels(y: np.ndarray, predicted: np.ndarray, ranks: np.ndarray | None) -> dict[str, float]:
    """Return the scores by name, of class numbers (rows, labels) with one or more labels of each row."""
    # Several labels are scored one by one, because pooling labels with different class shares would
    # reward a constant guess. The scores are means over the labels. Very many labels are pooled.
    one_by_one = 1 < y.shape[1] <= MAX_LABELS
    columns = [slice(n, n + 1) for n in range(y.shape[1])] if one_by_one else [slice(None)]
    scores_of_labels = [
        _class_scores(
            y[:, column].ravel(),
            predicted[:, column].ravel(),
            None if ranks is None else ranks[:, column].ravel(),
        )
        for column in columns
    ]
    scores: dict[str, float] = {}
    # A label of which only one class occurs has no area under the curve, so a name may be missing for some labels.
    for name in dict.fromkeys(itertools.chain.from_iterable(scores_of_labels)):
        scores[name] = float(np.mean([of_label[name] for of_label in scores_of_labels if name in of_label]))
    if one_by_one:
        for number, of_label in enumerate(scores_of_labels):
            scores[f"accuracy_of_label_{number}"] = of_label["accuracy"]
    return scores


def _confusion(y: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of samples (classes, classes) of each class (rows) that get each label (columns).

    Samples whose true label is not one of the classes are left out.
    """
    has_class = (y >= 0) & (y < classes)
    # The cell of each sample, in the order of the rows of the matrix.
    cells = y[has_class].astype(np.int64) * classes + predicted[has_class]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def _class_scores(
    y: np.ndarray, predicted: np.ndarray, ranks: np.ndarray | None = None
) -> dict[str, float]:
    """Return the scores of predicted labels by name, with those of their ranks if both of two classes occur.

    They equal those of `sklearn.metrics`, whose import takes as long as all else in the fit of a small data set.
    """
    # Number the classes that occur among the true or the predicted labels. For each class, count the samples of the
    # class, the predictions of the class, and the samples of the class that are predicted correctly.
    labels, numbers = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    true_class, predicted_class = numbers[: len(y)], numbers[len(y) :]
    is_correct = true_class == predicted_class
    samples = np.bincount(true_class, minlength=len(labels))
    predictions = np.bincount(predicted_class, minlength=len(labels))
    correct = np.bincount(true_class[is_correct], minlength=len(labels))
    is_present = samples > 0
    scores = {
        "accuracy": np.mean(is_correct),
        "majority_baseline": samples.max() / len(y),
        "balanced_accuracy": np.mean(correct[is_present] / samples[is_present]),
        # 2 precision recall / (precision + recall) is the same.
        "macro_f1": np.mean(2 * correct / (samples + predictions)),
    }
    if ranks is not None and is_present.sum() == 2:
        is_positive = y == y.max()
        scores["auc"] = _area_under_curve(is_positive, ranks)
        for rate in FALSE_POSITIVE_RATES:
            recall = recall_at_rate(ranks[is_positive], ranks[~is_positive], rate)
            scores[f"recall_at_{rate:.0%}_false_positives"] = recall
    return {name: float(value) for name, value in scores.items()}


def _area_under_curve(is_positive: np.ndarray, ranks: np.ndarray) -> float:
    """Return how often a positive sample (n,) ranks above a negative one, where ties count half (Mann-Whitney's U)."""
    # The rank of each sample in ascending order, from 1. Equal values have the mean of the ranks that they take up.
    _, value_numbers, counts = np.unique(ranks, return_inverse=True, return_counts=True)
    rank_of_value = np.cumsum(counts) - (counts - 1) / 2
    rank_of_sample = rank_of_value[value_numbers]
    # The ranks of the positives, less those that they would have if each ranked below all negatives.
    positives = int(is_positive.sum())
    negatives = len(ranks) - positives
    wins = rank_of_sample[is_positive].sum() - positives * (positives + 1) / 2
    return wins / (positives * negatives)


def recall_at_rate(positives: np.ndarray, negatives: np.ndarray, rate: float) -> float:
    """Return the largest share of ``positives`` above a threshold that at most a ``rate`` of ``negatives`` exceeds.

    Both are scores, (n,) and (m,). It is the highest point of scikit-learn's ``roc_curve`` up to this false positive
    rate.
    """
    # Negatives that may be above the threshold. The small number keeps products that are whole numbers up to rounding
    # from being rounded down.
    most_false = math.floor(rate * len(negatives) + 1e-9)
    if most_false >= len(negatives):
        return 1.0  # the threshold may be below all scores
    # The threshold is the largest of the other negatives, number ``index`` of all in ascending order.
    index = len(negatives) - 1 - most_false
    threshold = np.partition(negatives, index)[index]
    return float(np.mean(positives > threshold))


def threshold_for_rate(negatives: np.ndarray, rate: float) -> float | None:
    """Return the threshold that a new negative exceeds with a probability of at most ``rate``; None for too few.

    ``negatives`` (n,) are the scores of held-out negatives. The threshold is score number ceil((n + 1) (1 - rate)) of
    them in ascending order; few negatives have no score of that number. A new negative is equally likely to have each
    rank among n + 1 scores, so the bound holds for any distribution
    (Vovk et al. 2005, Algorithmic learning in a random world, conformal prediction).
    """
    # Rounding to 9 digits keeps products that are whole numbers up to rounding errors from being rounded up.
    rank = math.ceil(round((len(negatives) + 1) * (1 - rate), 9))
    return float(np.sort(negatives)[rank - 1]) if 0 < rank <= len(negatives) else None


def evaluate_values(
    y: np.ndarray, predicted: np.ndarray, counts: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Evaluation:
    """Compare predicted real values of samples, (n, outputs), with their targets ``y`` (n, outputs).

    ``counts`` (rows,) is the number of samples per row (default 1), and ``groups`` (rows,) the group of each row.
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    # In float64, because squares of large values overflow in float32.
    y, predicted = y.astype(np.float64), predicted.astype(np.float64)
    # R² of one sample is not defined; it is 1 if the prediction is exact, else 0.
    r2 = r2_score(y, predicted) if len(y) > 1 else np.array_equal(y, predicted)
    scores = {
        "R²": r2,
        "rmse": root_mean_squared_error(y, predicted),
        "mae": mean_absolute_error(y, predicted),
    }
    if 1 < y.shape[1] <= MAX_LABELS:
        for number, (targets, values) in enumerate(zip(y.T, predicted.T, strict=True)):
            scores[f"R²_of_label_{number}"] = r2_score(targets, values) if len(y) > 1 else r2
            scores[f"rmse_of_label_{number}"] = root_mean_squared_error(targets, values)
    # In variances of each output, as in R², so that an output with large values does not outweigh the others.
    squared_errors = np.square(y - predicted) / divisors_of_outputs(y)
    return Evaluation(
        samples=len(y),
        scores={name: float(score) for name, score in scores.items()},
        interval=r2_interval(y, predicted, counts, groups),
        recall={},
        classes=(),
        confusion=np.zeros((0, 0), int),
        outputs=y.shape[1],
        **_fields_of_rows(*_by_row(-squared_errors.mean(axis=1), counts, groups)),
        values=np.stack([y.ravel()[:MAX_VALUES], predicted.ravel()[:MAX_VALUES]]),
    )


def reliability(largest_probabilities: np.ndarray, is_right: np.ndarray) -> tuple[CalibrationBin, ...]:
    """Return the calibration bins of `Evaluation`.

    ``largest_probabilities`` (n,) are those of the predicted labels, and ``is_right`` (n,) says which of these are
    correct.
    """
    # Some estimators, such as decision trees, are sure of every label. Their only bin would repeat the accuracy.
    is_always_sure = bool(np.all(largest_probabilities == 1))
    if is_always_sure:
        return ()
    # Bin n has the probabilities above (n - 1) / 10 and up to n / 10.
    bin_numbers = np.clip(np.ceil(largest_probabilities * 10).astype(int), 1, 10)
    bins: list[CalibrationBin] = []
    for number in range(1, 11):
        in_bin = bin_numbers == number
        if in_bin.any():
            mean_probability = float(largest_probabilities[in_bin].mean())
            bins.append((int(in_bin.sum()), mean_probability, float(is_right[in_bin].mean())))
    return tuple(bins)


def evaluate_blocks(
    readout: Readout,
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    classes: Sequence[str],
    counts: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    *,
    balanced: bool = False,
) -> Evaluation:
    """Compare a readout's predictions with the labels of blocks of features (m, w) and labels (m, outputs).

    ``classes`` are their names, none for real values. ``counts`` (rows,) is the number of samples per row (default 1),
    and ``groups`` (rows,) the group of each row. ``balanced`` is as in `evaluate_classes`.
    """
    # One array for each block. Only readouts with probabilities fill the last two: the probabilities of the predicted
    # classes, and the values by which samples are ranked for class 1.
    labels: list[np.ndarray] = []
    predictions: list[np.ndarray] = []
    largest_probabilities: list[np.ndarray] = []
    ranks: list[np.ndarray] = []
    has_probabilities = bool(classes) and readout.has_probabilities
    # The scores of these readouts have the order of their probabilities, of which many may be rounded to 0 or 1.
    ranks_by_scores = isinstance(readout, LinearReadout | KernelReadout) and len(classes) == 2
    for x, y in blocks:
        labels.append(y)
        if not classes:
            predictions.append(readout.predict(x))
            continue
        scores = readout.scores(x)
        predictions.append(readout.targets.predict(scores))
        if has_probabilities:
            probabilities = readout.probabilities(x)
            largest_probabilities.append(probabilities.max(axis=-1))
            ranks.append(scores if ranks_by_scores else probabilities[..., 1])
    y, predicted = np.concatenate(labels), np.concatenate(predictions)
    if not has_probabilities:
        return evaluate_labels(y, predicted, classes, None, counts, groups, balanced=balanced)
    ranks_of_all = np.concatenate(ranks)
    evaluation = evaluate_labels(y, predicted, classes, ranks_of_all, counts, groups, balanced=balanced)
    is_right = (y == predicted).ravel()
    bins = reliability(np.concatenate(largest_probabilities).ravel(), is_right)
    return replace(evaluation, reliability=bins)


def evaluate_labels(
    y: np.ndarray,
    predicted: np.ndarray,
    classes: Sequence[str],
    ranks: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    *,
    balanced: bool = False,
) -> Evaluation:
    """Compare predicted labels or values (n, outputs) of samples with the true ones.

    For two classes, ``ranks`` (n, outputs) are probabilities or scores of class 1. ``counts`` (rows,) is the number of
    samples per row (default 1), and ``groups`` (rows,) the group of each row. ``balanced`` is as in `evaluate_classes`.
    """
    if not classes:
        return evaluate_values(y, predicted, counts, groups)
    y, predicted = y.astype(int), predicted.astype(int)
    if counts is not None and counts.min() == counts.max() and not balanced:
        # Rows with equally many samples: each row becomes one sample with several labels. `evaluate_classes` gives the
        # ranks the shape of the labels. A balanced accuracy, by which readouts are chosen, is over all labels together.
        y, predicted = y.reshape(len(counts), -1), predicted.reshape(len(counts), -1)
        counts = None
    return evaluate_classes(y, predicted, classes, ranks, counts, groups, balanced=balanced)


def _fields_of_rows(row_scores: np.ndarray, groups: np.ndarray | None) -> dict[str, Any]:
    """Return the fields ``row_scores``, ``rows`` and ``groups`` of an evaluation, from the score of each row, (rows,).

    ``groups`` (rows,) numbers the group of each row from 0; None without groups.
    """
    if groups is None:
        return {"row_scores": row_scores, "rows": len(row_scores), "groups": 0}
    sums_of_groups = np.bincount(groups, row_scores)
    return {"row_scores": sums_of_groups, "rows": len(row_scores), "groups": len(sums_of_groups)}


def _by_row(
    sample_scores: np.ndarray, counts: np.ndarray | None, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the score of each row that has samples, (rows,), and the number of its group, None without groups.

    ``counts`` (rows,) is the number of samples per row, None if each row is a sample.
    """
    row_scores = sample_scores
    if counts is not None:
        # The mean of the row scores is the mean of all samples, and their variance is that of a ratio of two sums over
        # rows: the sum of the scores and the number of samples.
        has_samples = counts > 0
        counts = counts[has_samples]
        groups = None if groups is None else groups[has_samples]
        mean = sample_scores.mean()
        first_samples = np.cumsum(counts) - counts
        sums_of_rows = np.add.reduceat(sample_scores - mean, first_samples)
        row_scores = mean + sums_of_rows / counts.mean()
    group_numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
    return row_scores, group_numbers


def r2_interval(
    y: np.ndarray, predicted: np.ndarray, counts: np.ndarray | None = None, groups: np.ndarray | None = None
) -> tuple[float, float] | None:
    """Return the 95% interval of R² of samples with targets (n, outputs), from the variance between rows or groups.

    ``counts`` (rows,) is the number of samples per row (default 1), and ``groups`` (rows,) the group of each row.

    The interval comes from a percentile bootstrap of 1,000 draws of rows or, if there are groups, of groups. With
    groups, the distances of its ends from R² are widened as by Student's t, because a bootstrap of few groups is too
    narrow. The interval is None for a single row, for fewer groups than `MIN_GROUPS`, and if no draw has an R².
    """
    # The unit of each sample, its row or its group, by number from 0.
    units = np.arange(len(y)) if counts is None else np.repeat(np.arange(len(counts)), counts)
    if groups is not None:
        units = np.unique(groups[units], return_inverse=True)[1]
    # With very many units, those of equal remainder are drawn together: sums of independent units are independent.
    unit_count = min(int(units.max()) + 1, MAX_UNITS)
    least_units = 2 if groups is None else MIN_GROUPS
    if unit_count < least_units:
        return None
    r2, bootstrap_r2 = _bootstrap_r2(y, predicted, units % unit_count, unit_count)
    if not np.isfinite(bootstrap_r2).any():
        return None
    low, high = np.nanquantile(bootstrap_r2, [0.025, 0.975]).tolist()
    if groups is None:
        return low, high
    # The quantile of Student's t replaces that of the normal distribution. The root is that of n / (n - 1), because
    # a bootstrap of n units has the variance that divides by n.
    quantile = float(stdtrit(unit_count - 1, 0.975))
    widening = quantile / Z95 * math.sqrt(unit_count / (unit_count - 1))
    # R² may be outside of the quantiles of the bootstrap; such an end stays at R². No R² is above 1.
    return r2 - widening * max(0.0, r2 - low), min(1.0, r2 + widening * max(0.0, high - r2))


def _bootstrap_r2(
    y: np.ndarray, predicted: np.ndarray, units: np.ndarray, unit_count: int
) -> tuple[float, list[float]]:
    """Return R² of samples with targets (n, outputs), and that of 1,000 bootstrap draws of units.

    ``units`` (n,) numbers the unit of each sample from 0. R² is NaN for a draw in which an output does not vary.
    """
    # R² depends on four sums over samples: of 1, y, y² and (y - predicted)², each for every output.
    centred = y - y.mean(axis=0)
    terms = [np.ones_like(centred), centred, np.square(centred), np.square(y - predicted)]
    sums_of_units = np.zeros((unit_count, 4 * y.shape[1]))
    np.add.at(sums_of_units, units, np.concatenate(terms, axis=1))
    # A draw of the bootstrap says how often it takes each unit. The draw in front takes each unit once, for R² itself.
    probabilities = np.full(unit_count, 1 / unit_count)
    draws = np.random.default_rng(0).multinomial(unit_count, probabilities, size=1000)
    r2, *bootstrap_r2 = _r2_of_sums(np.vstack([np.ones(unit_count), draws]) @ sums_of_units).tolist()
    return r2, bootstrap_r2


def _r2_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return R² (draws,), as a mean over outputs, from the sums of `_bootstrap_r2`, (draws, 4 outputs).

    It is NaN for a draw in which an output does not vary.
    """
    # Sums of 1, y, y² and (y - predicted)², each of them (draws, outputs).
    count, total, squares, residuals = np.split(sums, 4, axis=1)
    spread = squares - np.square(total) / count  # sum of (y - mean y)²
    return (1 - residuals / np.where(spread > 0, spread, np.nan)).mean(axis=1)


def accuracy_interval(shares: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float] | None:
    """Return the 95% interval of an accuracy from the share of correct outputs of each row, (rows,).

    It is Wilson's interval for the effective number of independent outputs. If rows have several outputs, that number
    follows from the variance between rows or, with ``groups`` (rows,), between groups, with Student's t, and the
    interval is None for fewer of these than `MIN_GROUPS`.

    References: Wilson (1927), Probable inference; Korn and Graubard (1998), Confidence intervals for
    proportions.
    """
    # Rows are independent, but the outputs of a row are not. The effective number n is that of independent outputs with
    # the same variance: p (1 - p) / n = variance / rows. If the rows do not vary (up to rounding), each counts as one.
    shares = np.asarray(shares, np.float64)
    rows = len(shares)
    p, variance = float(shares.mean()), float(shares.var())
    n = rows * (p * (1 - p) / variance) if variance > 1e-12 else rows
    # The variance between few rows is as uncertain as that between few groups.
    have_several_outputs = bool(((shares > 0) & (shares < 1)).any())
    if groups is None and have_several_outputs:
        groups = np.arange(rows)
    # Rows of a group are not independent either, which can only make n smaller.
    if groups is not None:
        errors = np.bincount(np.unique(groups, return_inverse=True)[1], shares - p)
        group_count = len(errors)
        if group_count < MIN_GROUPS:
            return None
        # The mean is a ratio of two sums over groups, whose variance is squares / rows^2, times the last factor for few
        # groups. If all groups are equally good (up to rounding), that variance is 0, and n remains that of the rows.
        # Only if the rows do not vary either, nothing tells whether they are independent: each group counts as one.
        squares = float(np.square(errors).sum())
        if squares > 1e-12:
            n = min(n, p * (1 - p) * rows**2 * (group_count - 1) / (group_count * squares))
        elif variance <= 1e-12:
            n = min(n, group_count)
        # Student's t instead of the normal distribution widens the interval, as fewer outputs do.
        n *= (Z95 / float(stdtrit(group_count - 1, 0.975))) ** 2
    # Wilson's interval: the p at which the observed share is z standard errors away.
    z2 = Z95**2
    centre = p + z2 / (2 * n)
    spread = Z95 * math.sqrt(max(0.0, p * (1 - p) / n + z2 / (4 * n * n)))
    return max(0.0, (centre - spread) / (1 + z2 / n)), min(1.0, (centre + spread) / (1 + z2 / n))


def balanced_interval(evaluation: Evaluation) -> tuple[float, float] | None:
    """Return the 95% interval of a balanced accuracy; None if rows have several labels or groups.

    Each class has Wilson's interval of its recall. The distances of the mean recall from its ends are the roots of the
    sums of these squared distances, divided by the number of classes. Reference: Zou and Donner (2008), Construction
    of confidence limits about effect measures.
    """
    if evaluation.groups or evaluation.samples != evaluation.rows:
        return None
    rows_of_classes, correct = evaluation.confusion.sum(axis=1), evaluation.confusion.diagonal()
    present = np.flatnonzero(rows_of_classes)
    recalls = correct[present] / rows_of_classes[present]
    # The interval of a recall depends only on how many rows the class has and how many are correct, so any of its rows
    # may be marked as the correct ones: here the first.
    intervals = [accuracy_interval(np.arange(rows_of_classes[c]) < correct[c]) for c in present]
    low, high = np.array(intervals, np.float64).T
    below = math.hypot(*(recalls - low)) / len(recalls)
    above = math.hypot(*(high - recalls)) / len(recalls)
    balanced_accuracy = float(recalls.mean())
    return max(0.0, balanced_accuracy - below), min(1.0, balanced_accuracy + above)


def standard_error(differences: np.ndarray, units: np.ndarray) -> float:
    """Return the standard error of the mean of differences (n,) whose ``units`` (n,), rows or groups, are independent.

    It is infinite for fewer than 6 units, which are too few to be evidence.
    """
    unit_numbers = np.unique(units, return_inverse=True)[1]
    unit_count = int(unit_numbers.max()) + 1
    if unit_count < MIN_UNITS:
        return math.inf
    # Variance of a ratio of sums over units, which may differ in their number of samples.
    sums_of_units = np.bincount(unit_numbers, differences - differences.mean())
    squares = float(np.square(sums_of_units).sum())
    return math.sqrt(unit_count / (unit_count - 1) * squares) / len(differences)
