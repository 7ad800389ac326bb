"""A learned weighted sum finds the predictive layer, and equals a linear readout of the columns."""

import numpy as np
import pytest

from reservoir.readouts.linear import Targets
from reservoir.readouts.weighted import learn_layers, weighted_sweep

ALPHAS = np.logspace(-1, 3, 5)


def make_layers(rows, classes, draw):
    """Return three concatenated layers (rows, 3 * 8), of which only the second predicts the label, and the labels."""
    z = draw.normal(size=(rows, 3, 8))
    values = z[:, 1] @ np.linspace(-1, 1, 8)
    y = values[:, None] if not classes else np.digitize(values, [0] if classes == 2 else [-1, 1])[:, None]
    return (z * np.array([1, 50, 0.1])[:, None] + 7).reshape(rows, -1).astype(np.float32), y


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_layer_that_predicts_has_the_weight(classes):
    draw = np.random.default_rng(0)
    train, valid = ([make_layers(rows, classes, draw)] for rows in (400, 100))
    targets = Targets(1, classes, (1.0,) * classes or None)
    layers = learn_layers(train, valid, targets, ALPHAS, layers=3, samples=400)
    assert layers.weights.sum() == pytest.approx(1) and layers.weights[1] > 0.9
    swept = weighted_sweep(train, valid, targets, layers, ALPHAS)
    assert swept.accuracy[swept.best] > (0.75 if classes == 3 else 0.85)
    # The readout of the concatenated columns gives the same scores as that of the sum.
    (x, _), readout = valid[0], swept.readout()
    (total, _), *_ = layers.blocks(valid)
    expected = np.linalg.lstsq(np.c_[total, np.ones(100)], readout.scores(x), rcond=None)
    assert expected[1] == pytest.approx(0, abs=1e-6)


def test_many_rows_are_thinned_and_constant_layers_count_nothing():
    draw = np.random.default_rng(0)
    x, y = make_layers(9000, 2, draw)
    x[:, :8] = 3.0
    blocks = [(x[start : start + 1000], y[start : start + 1000]) for start in range(0, 9000, 1000)]
    layers = learn_layers(blocks, [make_layers(100, 2, draw)], Targets(1, 2), ALPHAS, layers=3, samples=9000)
    assert layers.weights[1] > layers.weights[2] and np.isfinite(layers.weights).all()
