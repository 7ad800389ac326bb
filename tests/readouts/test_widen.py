"""Widening: every float16 there is, and what is wide already."""

import numpy as np
import pytest

from reservoir.readouts.widen import widen


def test_every_half_precision_value_is_kept():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(widen(every), every.astype(np.float32))
    np.testing.assert_array_equal(
        widen(every.reshape(256, 256)[:, ::3]), every.reshape(256, 256)[:, ::3].astype(np.float32)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8, np.int16])
def test_an_array_given_is_filled(dtype):
    x, out = np.arange(12).reshape(3, 4).astype(dtype), np.empty((3, 4), np.float32)
    assert widen(x, out) is out
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize(
    ("dtype", "wide"), [(np.uint8, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
def test_precision_is_not_lost(dtype, wide):
    x = np.arange(5, dtype=dtype)
    assert widen(x).dtype == wide
    assert (widen(x) is x) == (dtype == wide)
