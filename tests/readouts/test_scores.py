"""Scores of labels equal those of scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from reservoir.readouts.evaluation import evaluate_labels


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
