"""The difference of two readouts on the same rows: its size, a paired 95% interval, and a p-value."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, stdtrit

from reservoir.readouts.evaluation import MAX_UNITS, MIN_GROUPS, MIN_UNITS, Z95, Evaluation

FLIP_CELLS = 2**22  # largest number of random signs in memory
EXACT_UNITS = 20  # largest number of rows or groups whose sign flips are all enumerated
FLIPS = 49_999  # random sign flips of more rows or groups
SIGNIFICANT = 0.05  # p-value below which a difference counts as seen
ROUNDING_SQUARES = 1e-24  # sum of squared errors, in shares or R², that is taken for errors of rounding


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Score of a readout minus that of another on the same rows: accuracy, balanced accuracy, or R² of real values.

    Parameters
    ----------
    value : float
        The difference.
    interval : tuple of (float, float), optional
        Its paired 95% interval, over groups if the rows have groups; None for too few rows or groups, and if these do
        not vary.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good; None for too few rows or groups.
    """

    value: float
    interval: tuple[float, float] | None
    p_value: float | None


def paired_difference(
    evaluations: tuple[Evaluation, Evaluation],
    y: np.ndarray,
    predicted: tuple[np.ndarray, np.ndarray],
    units: np.ndarray,
    *,
    balanced: bool = False,
) -> Difference:
    """Return the difference between the first of two readouts and the second, both evaluated on the same samples.

    ``y`` and both arrays in ``predicted`` are (n, outputs); ``units`` (n,) names the row of each
    sample, or its group if the rows have groups. With ``balanced`` the difference is one of balanced accuracy, and
    there is one output.
    """
    first, second = evaluations
    p_value = p_value_of_difference(first, second)
    gain, spread = _gain_and_spread(y, predicted, has_classes=bool(first.classes))
    if balanced:
        # A column for each class that occurs, whose ratio of sums is the difference of the recalls.
        is_class = y == np.unique(y)
        gain, spread = gain * is_class, spread * is_class
    # A constant output has no R², and counts as 0 in the mean over outputs, as in scikit-learn.
    varies = spread.sum(axis=0) > 0
    if not varies.any():
        return Difference(value=0.0, interval=None, p_value=p_value)
    # Sums over each unit, which are independent: (units, outputs that vary).
    unit_of_sample = np.unique(units, return_inverse=True)[1]
    gains, spreads = np.zeros((2, unit_of_sample.max() + 1, int(varies.sum())))
    np.add.at(gains, unit_of_sample, gain[:, varies])
    np.add.at(spreads, unit_of_sample, spread[:, varies])
    # The difference is a ratio of sums for each output, and the mean of these ratios over all outputs.
    total_spread = spreads.sum(axis=0)
    ratios = gains.sum(axis=0) / total_spread
    value = float(ratios.sum()) / len(varies)
    # With one label per unit, both readouts, one of them or none is right.
    one_label_per_unit = set(np.unique(gains)) <= {-1.0, 0.0, 1.0} and (spreads == 1).all()
    if first.classes and one_label_per_unit:
        interval = paired_interval(int((gains > 0).sum()), int((gains < 0).sum()), len(gains))
    else:
        # Both numerator and denominator of a ratio of sums over units vary: linearisation, as for survey data.
        influences = ((gains - ratios * spreads) / total_spread).sum(axis=1) / len(varies)
        interval = _student_interval(value, influences)
    return Difference(value=value, interval=interval, p_value=p_value)


