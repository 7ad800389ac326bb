"""Scores of labels equal those of scikit-learn, and intervals of differences those of a paired bootstrap."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from reservoir.readouts.evaluation import (
    evaluate_blocks,
    evaluate_classes,
    evaluate_labels,
    evaluate_values,
    recall_at_rate,
    threshold_for_rate,
)
from reservoir.readouts.kernel_ridge import KernelReadout, Standardised
from reservoir.readouts.linear import Targets
from reservoir.readouts.paired import p_value_of_difference, paired_difference, paired_interval


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(3, 60), classes=st.integers(2, 5), seed=st.integers(0, 999))
def test_scores_of_labels_are_those_of_scikit_learn(rows, classes, seed):
    draw = np.random.default_rng(seed)
    y, predicted = draw.integers(0, classes, (2, rows))
    ranks = np.round(draw.normal(y, 1), 1)  # with ties
    names = [*map(str, range(classes))]
    scores = evaluate_labels(y[:, None], predicted[:, None], names, ranks[:, None] if classes == 2 else None).scores
    recall = metrics.recall_score(y, predicted, labels=np.unique(y), average="macro")
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted))
    assert scores["balanced_accuracy"] == pytest.approx(recall)
    assert scores["macro_f1"] == pytest.approx(metrics.f1_score(y, predicted, average="macro"))
    if classes == 2 and len(np.unique(y)) == 2:
        assert scores["auc"] == pytest.approx(metrics.roc_auc_score(y, ranks))
        false_positives, recalls, _ = metrics.roc_curve(y, ranks, drop_intermediate=False)
        for rate, name in ((0.01, "1%"), (0.05, "5%")):
            assert scores[f"recall_at_{name}_false_positives"] == recalls[false_positives <= rate].max()
            expected = recalls[false_positives <= 5 * rate].max()
            assert recall_at_rate(ranks[y == 1], ranks[y == 0], 5 * rate) == expected


@pytest.mark.parametrize(("rate", "least"), [(0.01, 99), (0.05, 19), (0.25, 3)])
def test_a_threshold_keeps_the_rate_of_false_positives_over_exchangeable_rows(rate, least):
    assert threshold_for_rate(np.arange(least - 1.0), rate) is None
    for negatives in (least, 2 * least, 2 * least + 1):
        scores = np.random.default_rng(negatives).normal(size=negatives + 1)
        # Each of n + 1 rows is the new one in turn; the others set the threshold.
        exceeds = [scores[new] > threshold_for_rate(np.delete(scores, new), rate) for new in range(negatives + 1)]
        assert np.mean(exceeds) <= rate
        assert np.mean(exceeds) == np.floor(rate * (negatives + 1) + 1e-9) / (negatives + 1)  # no rate below it is kept
    assert np.mean(np.ones(500) > threshold_for_rate(np.ones(500), rate)) == 0  # ties are no positives


def test_a_kernel_readout_ranks_by_its_scores_where_probabilities_are_exactly_one():
    x, y = np.arange(-9.0, 9.0)[:, None].astype(np.float32), (np.arange(18) > 9)[:, None].astype(int)
    training = Standardised.of(x.copy())
    weights = training.rows.astype(np.float64)
    readout = KernelReadout.of(training, "linear", weights, np.array([2.0]), Targets(1, 2))
    sharp = dataclasses.replace(readout, temperature=1e-2)
    assert (sharp.probabilities(x)[:, 0, 1] == 1).sum() > 9  # more than the rows of the second class
    assert evaluate_blocks(sharp, [(x, y)], ["a", "b"]).scores["auc"] == 1


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
    difference = paired_difference((evaluations[0], evaluations[1]), y, (first, second), units)
    assert difference.value == pytest.approx(metrics.r2_score(y, first) - metrics.r2_score(y, second))
    assert difference.p_value == p_value_of_difference(*evaluations)
    low, high = difference.interval
    expected = bootstrap(lambda rows: r2(y[rows], first[rows]) - r2(y[rows], second[rows]), units)
    np.testing.assert_allclose((low, high), expected, atol=0.15 * np.ptp(expected))


def test_the_difference_of_accuracies_over_groups_has_the_interval_of_a_bootstrap():
    draw = np.random.default_rng(3)
    groups = np.repeat(np.arange(60), draw.integers(2, 20, 60))
    y, easy = draw.integers(0, 2, len(groups)), draw.random(60)[groups]
    first, second = (np.where(draw.random(len(y)) < share, y, 1 - y) for share in (0.5 + easy / 2, 0.5 + easy / 3))
    evaluations = [evaluate_classes(y, predicted, ["a", "b"], groups=groups) for predicted in (first, second)]
    arrays = y[:, None], (first[:, None], second[:, None])
    difference = paired_difference((evaluations[0], evaluations[1]), *arrays, groups)
    gain = (first == y).astype(float) - (second == y)
    expected = bootstrap(lambda rows: gain[rows].mean(), groups)
    assert difference.value == pytest.approx(gain.mean())
    np.testing.assert_allclose(difference.interval, expected, atol=0.15 * np.ptp(expected))
    alone = paired_difference((evaluations[0], evaluations[1]), *arrays, np.zeros(len(y)))
    assert alone.interval is None  # one group says nothing about others


def test_the_interval_of_paired_accuracies_is_that_of_bonett_and_price():
    # (10 + 1) / 52 - (2 + 1) / 52, and 1.96 sqrt((14 / 52 - (8 / 52)^2) / 52)
    assert paired_interval(10, 2, 50) == pytest.approx((0.01916, 0.28854), abs=2e-5)
    assert paired_interval(2, 10, 50) == pytest.approx((-0.28854, -0.01916), abs=2e-5)
    low, high = paired_interval(0, 0, 50)
    assert low == -high and high > 0.05  # two readouts that agree on 50 rows may differ on others
