"""The GPT-2 of this package equals that of transformers for all settings and storage formats."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

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
    other = gpt2.read_config(hidden_size=32, num_hidden_layers=3, summary_type="mean")
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
