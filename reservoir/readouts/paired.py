"""The difference of two readouts on the same rows: its size, a paired 95% interval, and a p-value."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from reservoir.readouts.evaluation import Z95, Evaluation, p_value_of_difference


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Score of a readout minus that of another on the same rows: accuracy, or R² of real values.

    Parameters
    ----------
    value : float
        The difference.
    interval : tuple of (float, float), optional
        Its paired 95% interval, over groups if the rows have groups; None if the rows or groups do not vary.
    p_value : float
        The p-value of the hypothesis that both are equally good.
    """

    value: float
    interval: tuple[float, float] | None
    p_value: float | None  # None for too few rows or groups


def paired_difference(
    evaluations: tuple[Evaluation, Evaluation],
    y: np.ndarray,
    predicted: tuple[np.ndarray, np.ndarray],
    units: np.ndarray,
) -> Difference:
    """Return the difference between the first of two readouts and the second, both evaluated on the same samples.

    ``y`` and both arrays in ``predicted`` are (n, outputs); ``units`` (n,) names the row of each
    sample, or its group if the rows have groups.
    """
    # Of each sample, the numerator (gain) and the denominator (spread) of the difference, a ratio of sums.
    first, second = predicted
    if evaluations[0].classes:
        gain = ((first == y).astype(np.float64) - (second == y)).mean(axis=1, keepdims=True)
        spread = np.ones_like(gain)
    else:
        values = y.astype(np.float64)
        gain = np.square(second - values) - np.square(first - values)
        spread = np.square(values - values.mean(axis=0))
    p_value = p_value_of_difference(*evaluations)
    # A constant output has no R².
    varies = spread.sum(axis=0) > 0
    if not varies.any():
        return Difference(value=0.0, interval=None, p_value=p_value)
    # Their sums over each unit, which are independent.
    number = np.unique(units, return_inverse=True)[1]
    gains, spreads = np.zeros((2, number.max() + 1, int(varies.sum())))
    np.add.at(gains, number, gain[:, varies])
    np.add.at(spreads, number, spread[:, varies])
    whole = spreads.sum(axis=0)
    ratios = gains.sum(axis=0) / whole
    value = float(ratios.mean())
    one_label_per_unit = set(np.unique(gains)) <= {-1.0, 0.0, 1.0} and (spreads == 1).all()
    if evaluations[0].classes and one_label_per_unit:
        interval = paired_interval(int((gains > 0).sum()), int((gains < 0).sum()), len(gains))
    else:
        # Both numerator and denominator of a ratio of sums over units vary: linearisation, as for survey data.
        influences = ((gains - ratios * spreads) / whole).mean(axis=1)
        interval = _student_interval(value, influences)
    return Difference(value=value, interval=interval, p_value=p_value)


def paired_interval(wins: int, losses: int, rows: int) -> tuple[float, float]:
    """Return the 95% interval of the difference of two accuracies, from the rows that only one readout labels right.

    It is Wald's interval with one row added to wins and to losses, which stays wide enough if there
    are few of them. Reference: Bonett and Price (2012), Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data.
    """
    more = (wins + 1) / (rows + 2)
    less = (losses + 1) / (rows + 2)
    reach = Z95 * math.sqrt((more + less - (more - less) ** 2) / (rows + 2))
    return max(-1.0, more - less - reach), min(1.0, more - less + reach)


def _student_interval(value: float, influences: np.ndarray) -> tuple[float, float] | None:
    """Return Student's 95% interval of a value, from what each independent unit adds to its error, (units,)."""
    units, squares = len(influences), float(np.square(influences).sum())
    if units < 2 or squares <= 1e-24:
        return None
    reach = float(stdtrit(units - 1, 0.975)) * math.sqrt(squares * units / (units - 1))
    return value - reach, value + reach
