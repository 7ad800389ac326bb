"""Ridge from many blocks of stored precision equals float64, where float32 products would hide a penalty."""

import numpy as np
import pytest

from reservoir.readouts.device import Arithmetic, products_on
from reservoir.readouts.moments import fold_moments, training_moments
from reservoir.readouts.ridge import DEFAULT_ALPHAS, ridge_path
from reservoir.readouts.targets import Targets

ROWS, WIDTH = 170_000, 64


@pytest.fixture(scope="module")
def data():
    """Channels that nearly follow one another, so that Z'Z has eigenvalues from 1e7 down to 0.01, and labels."""
    rng = np.random.default_rng(0)
    spread = np.geomspace(0.3, 2e-4, WIDTH, dtype=np.float32)
    own, common = rng.standard_normal((ROWS, WIDTH), np.float32), rng.standard_normal((ROWS, 1), np.float32)
    x = own * spread @ rng.standard_normal((WIDTH, WIDTH), np.float32) / 8 + common
    x *= rng.uniform(0.5, 30, WIDTH).astype(np.float32)
    x[:, 3] += 300
    return x, (common + own @ rng.standard_normal((WIDTH, 2), np.float32) / 4 > 0).astype(int)


@pytest.fixture(scope="module")
def solution(data):
    """Coefficients of standardised features from the singular values of Z itself, which squares no condition."""
    x, y = data[0].astype(np.float64), np.where(data[1] == 1, 1.0, -1.0)
    mean, std = x.mean(0), x.std(0)
    z = np.concatenate([(x - mean) / std, y - y.mean(0)], axis=1)
    r = np.linalg.qr(np.concatenate([np.linalg.qr(z[i : i + 2000], "r") for i in range(0, ROWS, 2000)]), "r")
    left, values, right = np.linalg.svd(r[:WIDTH, :WIDTH])
    assert values[0] ** 2 > 9e6
    assert values[-1] ** 2 < 0.1
    along = left.T @ r[:WIDTH, WIDTH:]
    return std, [right.T @ ((values / (values**2 + alpha))[:, None] * along) for alpha in DEFAULT_ALPHAS]


@pytest.mark.parametrize("place", [Arithmetic(), Arithmetic("cpu")], ids=["numpy", "torch"])
@pytest.mark.parametrize("folds", [1, 3])
def test_coefficients_equal_float64_solutions_at_every_penalty(data, solution, place, folds):
    x, y = data
    blocks = [(x[i : i + 5000], y[i : i + 5000]) for i in range(0, ROWS, 5000)]
    with products_on(place):
        if folds == 1:
            moments = training_moments(blocks, Targets(2, 2))
        else:
            dealt = ((a, b, np.arange(len(a)) % folds) for a, b in blocks)
            parts = fold_moments(dealt, Targets(2, 2), folds)
            moments = parts[0] + parts[1] + parts[2]
    std, expected = solution
    for alpha, coef, right in zip(DEFAULT_ALPHAS, ridge_path(moments, DEFAULT_ALPHAS).coef, expected, strict=True):
        error = np.linalg.norm(coef * std[:, None] - right) / np.linalg.norm(right)
        assert error < 1e-6, f"penalty {alpha:g}: {error:.1e}"
