"""The precision that --compute auto chooses on a CPU."""

import pytest
import torch

from reservoir import reservoir


@pytest.mark.parametrize(
    ("used", "tiles", "products", "faster", "precision"),
    [
        (True, True, True, False, "bfloat16"),  # nothing is tried
        (True, False, True, True, "bfloat16"),
        (True, False, True, False, "float32"),
        (True, False, False, True, "float32"),
        (False, True, True, True, "float32"),  # the library is kept from what the processor has
    ],
)
def test_bfloat16_trial_runs_only_if_instructions_do_not_decide(monkeypatch, used, tiles, products, faster, precision):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: used, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: products)
    monkeypatch.setattr(reservoir, "bfloat16_is_faster", lambda: faster)
    assert reservoir.choose_compute("auto", torch.device("cpu")) == precision
    assert reservoir.choose_compute("float32", torch.device("cpu")) == "float32"


def test_trials_agree():
    assert len({reservoir.bfloat16_is_faster.__wrapped__() for _ in range(3)}) == 1
