"""Scores of labels equal those of scikit-learn."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from reservoir.readouts.evaluation import evaluate_blocks, evaluate_labels, recall_at_rate, threshold_for_rate
from reservoir.readouts.kernel_ridge import KernelReadout, Standardised
from reservoir.readouts.linear import Targets


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
