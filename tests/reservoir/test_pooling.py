"""Poolings of padded rows, compared with numpy on the real tokens of each row."""

import itertools

import numpy as np
import pytest
import torch

from reservoir.errors import InputError
from reservoir.pooling import LayerPooling, check_poolings, parse_column, pool, pooled_shape

TOKENS, WIDTH, LONGEST = 12, 5, 15


def stretches(h, number):
    bounds = [i * len(h) // number for i in range(number + 1)]
    return np.concatenate([h[a : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(bounds)])


def quantiles(h, number):
    return np.quantile(h, [(i + 1) / (number + 1) for i in range(number)], axis=0).ravel()


def shares(h, number):
    ends = np.arcsinh(18 / 0.06)
    return np.stack([(h > level).mean(0) for level in 0.06 * np.sinh(np.linspace(-ends, ends, number))]).ravel()


PLAIN = {
    "mean": lambda h: h.mean(0),
    "std": lambda h: h.std(0),
    "min": lambda h: h.min(0),
    "max": lambda h: h.max(0),
    "first": lambda h: h[0],
    "segments1": lambda h: h.mean(0),
    "segments3": lambda h: stretches(h, 3),
    "segments8": lambda h: stretches(h, 8),
    "segments20": lambda h: stretches(h, 20),
    "quantiles1": lambda h: np.median(h, axis=0),
    "quantiles4": lambda h: quantiles(h, 4),
    "quantiles9": lambda h: quantiles(h, 9),
    "shares1": lambda h: (h > 0).mean(0),
    "shares4": lambda h: shares(h, 4),
    "shares13": lambda h: shares(h, 13),
    "tokens": lambda h: np.pad(h, ((0, LONGEST - len(h)), (0, 0))).ravel(),
}


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("pooling", PLAIN)
def test_poolings_of_real_tokens_equal_numpy(pooling, offset):
    hidden = offset + torch.randn(6, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 1, 7, 2, 12, 5])
    for padding in (float("nan"), float("inf"), float("-inf"), 1e30):
        poisoned = hidden.masked_fill((torch.arange(TOKENS) >= lengths[:, None])[:, :, None], padding)
        found = pool(poisoned, lengths, pooling, max_tokens=LONGEST)
        assert found.shape == (6, *pooled_shape(pooling, WIDTH, LONGEST, 1))
        assert found.dtype == torch.float32
        for row, n in enumerate(lengths.tolist()):
            expected = PLAIN[pooling](hidden[row, :n].double().numpy())
            np.testing.assert_allclose(found[row, 0], expected, rtol=1e-6, atol=1e-6 + 1e-7 * offset)


def test_quantiles_of_equal_values():
    hidden = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0])[None, :, None]
    assert pool(hidden, torch.tensor([5]), "quantiles3").flatten().tolist() == [1.0, 2.0, 2.0]
    assert pool(hidden, torch.tensor([2]), "quantiles3").flatten().tolist() == [1.0, 1.0, 1.0]
    assert pool(hidden, torch.tensor([2]), "std").item() == 0


def test_too_many_tokens_side_by_side_are_refused():
    assert pooled_shape("tokens", 64, 256, 1) == (1, 16_384)
    with pytest.raises(InputError, match="pooling tokens: 257 tokens of 64 channels side by side are 16,448,"):
        pooled_shape("tokens", 64, 257, 1)


@pytest.mark.parametrize(
    "name", ["segments", "segmentsK", "segments0", "segments08", "mean8", "quantiles", "median", ""]
)
def test_unknown_poolings_are_refused(name):
    with pytest.raises(InputError, match="choose among last, mean"):
        check_poolings(["mean", name])
    with pytest.raises(InputError, match="pooling"):
        parse_column(f"block01/{name}")


def test_parse_column_splits_layer_and_pooling():
    assert parse_column("block06/quantiles9") == ("block06", "quantiles9")
    with pytest.raises(InputError, match="write layer/pooling"):
        parse_column("mean")


@pytest.mark.parametrize("lengths", [[12, 7, 1], [12, 12, 12]])
def test_poolings_that_share_a_sorted_copy_equal_each_one_by_torch_alone(lengths):
    hidden, counts = torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)), torch.tensor(lengths)
    shared = LayerPooling(hidden, counts, [*PLAIN, "all"], 1, LONGEST)
    for pooling in (*PLAIN, "all"):
        # Hidden states with gradients are pooled by torch alone, without numpy and without a shared copy.
        by_torch = pool(hidden.clone().requires_grad_(), counts, pooling, max_tokens=LONGEST).detach()
        assert torch.equal(shared(pooling), by_torch), pooling
    before = hidden.clone()
    shared("all").zero_()
    shared("max").zero_()
    assert torch.equal(hidden, before), "a result is a view of the hidden states"
