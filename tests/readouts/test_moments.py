"""Moments equal float64 sums over all rows, for blocks of any size and for sums of parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir.errors import InputError
from reservoir.readouts.moments import BLOCK_ROWS, Moments, accumulate

ROWS = 3 * BLOCK_ROWS + 517


def direct(x, y, weights=None):
    x, y = x.astype(np.float64), y.astype(np.float64)
    weights = np.ones(len(x)) if weights is None else weights
    mean, y_mean = np.average(x, axis=0, weights=weights), np.average(y, axis=0, weights=weights)
    x, y = x - mean, y - y_mean
    weighted = (x * weights[:, None]).T
    return Moments(count=weights.sum(), mean=mean, xx=weighted @ x, xy=weighted @ y, y_mean=y_mean)


def assert_close(a, b, rtol, atol=0.0):
    for name, value in a.to_arrays().items():
        other = b.to_arrays()[name]
        np.testing.assert_allclose(value, other, rtol=rtol, atol=atol + rtol * np.abs(other).max(), err_msg=name)


def pieces(x, y, cuts):
    return zip(np.split(x, cuts), np.split(y, cuts), strict=True)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 12)).astype(np.float32) * np.geomspace(1e-3, 1e3, 12, dtype=np.float32)
    x[:, 4] = 3000 + np.clip(rng.standard_normal(len(x)), -1, 1) * 0.5
    x[:, 7] = 0.1
    return x, rng.choice([-1.0, 1.0], (len(x), 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_of_many_blocks_equal_direct_sums(data, dtype):
    x, y = data[0].astype(dtype), data[1]
    moments = accumulate([(x, y)])
    assert_close(moments, direct(x, y), 1e-12)
    np.testing.assert_array_equal(moments.xx, moments.xx.T)
    np.testing.assert_allclose(moments.std, x.astype(np.float64).std(axis=0), rtol=1e-12, atol=1e-15)
    assert moments.std[7] == 0


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, ROWS), max_size=12).map(sorted))
def test_moments_do_not_depend_on_pieces(cuts):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, 5)).astype(np.float32) + 7
    y = rng.standard_normal((len(x), 2)).astype(np.float32)
    whole, parts = accumulate([(x, y)]).to_arrays(), accumulate(pieces(x, y, cuts)).to_arrays()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(1, 399), shift=st.floats(-100, 100), dead=st.booleans())
def test_moments_of_two_parts_add_up(cut, shift, dead):
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((400, 6)) + shift, rng.standard_normal((400, 2))
    if dead:
        x[:, 0] = shift
    a, b = (accumulate([part]) for part in pieces(x, y, [cut]))
    assert_close(a + b, accumulate([(x, y)]), 1e-10)
    assert not dead or (a + b).std[0] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_count_as_repetitions(dtype):
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((ROWS, 4)).astype(dtype) + 5, rng.standard_normal((ROWS, 2))
    weights = rng.integers(0, 4, len(x))
    weighted = accumulate([(x, y, weights)])
    repeated = accumulate([(np.repeat(x, weights, axis=0), np.repeat(y, weights, axis=0))])
    assert_close(weighted, repeated, 1e-12)


def test_arrays_round_trip(data):
    moments = accumulate([data])
    assert_close(Moments.from_arrays(moments.to_arrays()), moments, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_a_value_that_is_not_finite_is_named(data, value):
    x = data[0].astype(np.float64)
    x[-1, 9] = value
    with np.errstate(all="ignore"), pytest.raises(InputError, match="feature 9"):
        accumulate([(x, data[1])])


@pytest.mark.parametrize("blocks", [[], [(np.ones((2, 3)), np.ones((2, 1)), np.zeros(2))]])
def test_data_without_weight_is_refused(blocks):
    with pytest.raises(InputError, match="no sample"):
        accumulate(blocks)


def test_other_targets_need_only_their_own_products(data):
    x, y = data
    other = np.random.default_rng(1).normal(5, 2, (len(x), 4))
    moments = accumulate([(x, y)]).with_targets(pieces(x, other, [100, 3000]))
    assert_close(moments, accumulate([(x, other)]), 1e-9, 1e-6)
