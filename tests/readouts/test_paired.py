"""Differences of two readouts on the same rows have the intervals of a paired bootstrap, and of the literature."""

import numpy as np
import pytest
from sklearn.metrics import r2_score

from reservoir.readouts.evaluation import evaluate_classes, evaluate_values
from reservoir.readouts.paired import p_value_of_difference, paired_difference, paired_interval


def bootstrap(statistic, units, draws=2000):
    """Return the 95% interval of a statistic of row numbers, with whole units drawn with replacement."""
    draw, rows = np.random.default_rng(2), [np.flatnonzero(units == unit) for unit in np.unique(units)]
    picks = draw.integers(len(rows), size=(draws, len(rows)))
    return np.quantile([statistic(np.concatenate([rows[n] for n in pick])) for pick in picks], [0.025, 0.975])


def r2(y, predicted):
    """Return R², the mean over outputs; scikit-learn's takes seven times as long for 600 rows."""
    return np.mean(1 - np.square(y - predicted).sum(axis=0) / np.square(y - y.mean(axis=0)).sum(axis=0))


@pytest.mark.parametrize("groups", [None, np.arange(600) // 10])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_difference_of_r2_has_the_interval_of_a_bootstrap(outputs, groups):
    draw = np.random.default_rng(1)
    shared = 0 if groups is None else draw.normal(size=60)[groups][:, None]
    y = 1e3 + draw.normal(size=(600, outputs)) + shared
    first, second = (y + noise * (draw.normal(size=(600, outputs)) + shared) for noise in (0.5, 0.7))
    units = np.arange(600) if groups is None else groups
    evaluations = [evaluate_values(y, predicted, groups=groups) for predicted in (first, second)]
    found = paired_difference((evaluations[0], evaluations[1]), y, (first, second), units)
    assert found.value == pytest.approx(r2_score(y, first) - r2_score(y, second))
    assert found.p_value == p_value_of_difference(*evaluations)
    low, high = found.interval
    expected = bootstrap(lambda rows: r2(y[rows], first[rows]) - r2(y[rows], second[rows]), units)
    np.testing.assert_allclose((low, high), expected, atol=0.15 * np.ptp(expected))


def test_the_difference_of_accuracies_over_groups_has_the_interval_of_a_bootstrap():
    draw = np.random.default_rng(3)
    groups = np.repeat(np.arange(60), draw.integers(2, 20, 60))
    y, easy = draw.integers(0, 2, len(groups)), draw.random(60)[groups]
    first, second = (np.where(draw.random(len(y)) < share, y, 1 - y) for share in (0.5 + easy / 2, 0.5 + easy / 3))
    evaluations = [evaluate_classes(y, predicted, ["a", "b"], groups=groups) for predicted in (first, second)]
    arrays = y[:, None], (first[:, None], second[:, None])
    found = paired_difference((evaluations[0], evaluations[1]), *arrays, groups)
    gain = (first == y).astype(float) - (second == y)
    expected = bootstrap(lambda rows: gain[rows].mean(), groups)
    assert found.value == pytest.approx(gain.mean())
    np.testing.assert_allclose(found.interval, expected, atol=0.15 * np.ptp(expected))
    alone = paired_difference((evaluations[0], evaluations[1]), *arrays, np.zeros(len(y)))
    assert alone.interval is None  # one group says nothing about others


def test_the_interval_of_paired_accuracies_is_that_of_bonett_and_price():
    # (10 + 1) / 52 - (2 + 1) / 52, and 1.96 sqrt((14 / 52 - (8 / 52)^2) / 52)
    assert paired_interval(10, 2, 50) == pytest.approx((0.01916, 0.28854), abs=2e-5)
    assert paired_interval(2, 10, 50) == pytest.approx((-0.28854, -0.01916), abs=2e-5)
    low, high = paired_interval(0, 0, 50)
    assert low == -high and high > 0.05  # two readouts that agree on 50 rows may differ on others
