"""Kernel ridge regression, compared with scikit-learn, with the closed form and with ridge regression."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from reservoir.readouts import kernel_ridge
from reservoir.readouts.kernel_ridge import (
    KernelReadout,
    PanelsInMemory,
    Standardised,
    arccos_kernel,
    factorise,
    solve_factored,
)
from reservoir.readouts.linear import Targets
from reservoir.readouts.ridge import ridge_by_definition

RNG = np.random.default_rng(0)
X, NEW = RNG.standard_normal((90, 12)) * 3 + 1, RNG.standard_normal((40, 12)) * 3 + 1
Y = RNG.integers(0, 4, 90)
TARGETS = Targets(1, 4)


def fitted(kernel, alpha, panels=None):
    training = Standardised.of(X.astype(np.float32))
    panels = panels or PanelsInMemory()
    factorise(training, kernel, alpha, panels)
    coded = TARGETS.coded(Y[:, None])
    offset = coded.mean(axis=0, dtype=np.float64)
    return KernelReadout.of(training, kernel, solve_factored(panels, coded - offset), offset, TARGETS)


def test_the_arc_cosine_kernel_is_that_of_an_infinitely_wide_layer_of_rectified_units():
    x = RNG.standard_normal((6, 5))
    kernel = arccos_kernel(x @ x.T, *[np.square(x).sum(axis=1)] * 2)
    np.testing.assert_allclose(np.diag(kernel), np.square(x).sum(axis=1))
    # E[2 max(w'x, 0) max(w'y, 0)] over Gaussian weights w.
    outputs = np.maximum(x @ RNG.standard_normal((5, 2_000_000)), 0)
    np.testing.assert_allclose(2 * outputs @ outputs.T / outputs.shape[1], kernel, rtol=0.02, atol=0.02)
    assert not arccos_kernel(np.zeros((1, 1)), np.zeros(1), np.zeros(1)).any()


@pytest.mark.parametrize("panel", [7, 30, 90, 2048])
@pytest.mark.parametrize("kernel", ["linear", "arccos"])
def test_panels_of_any_size_equal_scikit_learn_of_the_whole_kernel(kernel, panel, monkeypatch):
    monkeypatch.setattr(kernel_ridge, "PANEL", panel)
    readout = fitted(kernel, 0.03)
    mean, scale = X.astype(np.float32).mean(axis=0), X.astype(np.float32).std(axis=0) * np.sqrt(12)
    train, new = ((rows.astype(np.float32) - mean) / scale for rows in (X, NEW))

    def gram(a, b):
        return kernel_ridge.KERNELS[kernel](a @ b.T, np.square(a).sum(axis=1), np.square(b).sum(axis=1))

    coded = np.where(Y[:, None] == np.arange(4), 1.0, -1.0)
    peer = KernelRidge(alpha=0.03, kernel="precomputed").fit(gram(train, train), coded - coded.mean(axis=0))
    expected = peer.predict(gram(new, train)) + coded.mean(axis=0)
    np.testing.assert_allclose(readout.scores(NEW), expected, rtol=2e-4, atol=2e-5)
    assert readout.probabilities(NEW).shape == (40, 1, 4)
    assert np.array_equal(readout.predict(NEW)[:, 0], readout.probabilities(NEW)[:, 0].argmax(axis=1))


def test_the_linear_kernel_is_ridge_regression():
    readout = fitted("linear", 0.5)
    coef, intercept = ridge_by_definition(X.astype(np.float32), TARGETS.coded(Y[:, None]), 0.5 * 12)
    np.testing.assert_allclose(readout.scores(NEW), NEW @ coef + intercept, rtol=1e-5, atol=1e-5)


def test_a_resumed_factorisation_equals_an_uninterrupted_one(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "PANEL", 20)

    class Killed(PanelsInMemory):
        may_save = 2

        def save(self, number, panel):
            if not self.may_save:
                raise KeyboardInterrupt
            self.may_save -= 1
            super().save(number, panel)

    panels = Killed()
    with pytest.raises(KeyboardInterrupt):
        fitted("arccos", 0.1, panels)
    first = [panels.load(number) for number in (0, 1)]
    assert panels.load(2) is None
    panels.may_save = 10
    resumed = fitted("arccos", 0.1, panels)
    assert all(panels.load(number) is panel for number, panel in enumerate(first))
    np.testing.assert_array_equal(resumed.dual, fitted("arccos", 0.1).dual)


def test_a_readout_is_the_same_from_its_arrays_and_refuses_others():
    readout = fitted("arccos", 0.1).calibrate([(NEW, RNG.integers(0, 4, (40, 1)))])
    arrays, settings = readout.to_arrays()
    again = KernelReadout.from_arrays(arrays, settings)
    np.testing.assert_array_equal(again.probabilities(NEW), readout.probabilities(NEW))
    with pytest.raises(ValueError, match=r"dual is float64 of the shape \(89, 4\)"):
        KernelReadout.from_arrays(arrays | {"kernel.dual": readout.dual[1:]}, settings)
    with pytest.raises(ValueError, match="another kernel"):
        KernelReadout.from_arrays(arrays, settings | {"kernel": "rbf"})


def test_constant_features_and_feature_weights_of_zero_change_nothing():
    wide = np.concatenate([X, np.full((90, 1), 3.0), X[:, :1]], axis=1).astype(np.float32)
    training = Standardised.of(wide, np.array([1.0] * 13 + [0.0]))
    assert not training.rows[:, 12:].any()
    plain = Standardised.of(X.astype(np.float32))
    np.testing.assert_allclose(training.rows[:, :12] * np.sqrt(14 / 12), plain.rows, rtol=1e-5, atol=1e-6)
