"""The precision that --compute auto takes on a CPU."""

import pytest
import torch

from reservoir import reservoir


@pytest.mark.parametrize(
    ("tiles", "products", "faster", "precision"),
    [
        (True, True, False, "bfloat16"),  # nothing is tried
        (False, True, True, "bfloat16"),
        (False, True, False, "float32"),
        (False, False, True, "float32"),
    ],
)
def test_a_trial_decides_only_where_the_instructions_leave_it_open(monkeypatch, tiles, products, faster, precision):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: products)
    monkeypatch.setattr(reservoir, "bfloat16_is_faster", lambda: faster)
    assert reservoir.choose_compute("auto", torch.device("cpu")) == precision
    assert reservoir.choose_compute("float32", torch.device("cpu")) == "float32"


def test_trials_agree():
    assert len({reservoir.bfloat16_is_faster.__wrapped__() for _ in range(3)}) == 1
