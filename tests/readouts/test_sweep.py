"""The sweep: form, accuracies and choice of penalty, and the resulting readout."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.moments import training_moments
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.sweep import Tally, sweep
from reservoir.readouts.targets import Targets


def task(rows, width, classes, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((width, outputs, max(classes, 1))) / np.sqrt(width)
    x = (rng.standard_normal((rows + 200, width)) * np.geomspace(0.1, 10, width) + 3).astype(np.float32)
    noisy = np.einsum("nw,woc->noc", (x - 3) / np.geomspace(0.1, 10, width), truth)
    noisy += 0.7 * rng.standard_normal(noisy.shape)
    y = noisy.argmax(-1) if classes > 2 else (noisy[..., 0] > 0).astype(int) if classes else noisy[..., 0]
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def blocks(data, size=64):
    x, y = data
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("rows", "width"), [(500, 30), (60, 90)])
def test_accuracies_equal_ridge_classifier(classes, rows, width):
    train, valid = task(rows, width, classes)
    found = sweep(blocks(train), blocks(valid), Targets(1, classes))
    expected = [
        make_pipeline(StandardScaler(), RidgeClassifier(alpha=alpha))
        .fit(train[0].astype(np.float64), train[1][:, 0])
        .score(valid[0].astype(np.float64), valid[1][:, 0])
        for alpha in DEFAULT_ALPHAS
    ]
    np.testing.assert_allclose(found.accuracy, expected)
    assert found.accuracy[found.best] == max(expected)
    best = found.accuracy == max(expected)
    assert found.alpha == DEFAULT_ALPHAS[best][np.argmin(found.loss[best])]


def test_sweep_with_moments_does_not_read_train():
    train, valid = task(300, 20, 3)
    first = sweep(blocks(train), blocks(valid), Targets(1, 3))
    moments = training_moments(blocks(train), Targets(1, 3))
    again = sweep(iter(()), blocks(valid), Targets(1, 3), moments=moments)
    np.testing.assert_array_equal(first.accuracy, again.accuracy)
    finer = sweep([], blocks(valid), Targets(1, 3), np.geomspace(1, 100, 7), moments=moments)
    assert finer.accuracy.shape == (7,)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_readout_scores_as_in_the_sweep_also_after_storage(classes):
    train, valid = task(400, 20, classes, outputs=2)
    found = sweep(blocks(train), blocks(valid), Targets(2, classes))
    readout = found.readout()
    np.testing.assert_allclose(
        Tally(readout.targets).update(readout.scores(valid[0])[None], valid[1]).accuracy(),
        found.accuracy[found.best],
        rtol=1e-6,
    )
    np.testing.assert_array_equal(readout.coef, found.path.coef[found.best])
    back = LinearReadout.from_arrays(*readout.calibrate(blocks(valid)).to_arrays())
    np.testing.assert_array_equal(back.predict(valid[0]), readout.predict(valid[0]))
    assert (back.temperature == 1) == (classes == 0)
    if classes:
        assert back.probabilities(valid[0]).shape == (200, 2, classes)
        np.testing.assert_array_equal(back.probabilities(valid[0]).argmax(-1), readout.predict(valid[0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "width"), [(12_000, 6), (60, 90)])
def test_real_targets_far_from_zero_keep_the_digits_of_their_scores(rows, width, dtype):
    (x, y), (far, other) = task(rows, width, 0)
    y, other = ((1e5 + 0.3 * part).astype(dtype) for part in (y, other))
    targets = Targets(1, 0)
    alphas = np.geomspace(0.1, 1000, 5)
    expected = []
    for alpha in alphas:
        peer = make_pipeline(StandardScaler(), Ridge(alpha=alpha)).fit(x.astype(np.float64), y.astype(np.float64))
        expected.append(peer.score(far.astype(np.float64), other.astype(np.float64)))
    found = sweep(blocks((x, y)), blocks((far, other)), targets, alphas)
    np.testing.assert_allclose(found.accuracy, expected, atol=2e-6)