def _gain_and_spread(
    y: np.ndarray, predicted: tuple[np.ndarray, np.ndarray], *, has_classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each sample adds to the numerator and to the denominator of a difference, a ratio of sums.

    Both arrays are (n, 1) for classes: the difference of the shares of correct labels, and 1. For real values they are
    (n, outputs): the difference of the squared errors, and the squared distance from the mean.
    """
    first, second = predicted
    if has_classes:
        gain = ((first == y).astype(np.float64) - (second == y)).mean(axis=1, keepdims=True)
        return gain, np.ones_like(gain)
    values = y.astype(np.float64)
    gain = np.square(second - values) - np.square(first - values)
    return gain, np.square(values - values.mean(axis=0))


def paired_interval(wins: int, losses: int, rows: int) -> tuple[float, float]:
    """Return the 95% interval of the difference of two accuracies on some ``rows``.

    ``wins`` are the rows that only the first readout labels correctly, ``losses`` those that only the second does. It
    is Wald's interval with one row added to wins and to losses, which stays wide enough if there are few of them.
    Reference: Bonett and Price (2012), Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data.
    """
    win_share = (wins + 1) / (rows + 2)
    loss_share = (losses + 1) / (rows + 2)
    centre = win_share - loss_share
    half_width = Z95 * math.sqrt((win_share + loss_share - centre**2) / (rows + 2))
    return max(-1.0, centre - half_width), min(1.0, centre + half_width)


def _student_interval(value: float, influences: np.ndarray) -> tuple[float, float] | None:
    """Return Student's 95% interval of a value, from what each independent unit adds to its error, (units,).

    It is None for too few units, and for units that differ by rounding alone.
    """
    units = len(influences)
    squares = float(np.square(influences).sum())  # the variance of the value, up to a factor for few units
    if units < MIN_GROUPS or squares <= ROUNDING_SQUARES:
        return None
    half_width = float(stdtrit(units - 1, 0.975)) * math.sqrt(squares * units / (units - 1))
    return value - half_width, value + half_width


def p_value_of_difference(first: Evaluation, second: Evaluation) -> float | None:
    """Return the p-value for equal performance of two readouts on the same rows; None for fewer than 3 rows or groups.

    It is McNemar's mid-p for one label per row without groups, else that of sign flips of rows or groups.
    """
    rows_or_groups = len(first.row_scores)
    if rows_or_groups < 3:
        return None
    every_row_is_right_or_wrong = set(np.unique([first.row_scores, second.row_scores])) <= {0.0, 1.0}
    if first.classes and not first.groups and every_row_is_right_or_wrong:
        return mcnemar(first.row_scores == 1, second.row_scores == 1)
    return sign_flips(first.row_scores - second.row_scores)


def verdict_of_difference(first: Evaluation, second: Evaluation, p_value: float | None) -> str:
    """Return in words whether the first of two readouts is better than the second, from `p_value_of_difference`.

    | verdict | meaning |
    |---|---|
    | ``adds`` | the first is better |
    | ``adds nothing`` | the first is worse |
    | ``no difference`` | the p-value is not below `SIGNIFICANT` |
    | ``cannot be judged`` | there are too few rows or groups |
    """
    units = len(first.row_scores)  # groups, if there are any, else rows
    if p_value is None or units < MIN_UNITS:
        return "cannot be judged"
    if p_value >= SIGNIFICANT:
        return "no difference"
    # The sum of the scores decides, because the p-value is about it.
    return "adds" if first.row_scores.sum() > second.row_scores.sum() else "adds nothing"


def mcnemar(first_right: np.ndarray, second_right: np.ndarray) -> float:
    """Return the two-sided mid-p-value for equal accuracy of two readouts.

    ``first_right`` and ``second_right`` (rows,) say in which rows each readout gets the single label right. Reference:
    Fagerland, Lydersen and Laake (2013), The McNemar test for binary matched-pairs data.
    """
    first_right, second_right = np.asarray(first_right, bool), np.asarray(second_right, bool)
    # Only rows that one of the two gets right count; under the hypothesis, each is a fair coin.
    wins = int((first_right & ~second_right).sum())
    losses = int((second_right & ~first_right).sum())
    discordant = wins + losses
    fewer = min(wins, losses)
    if not discordant:
        return 1.0
    # With X ~ Binomial(discordant, 1/2) and k = fewer, the exact two-sided p is 2 P(X <= k). The mid-p takes off half
    # of the probability of each of the two observed outcomes, k and discordant - k, so it is P(X < k) + P(X <= k). In a
    # tie they are one outcome and the exact p is 1, so the mid-p is 1 - P(X = k) / 2. It has more power.
    p_below = float(bdtr(fewer - 1, discordant, 0.5)) if fewer else 0.0  # P(X < k)
    p_up_to = float(bdtr(fewer, discordant, 0.5))  # P(X <= k)
    return p_below + p_up_to if wins != losses else 1 - (p_up_to - p_below) / 2


def sign_flips(differences: np.ndarray, flips: int = FLIPS, seed: int = 0) -> float:
    """Return the two-sided p-value for equal performance, from paired differences of rows, or their sums over groups.

    If two readouts are equally good, they could be exchanged in any row or group, so each difference
    has either sign with equal probability. p is the share of sign patterns whose sum is at least as
    far from 0 as the observed sum: of all patterns for up to `EXACT_UNITS` differences, else of a number of random
    ``flips`` and the observed one. Differences of unequal size need no special treatment, so groups may differ in
    their rows.

    References: Fisher (1935), The design of experiments, section 21; Phipson and Smyth (2010),
    Permutation p-values should never be zero.
    """
    values = np.asarray(differences, np.float64)
    values = values[values != 0]  # the signs of zeros change nothing
    if not len(values):
        return 1.0
    if len(values) > MAX_UNITS:  # sums of exchangeable rows are exchangeable
        values = np.bincount(np.arange(len(values)) % MAX_UNITS, values)
    # Sums that differ by rounding alone count as equal, so a sum is extreme from a little below the observed one on.
    least_extreme = abs(float(values.sum())) - 1e-10 * float(np.abs(values).sum())
    if len(values) <= EXACT_UNITS:
        # The sums of all patterns of signs. The first difference keeps its sign: the other one would give the negative
        # of each sum, which is as far from 0.
        sums = values[:1]
        for value in values[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= least_extreme))
    extreme_patterns = _count_extreme_patterns(values, least_extreme, flips, seed)
    # The observed pattern counts as one of them.
    return (extreme_patterns + 1) / (flips + 1)


def _count_extreme_patterns(values: np.ndarray, least_extreme: float, flips: int, seed: int) -> int:
    """Return for how many of ``flips`` random patterns of signs the sum of the values is at least so far from 0."""
    # Some patterns at a time. With positive = 1 or 0 for each value, a sum is 2 (positive' values) - (1' values).
    generator = np.random.default_rng(seed)
    extreme_patterns = 0
    patterns_at_once = max(1, FLIP_CELLS // len(values))
    for start in range(0, flips, patterns_at_once):
        patterns = min(patterns_at_once, flips - start)
        positive = generator.integers(0, 2, (patterns, len(values)), np.int8)
        sums = 2 * (positive.astype(np.float64) @ values) - values.sum()
        extreme_patterns += int((np.abs(sums) >= least_extreme).sum())
    return extreme_patterns
