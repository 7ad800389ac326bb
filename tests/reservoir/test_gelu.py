"""GELU in one kernel: equal to transformers' eight steps, more accurate in bfloat16, with a fallback."""

import pytest
import torch
from transformers.activations import NewGELUActivation

from reservoir.backbones import gpt2, load_backbone
from reservoir.backbones.gpt2 import Feedforward, GPT2Config


@pytest.mark.parametrize("name", ["gpt2", "t5-small"])
def test_models_have_no_gelu_of_many_steps(name, tiny_gpt2):
    backbone = load_backbone(str(tiny_gpt2) if name == "gpt2" else "t5-small", "random", depth=1)
    assert not [module for module in backbone.model.modules() if isinstance(module, NewGELUActivation)]


def test_one_kernel_equals_many_steps_and_rounds_less():
    x = torch.linspace(-6, 6, 4001)
    one, many = torch.nn.GELU(approximate="tanh"), NewGELUActivation()
    torch.testing.assert_close(one(x), many(x), rtol=1e-5, atol=1e-6)
    x = x.bfloat16()
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh")
    assert (one(x) - exact).abs().mean() < 0.8 * (many(x) - exact).abs().mean()


def bfloat16_feedforward():
    torch.manual_seed(0)
    part = Feedforward(GPT2Config(n_embd=64)).eval().requires_grad_(False)
    for parameter in part.parameters():
        parameter.normal_(0, 0.2)
    return part.bfloat16(), torch.randn(5, 9, 64).bfloat16()


@pytest.mark.skipif(not gpt2.has_joined_kernel(), reason="this processor does not have the kernel")
@torch.inference_mode()
def test_gelu_joined_to_its_product_rounds_less():
    part, x = bfloat16_feedforward()
    first = part.c_fc
    exact = torch.nn.functional.gelu(x.double() @ first.weight.double() + first.bias.double(), approximate="tanh")
    joined, separate = gpt2.gelu_of_product(x, first.weight, first.bias), part.act(first(x))
    assert (joined - exact).abs().mean() < 0.8 * (separate - exact).abs().mean() < 0.01 * exact.abs().mean()
    assert torch.equal(part(x), part.c_proj(joined))


@torch.inference_mode()
@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_without_the_private_kernel_product_and_gelu_run_separately(fault, monkeypatch):
    def product(x, weight, bias):
        if fault == "missing":
            raise AttributeError("'_OpNamespace' object has no attribute '_linear_pointwise'")
        return x @ weight + bias

    monkeypatch.setattr(gpt2, "gelu_of_product", product)
    gpt2.has_joined_kernel.cache_clear()
    try:
        assert not gpt2.has_joined_kernel()
        part, x = bfloat16_feedforward()
        monkeypatch.setattr(gpt2, "gelu_of_product", lambda *_: pytest.fail("the kernel was used"))
        assert torch.equal(part(x), part.c_proj(part.act(part.c_fc(x))))
    finally:
        gpt2.has_joined_kernel.cache_clear()
