"""Products on a torch device equal numpy's, on the CPU and, if there is one, on a GPU."""

import numpy as np
import pytest
import torch

from reservoir.readouts.linear import LinearPath, Scorer, Targets
from reservoir.readouts.moments import BLOCK_ROWS, accumulate
from reservoir.readouts.products import Arithmetic, arithmetic, products_on
from reservoir.readouts.ridge import KernelMatrix
from reservoir.readouts.sweep import cross_sweep, sweep

ROWS = 2 * BLOCK_ROWS + 300


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return Arithmetic(request.param)


def features(rows, width, dtype):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, width)) * np.geomspace(0.1, 10, width)
    x[:, 1] = 300 + 0.5 * x[:, 1]
    x[:, 2] = 0.1
    return x.astype(dtype), draw.integers(0, 3, (rows, 1))


def largest_difference(a, b):
    """Return the largest difference of two arrays, relative to the largest value."""
    assert a.shape == b.shape and a.dtype == b.dtype
    return np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_moments_on_a_device_equal_numpy(place, dtype, weighted):
    x, y = features(ROWS, 20, dtype)
    weights = [np.random.default_rng(1).random(ROWS)] if weighted else []
    blocks = [tuple(part[i : i + 777] for part in (x, Targets(1, 3).coded(y), *weights)) for i in range(0, ROWS, 777)]
    expected = accumulate(blocks)
    with products_on(place):
        found = accumulate(blocks)
    deviation = np.sqrt(expected.count) * np.where(expected.std > 0, expected.std, 1)
    scales = {"xx": np.outer(deviation, deviation), "xy": deviation[:, None] * np.sqrt(expected.count)}
    for name, value in expected.to_arrays().items():
        scale = scales.get(name, np.abs(value).max())
        assert (np.abs(found.to_arrays()[name] - value) / scale).max() < 1e-12, name
    assert found.std[2] == expected.std[2] == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 1e-6), (np.float32, 1e-6), (np.float64, 1e-12)])
def test_scores_and_kernel_form_on_a_device_equal_numpy(place, dtype, tolerance):
    x, y = features(60, 90, dtype)
    coded, alphas = Targets(1, 3).coded(y), np.geomspace(0.1, 100, 4)
    path = KernelMatrix(x).path(coded, alphas)
    with products_on(place):
        found, scorer = KernelMatrix(x).path(coded, alphas), Scorer(path)
    assert largest_difference(found.coef, path.coef) < 1e-10 and isinstance(found, LinearPath)
    assert largest_difference(scorer(x), Scorer(path)(x)) < tolerance


def test_sweeps_on_a_device_choose_the_same_penalty(place):
    x, y = features(500, 12, np.float32)
    x[:, 0] += y[:, 0]
    train, valid = [(x[:400], y[:400])], [(x[400:], y[400:])]
    folds, targets = [(x, y, np.arange(500) % 4)], Targets(1, 3)
    here = sweep(train, valid, targets), cross_sweep(folds, targets, folds=4)
    with products_on(place):
        there = sweep(train, valid, targets), cross_sweep(folds, targets, folds=4)
    for a, b in zip(there, here, strict=True):
        np.testing.assert_array_equal(a.accuracy, b.accuracy)
        assert a.alpha == b.alpha


def test_matmul_precision_of_the_process_is_neither_used_nor_changed(place):
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    torch.set_float32_matmul_precision("medium")
    try:
        with products_on(place):
            assert torch.get_float32_matmul_precision() == "highest"
            found = place.fetch(place.product(place.put(x), place.put(x)))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert largest_difference(found.astype(np.float64), x.astype(np.float64) @ x.astype(np.float64)) < 2e-6


def test_products_on_applies_inside_its_block_only(place):
    outside = arithmetic()
    with pytest.raises(ValueError, match="stop"), products_on(place):
        assert arithmetic() is place
        raise ValueError("stop")
    assert arithmetic() is outside
