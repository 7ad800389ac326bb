"""What rounding keeps and what is refused."""

import numpy as np
import pytest
import torch
from reservoir_cache import CacheError
from reservoir_cache.shard import bfloat16_bits, decode, encode

STORES = ["float16", "bfloat16", "float32"]


def test_a_channel_far_from_zero_keeps_its_digits():
    rng = np.random.default_rng(0)
    x = (3000 + rng.uniform(-0.5, 0.5, (256, 1, 4))).astype(np.float32)
    assert len(np.unique(x.astype(np.float16))) <= 3
    assert np.abs(decode(encode(x, "float16", column="c"), "float16") - x).max() <= 2**-12 + 2**-12


def test_bfloat16_equals_torchs_on_every_upper_half_and_around_every_tie():
    high = np.arange(2**16, dtype=np.uint32) << 16
    bits = np.concatenate([high + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    theirs = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bfloat16_bits(x), theirs)


@pytest.mark.parametrize("store", STORES)
def test_constant_channels_are_exact(store):
    x = np.broadcast_to(np.array([0.1, -3e4, 7e-42, 1e30], np.float32), (9, 2, 4))
    np.testing.assert_array_equal(decode(encode(x, store, column="c"), store), x)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(store, value):
    x = np.zeros((6, 2, 3), np.float32)
    x[4, 1, 2] = value
    with pytest.raises(CacheError, match=r"column block06/mean, row 1028, token 1, channel 2: .*not finite"):
        encode(x, store, column="block06/mean", first_row=1024)


def test_opposite_infinities_do_not_hide_each_other(recwarn):
    x = np.zeros((2, 1, 2), np.float32)
    x[0, 0, 1], x[1, 0, 1] = np.inf, -np.inf
    with pytest.raises(CacheError, match="row 0, token 0, channel 1: inf"):
        encode(x, "float32", column="c")
    assert not recwarn.list


@pytest.mark.parametrize(("store", "limit"), [("float16", 65520.0), ("bfloat16", 3.3961776e38)])
def test_the_first_value_that_rounds_to_infinity_is_refused(store, limit):
    x = np.zeros((2, 1, 2), np.float32)
    for sign in (1, -1):  # the offset is zero, so the residual is the value
        x[:, 0, 1] = np.float32(limit) * np.array([sign, -sign])
        with pytest.raises(CacheError, match=rf"row 0, token 0, channel 1: .*overflows {store}.*--store float32"):
            encode(x, store, column="c")
    x[:, 0, 1] = np.nextafter(np.float32(limit), np.float32(0)) * np.array([1, -1], np.float32)
    assert np.isfinite(decode(encode(x, store, column="c"), store)).all()


def test_a_spread_beyond_float32_is_an_overflow_and_not_a_warning(recwarn):
    x = np.array([[[3e38]], [[-3e38]], [[3e38]]], np.float32)
    with pytest.raises(CacheError, match="overflows bfloat16"):
        encode(x, "bfloat16", column="c")
    assert not recwarn.list


def test_the_value_named_as_an_overflow_is_the_farthest_from_its_channels_mean():
    x = np.zeros((5, 2, 3), np.float32)
    x[:, :, 0] = [[1e-3, 2e5]] * 5  # the first values that overflow lie near zero, and 1e5 from the mean
    x[:, :, 1] = -1e6  # at the mean
    x[3, 1, 2] = -4e5
    expected = (
        r"column c, row 13, token 1, channel 2: -400000 lies 3.6e\+05 from its channel's mean, which overflows "
        "float16; extract with --store float32 or --store bfloat16$"
    )
    with pytest.raises(CacheError, match=expected):
        encode(x, "float16", column="c", first_row=10)
