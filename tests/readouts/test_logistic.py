"""Logistic paths equal scikit-learn's LogisticRegression for every penalty."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.errors import InputError
from reservoir.readouts.linear import Scorer, Targets, balanced_weights, score_path
from reservoir.readouts.logistic import logistic_path, logistic_sweep
from reservoir.readouts.moments import training_moments
from reservoir.readouts.ridge import gather

ALPHAS = np.array([0.3, 10.0, 1000.0])


def data(rows, width, classes, outputs=1, seed=0):
    """Return correlated features, one of them constant and one near 3000, and labels that are not separable."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) @ rng.standard_normal((width, width)) + 3
    x[:, 1] = 3000 + 0.5 * rng.standard_normal(rows)
    x[:, 2] = 7
    z = StandardScaler().fit_transform(x)
    scores = z @ rng.standard_normal((width, outputs * classes)) / np.sqrt(width)
    scores += rng.standard_normal(scores.shape)
    return x, scores.reshape(rows, outputs, classes).argmax(-1)


def blocks(x, y, size=170):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def reference(x, y, alpha, weights=None):
    scaler = StandardScaler().fit(x, sample_weight=weights)
    model = LogisticRegression(C=1 / alpha, tol=1e-10, max_iter=20_000)
    return scaler, model.fit(scaler.transform(x), y, sample_weight=weights)


def assert_equal(path, i, output, targets, x, scaler, model):
    columns = targets.classes if targets.classes > 2 else 1
    coef = path.coef[i][:, output * columns : (output + 1) * columns] * scaler.scale_[:, None]
    want = model.coef_.T / (2 if columns == 1 else 1)
    assert np.abs(coef - want).max() <= 1e-4 * np.abs(want).max()
    scores = Scorer(path)(x)[i][:, output * columns : (output + 1) * columns]
    want = model.predict_proba(scaler.transform(x))
    np.testing.assert_allclose(Targets(1, targets.classes).probabilities(scores)[:, 0], want, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize(("rows", "width"), [(600, 20), (60, 90)])
def test_logistic_path_equals_scikit_learn(classes, rows, width):
    x, y = data(rows, width, classes)
    targets = Targets(1, classes)
    path = logistic_path(blocks(x, y), targets, ALPHAS, gather(blocks(x, y), targets), tolerance=1e-7, passes=400)
    assert path.converged.all()
    assert not path.coef[:, 2].any()
    for i, alpha in enumerate(ALPHAS):
        assert_equal(path, i, 0, targets, x, *reference(x, y[:, 0], alpha))


@pytest.mark.parametrize("classes", [2, 3])
def test_outputs_are_independent_problems(classes):
    x, y = data(400, 12, classes, outputs=2)
    targets = Targets(2, classes)
    path = logistic_path([(x, y)], targets, ALPHAS, gather([(x, y)], targets), tolerance=1e-7)
    for i, alpha in enumerate(ALPHAS):
        for output in range(2):
            assert_equal(path, i, output, targets, x, *reference(x, y[:, output], alpha))


@pytest.mark.parametrize("rows", [500, 40])
def test_class_weights_are_sample_weights(rows):
    x, y = data(rows, 60, 3)
    y[rows // 2 :] = 0
    targets = Targets(1, 3, balanced_weights(np.bincount(y[:, 0], minlength=3)))
    path = logistic_path([(x, y)], targets, ALPHAS, gather([(x, y)], targets), tolerance=1e-7, passes=400)
    for i, alpha in enumerate(ALPHAS):
        assert_equal(path, i, 0, targets, x, *reference(x, y[:, 0], alpha, targets.weights(y)))


@pytest.mark.parametrize("store", [np.float32, np.float16])
def test_storage_precision_hardly_changes_the_solution(store):
    x, y = data(3000, 15, 4)
    x = x.astype(store)
    single = logistic_sweep(blocks(x, y), blocks(x, y), Targets(1, 4), ALPHAS)
    double = logistic_sweep(blocks(x.astype(float), y), blocks(x.astype(float), y), Targets(1, 4), ALPHAS)
    assert single.path.converged.all()
    np.testing.assert_allclose(Scorer(single.path)(x), Scorer(double.path)(x.astype(float)), atol=2e-3)
    np.testing.assert_allclose(single.accuracy, double.accuracy, atol=2e-3)


def test_logistic_sweep_scores_every_penalty():
    x, y = data(900, 10, 3)
    train, valid = blocks(x[:600], y[:600]), blocks(x[600:], y[600:])
    found = logistic_sweep(train, valid, Targets(1, 3))
    again = logistic_sweep(train, valid, Targets(1, 3), moments=training_moments(train, Targets(1, 3)))
    np.testing.assert_array_equal(found.accuracy, again.accuracy)
    np.testing.assert_array_equal(found.accuracy, score_path(found.path, valid, Targets(1, 3)).accuracy())
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / found.alpha, tol=1e-6, max_iter=2000))
    expected = model.fit(x[:600], y[:600, 0]).score(x[600:], y[600:, 0])
    assert abs(found.accuracy[found.best] - expected) <= 0.005
    assert found.accuracy[found.best] == found.accuracy.max()


def test_too_few_passes_are_reported():
    x, y = data(300, 10, 3)
    path = logistic_path([(x, y)], Targets(1, 3), ALPHAS, gather([(x, y)], Targets(1, 3)), tolerance=1e-9, passes=5)
    assert not path.converged[0]


def test_wrong_requests_are_refused():
    x, y = data(50, 5, 3)
    with pytest.raises(InputError, match="real values"):
        logistic_sweep([(x, y)], [(x, y)], Targets(1, 0))
    with pytest.raises(InputError, match="positive"):
        logistic_sweep([(x, y)], [(x, y)], Targets(1, 3), np.array([0.0, 1.0]))


@pytest.mark.parametrize("rows", [200, 40])  # moments, and samples
def test_samples_without_weight_do_not_change_the_readout(rows):
    x, y = data(rows, 60, 3)
    targets, others = Targets(1, 3, (1.0, 0.0, 1.0)), x.copy()
    others[y[:, 0] == 1] += 5
    path, other = (logistic_path([(x, y)], targets, ALPHAS, gather([(x, y)], targets)) for x in (x, others))
    assert path.converged.all() and path.coef.any()
    np.testing.assert_allclose(path.coef, other.coef, atol=1e-5 * np.abs(path.coef).max())


def test_a_class_without_samples_is_never_predicted():
    x, y = data(300, 10, 3)
    y[y == 1] = 2
    path = logistic_path([(x, y)], Targets(1, 3), ALPHAS, gather([(x, y)], Targets(1, 3)))
    assert path.converged.all()
    assert Targets(1, 3).probabilities(Scorer(path)(x)[1])[..., 1].max() < 1e-6


@pytest.mark.parametrize("rows", [40, 12])  # moments, and samples
@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (4, 1), (3, 2)])
def test_constant_features_score_as_the_largest_class(classes, outputs, rows):
    x, y = np.full((rows, 20), 0.1, np.float32), np.ones((rows, outputs), int)
    y[:classes] = np.arange(classes)[:, None]
    found = logistic_sweep(blocks(x, y), blocks(x, y), Targets(outputs, classes), ALPHAS)
    assert found.path.converged.all()
    assert not found.path.coef.any()
    np.testing.assert_allclose(found.accuracy, (y == 1).mean(), rtol=1e-12)
