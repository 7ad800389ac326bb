"""Our GPT-2 equals that of transformers for all settings and storage formats, with GELU in one kernel."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model
from transformers.activations import NewGELUActivation

from reservoir.backbones import gpt2, load_backbone

SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 9, "initializer_range": 0.3}
EMBEDS = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def saved(folder, kind=GPT2Model, **settings):
    """Return a model of transformers', and the folder that it was saved in."""
    torch.manual_seed(0)
    model = kind(GPT2Config(**SMALL | settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=settings.pop("shard", "1GB"))
    return model, str(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_inner": 24, "activation_function": "relu", "layer_norm_epsilon": 0.1},
        {"scale_attn_weights": False, "activation_function": "gelu"},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ],
)
def test_gpt2_equals_transformers(tmp_path, settings):
    model, folder = saved(tmp_path, **settings)
    with torch.no_grad():
        expected = model(inputs_embeds=EMBEDS).last_hidden_state
    torch.testing.assert_close(load_backbone(folder, "pretrained")(EMBEDS), expected, atol=1e-6, rtol=1e-5)


def test_gpt2_config_has_the_defaults_of_transformers():
    theirs = GPT2Config().to_dict()
    for name, value in gpt2.GPT2Config().to_dict().items():
        assert theirs[name] == value, name
    other = gpt2.read_config(n_embd=32, n_layer=3, summary_type="mean")
    assert other == gpt2.GPT2Config(n_layer=3, n_embd=32)


@pytest.mark.parametrize("form", ["with a head", "with masks", "in parts"])
def test_weights_are_equal_for_every_storage_format(tmp_path, form):
    model, folder = saved(tmp_path / "plain")
    expected = load_backbone(folder, "pretrained")(EMBEDS)
    other = tmp_path / "other"
    if form == "with a head":
        whole = GPT2LMHeadModel(model.config)
        whole.transformer.load_state_dict(model.state_dict())
        whole.save_pretrained(other)
        assert "transformer.ln_f.weight" in load_file(other / "model.safetensors")
    else:
        model.save_pretrained(other, max_shard_size="4KB" if form == "in parts" else "1GB")
        assert (other / "model.safetensors").is_file() == (form == "with masks")
    if form == "with masks":
        masks = {f"h.{n}.attn.bias": torch.ones(1, 1, 12, 12) for n in range(2)}
        save_file(load_file(other / "model.safetensors") | masks, other / "model.safetensors", {"format": "pt"})
    assert torch.equal(load_backbone(str(other), "pretrained")(EMBEDS), expected)


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
    part = gpt2.Feedforward(gpt2.GPT2Config(n_embd=64)).eval().requires_grad_(False)
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
