"""Many real targets: equal to scikit-learn's RidgeCV with a penalty per target, and to the path of all weights."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from reservoir.readouts import RidgeSweepRegressor, Targets, accumulate, ridge_path, sweep
from reservoir.readouts.linear import Scorer
from reservoir.readouts.spectral import SpectralPath

ALPHAS = np.logspace(-2, 4, 7)


def draw(targets: int, rows: int = 60, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return features, and targets of which each has another share of noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width))
    noise = np.geomspace(0.03, 30, targets)
    return x, x @ rng.standard_normal((width, targets)) + noise * rng.standard_normal((rows, targets)) + 5


@pytest.mark.parametrize("targets", [3, 20])
def test_penalty_per_target_equals_scikit_learn(targets):
    x, y = draw(targets)
    ours = RidgeSweepRegressor(ALPHAS, cv=KFold(len(x)), alpha_per_target=True).fit(x, y)
    z = StandardScaler().fit_transform(x)
    theirs = RidgeCV(ALPHAS, alpha_per_target=True).fit(z, y)  # leaves one out, in closed form
    assert len(np.unique(ours.alpha_)) > 1
    np.testing.assert_array_equal(ours.alpha_, theirs.alpha_)
    np.testing.assert_allclose(ours.best_score_, 1 + theirs.best_score_ / y.var(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(z), rtol=1e-8)


def test_one_penalty_for_many_targets_is_the_best_on_average():
    x, y = draw(20)
    each = RidgeSweepRegressor(ALPHAS, alpha_per_target=True).fit(x, y)
    ours = RidgeSweepRegressor(ALPHAS).fit(x, y)
    np.testing.assert_allclose(ours.cv_scores_, each.cv_scores_.mean(axis=1), rtol=1e-12)
    assert ours.alpha_ == ALPHAS[np.argmax(ours.cv_scores_)]
    z = StandardScaler().fit_transform(x)
    np.testing.assert_allclose(ours.predict(x), Ridge(alpha=ours.alpha_).fit(z, y).predict(z), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spectral_squares_equal_those_of_the_scores(dtype):
    x, y = draw(20, rows=300)
    x[:, 2] = 3000 + 0.5 * x[:, 2]
    x[:, 5] = 1  # a constant feature
    x, y, weights = x.astype(dtype), y + 1e5, np.random.default_rng(1).random(300)
    moments = accumulate([(x, y, weights)])
    scores = Scorer(ridge_path(moments, ALPHAS), Targets(20, 0))(x.astype(np.float64))
    squares = SpectralPath.of(moments, ALPHAS).squares(x, y, weights)
    np.testing.assert_allclose(squares, weights @ np.square(scores - y), rtol=2e-6 if dtype == np.float32 else 1e-9)


def test_many_targets_choose_the_same_penalties_as_few():
    x, y = draw(20, rows=100)
    train, valid = (x[:70], y[:70]), (x[70:], y[70:])
    many = sweep([train], [valid], Targets(20, 0), ALPHAS)
    few = [sweep([(x[:70], y[:70, [t]])], [(x[70:], y[70:, [t]])], Targets(1, 0), ALPHAS) for t in range(20)]
    np.testing.assert_allclose(many.accuracy, np.mean([one.accuracy for one in few], axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(many.best_by_target(), [one.best for one in few])
    np.testing.assert_allclose(many.readout().coef[:, [3]], few[3].path.coef[many.best], rtol=1e-8, atol=1e-10)
