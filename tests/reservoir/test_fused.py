"""GELU in one step: what transformers computes, and nearer to it in bfloat16 than its own eight steps."""

import pytest
import torch
from transformers.activations import NewGELUActivation

from reservoir.backbones import load_backbone


@pytest.mark.parametrize("name", ["gpt2", "t5-small"])
def test_no_gelu_of_many_steps_is_left(name, tiny_gpt2):
    backbone = load_backbone(str(tiny_gpt2) if name == "gpt2" else "t5-small", "random", depth=1)
    assert not [module for module in backbone.model.modules() if isinstance(module, NewGELUActivation)]


def test_one_step_is_what_many_are_and_rounds_less():
    x = torch.linspace(-6, 6, 4001)
    one, many = torch.nn.GELU(approximate="tanh"), NewGELUActivation()
    torch.testing.assert_close(one(x), many(x), rtol=1e-5, atol=1e-6)
    x = x.bfloat16()
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh")
    assert (one(x) - exact).abs().mean() < 0.8 * (many(x) - exact).abs().mean()
