"""Held-out scores from a kernel matrix equal those of a refit without each fold."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from reservoir.readouts.folds import _scores, draw_folds, kernel_matrix, score_by_kernel
from reservoir.readouts.targets import Targets


def data(classes):
    draw = np.random.default_rng(0)
    x = draw.normal(3, 2, (40, 60))
    x[:, 5] = 7
    y = draw.integers(0, classes, (40, 1)) if classes else x[:, :2] @ [[1, 0], [1, 2]] + draw.normal(0, 1, (40, 2))
    return x, y, Targets(y.shape[1], classes)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_held_out_scores_equal_refits_on_the_other_folds(classes):
    x, y, targets = data(classes)
    folds = draw_folds(40, 5)
    z = np.where(x.std(0) > 0, (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1), 0)
    coded = targets.encode(y)
    alphas = np.array([0.5, 300.0])
    for alpha, scores in _scores(kernel_matrix(x), coded, folds[None], alphas):
        wanted = np.empty_like(scores[0])
        for k in range(5):
            model = Ridge(alpha).fit(z[folds != k], coded[folds != k])
            wanted[folds == k] = model.predict(z[folds == k]).reshape(-1, coded.shape[1])
        np.testing.assert_allclose(scores[0], wanted, atol=2e-4)


def test_kernel_matrices_of_columns_add_up():
    x, _, _ = data(2)
    np.testing.assert_allclose(kernel_matrix(x), kernel_matrix(x[:, :20]) + kernel_matrix(x[:, 20:]), atol=1e-3)


def test_ties_in_accuracy_go_to_the_smaller_loss():
    draw = np.random.default_rng(1)
    y = np.arange(30)[:, None] % 2
    x = 4.0 * y + draw.normal(0, 0.5, (30, 8))
    folds = np.stack([draw_folds(30, 5, repeat=r) for r in range(2)])
    found = score_by_kernel(kernel_matrix(x), y, Targets(1, 2), folds)
    larger = score_by_kernel(kernel_matrix(x), y, Targets(1, 2), folds, np.array([500.0]))
    assert found.score == larger.score == 1
    assert found.alpha < larger.alpha
    assert found.loss < larger.loss
    assert found.losses.shape == (30,)
    assert np.isclose(found.losses.mean(), found.loss)
