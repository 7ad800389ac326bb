"""Products on a torch device equal numpy's, on the CPU and, if there is one, on a GPU."""

import numpy as np
import pytest
import torch
from reservoir_pipelines.fitting import fit

from reservoir import devices
from reservoir.errors import InputError
from reservoir.options import DeviceOptions
from reservoir.readouts.linear import LinearPath, Scorer, Targets
from reservoir.readouts.moments import PRODUCT_ROWS, Moments, accumulate
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.readouts.products import Arithmetic, arithmetic, products_on
from reservoir.readouts.ridge import KernelMatrix, gather, ridge_path
from reservoir.readouts.sweep import cross_sweep, sweep

ROWS = 2 * PRODUCT_ROWS + 300


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


@pytest.mark.parametrize("rows", [600, 50])
@pytest.mark.parametrize("kind", ["constant", "rank 12"])
@pytest.mark.parametrize("alphas", [DEFAULT_ALPHAS, np.array([3.0]), np.array([1e-300, 1e-9, 1.0])])
def test_systems_of_all_penalties_are_solved_on_a_device_as_on_the_host(place, rows, kind, alphas):
    """Also if features are constant or depend on each other, and penalties are lost in rounding errors."""
    x, y = features(rows, 60, np.float64)
    if kind == "rank 12":
        x = x[:, 5:17] @ np.random.default_rng(1).standard_normal((12, 60))
    blocks, targets = [(x, y)], Targets(1, 3)
    expected = ridge_path(gather(blocks, targets), alphas)
    with products_on(place):
        training = gather(blocks, targets)
        path = ridge_path(training, alphas)
    if isinstance(training, Moments):
        assert training.xx.device.type == place.device  # no matrix comes to the host
    # Weights of directions in which rows do not differ are rounding errors, which the predictions do not see; but with
    # fewer rows, the weights of rows that depend on each other are as large as the inverse of the penalty.
    few_and_singular = rows < 60 and kind == "rank 12"
    solvable = alphas > 1e-6
    seen = solvable if few_and_singular else slice(None)
    assert largest_difference(Scorer(path)(x)[seen], Scorer(expected)(x)[seen]) < 1e-7
    assert np.isfinite(path.coef).all()
    assert largest_difference(path.coef[solvable], expected.coef[solvable]) < 1e-9
    assert not path.coef[:, 2].any() or kind == "rank 12"


def test_moments_that_were_stored_are_added_to_those_of_a_device(place):
    x, y = features(300, 8, np.float32)
    coded = Targets(1, 3).coded(y)
    whole = accumulate([(x, coded)])
    with products_on(place):
        stored = Moments.from_arrays(accumulate([(x[:100], coded[:100])]).to_arrays())
        both = stored + accumulate([(x[100:], coded[100:])])
        path = ridge_path(both.with_targets([(x, coded[:, :1])]), DEFAULT_ALPHAS)
    assert largest_difference(place.fetch(both.xx), whole.xx) < 1e-12
    assert largest_difference(path.coef, ridge_path(whole, DEFAULT_ALPHAS).coef[..., :1]) < 1e-9


@pytest.mark.parametrize(("capability", "name", "expected"), [
    ((9, 0), "auto", "cuda"), ((8, 6), "auto", None), ((8, 6), "cuda", "cuda"), ((10, 3), "auto", None),
])  # fmt: skip
def test_readouts_are_fitted_on_the_cpu_beside_a_gpu_that_is_slow_in_float64(monkeypatch, capability, name, expected):
    monkeypatch.setattr(fit, "may_have_gpu", lambda: True)
    monkeypatch.setattr(devices, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(devices, "describe", lambda device: "a card")
    assert fit._arithmetic(DeviceOptions(device=name)) == Arithmetic(expected)


def test_a_gpu_without_memory_is_one_line():
    with pytest.raises(InputError, match="cuda:1 has no memory"), fit._within_memory(Arithmetic("cuda:1")):
        raise torch.OutOfMemoryError


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
