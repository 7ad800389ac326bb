"""Our GPT-2, and the private functions of torch that it uses, equal the public ones, and training gives the same."""

import getpass
import re
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from reservoir import private_torch
from reservoir.backbones import gpt2, load_backbone
from reservoir.tasks.task import Task, Vectors
from reservoir.training import fast
from reservoir.training.trainable import set_dropout, unfreeze
from tests.reservoir.models import make_fpt, save

SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 9, "initializer_range": 0.3}
EMBEDS = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def saved(folder, kind=GPT2Model, **settings):
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


def test_gpt2_in_bfloat16_has_the_bits_of_transformers(tmp_path):
    _, folder = saved(tmp_path, activation_function="relu")
    model = GPT2Model.from_pretrained(folder, dtype=torch.bfloat16).eval()
    backbone = load_backbone(folder, "pretrained")
    backbone.set_compute("bfloat16-all")
    with torch.inference_mode():
        expected = model(inputs_embeds=EMBEDS.bfloat16()).last_hidden_state
        assert torch.equal(backbone(EMBEDS), expected.float())


def test_gpt2_config_has_the_defaults_and_other_names_of_transformers():
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


def mask_of(heads, tokens, rate, seed):
    """Return the dropout mask (heads, tokens, tokens) that the blocks draw."""
    mask = torch.zeros(heads, tokens, tokens, dtype=torch.bool)
    draw = fast.generator(seed)
    for block in fast.blocks(torch.empty(heads, tokens, 1)):
        part = mask[block.heads, block.queries, : block.seen]
        part.copy_(fast.keep(part.shape, rate, draw))
    return mask


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    tokens=st.integers(1, 300),
    rate=st.sampled_from([0.1, 0.5]),
    seed=st.integers(0, 2**40),
)
def test_block_attention_and_its_gradients_equal_those_of_autograd_over_whole_matrices(
    batch, heads, tokens, rate, seed
):
    draw = torch.Generator().manual_seed(seed)
    q, k, v, w = (torch.randn(batch, heads, tokens, 8, generator=draw).requires_grad_() for _ in range(4))
    mixed = fast.CausalAttention.apply(q, k, v, 0.4, rate, seed)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    p = (0.4 * q @ k.transpose(2, 3)).masked_fill(later, float("-inf")).softmax(-1)
    mask = mask_of(batch * heads, tokens, rate, seed).view(batch, heads, tokens, tokens)
    expected = (p * mask / (1 - rate)) @ v
    torch.testing.assert_close(mixed, expected, atol=2e-6, rtol=1e-5)
    by_hand, by_autograd = (torch.autograd.grad((o * w).sum(), (q, k, v)) for o in (mixed, expected))
    for gradient, other in zip(by_hand, by_autograd, strict=True):
        torch.testing.assert_close(gradient, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_dropout_drops_the_given_share_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    x, module = torch.ones(400, 500, requires_grad=True), fast.Dropout(rate)
    y = module(x)
    share = (y == 0).float().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    assert sorted(set(y.detach().unique().tolist())) == pytest.approx([0, 1 / (1 - rate)])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, y.detach())
    torch.manual_seed(0)
    assert torch.equal(module(x), y) and not torch.equal(module(x), y)
    assert module.eval()(x) is x


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit", "t5", "lstm"])
def test_faster_model_gives_the_same_outputs(kind, tmp_path):
    folder = str(save(kind, tmp_path / kind))
    task = Task(name="t", form=Vectors(3), max_tokens=12, classes=4)
    x, lengths = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([12, 7])
    plain, quick = (make_fpt(task, load_backbone(folder, "pretrained")) for _ in range(2))
    fast.speed_up(quick)
    for model in (plain, quick):
        unfreeze(model, ["all"])
        set_dropout(model, 0.0)
        model.train()(x, lengths).square().sum().backward()
    torch.testing.assert_close(quick(x, lengths), plain(x, lengths), atol=1e-5, rtol=1e-4)
    for one, other in zip(quick.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-2, rtol=1e-2)
    # With dropout, the outputs of both models have the same mean and spread.
    torch.manual_seed(0)
    spread = []
    for model in (plain, quick):
        set_dropout(model, 0.1)
        outputs = torch.stack([model.train()(x, lengths) for _ in range(60)]).detach()
        spread.append((outputs.mean(0), outputs.std(0)))
    (mean, std), (quick_mean, quick_std) = spread
    assert ((mean - quick_mean).abs() < 6 * (std + quick_std) / 60**0.5 + 1e-3).all()
    assert (quick_std / std).log().abs().max() < 0.7


# Each private function of torch that the package uses computes what public functions compute.


PACKAGES = [Path(__file__).resolve().parents[2] / name for name in ("reservoir", "cache", "pipelines")]


@pytest.mark.skipif(not gpt2.has_joined_kernel(), reason="this processor does not have the kernel")
@torch.inference_mode()
def test_gelu_of_linear_is_gelu_of_linear():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in [(5, 32), (48, 32), (48,)])
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    expected = torch.nn.functional.gelu(expected, approximate="tanh")
    result = private_torch.gelu_of_linear(x, weight, bias).double()
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=0.02)


def test_compiled_code_is_kept_in_a_folder_of_the_user_below_that_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it when it compiles
    folder = private_torch.compiled_code_folder()
    assert folder.parent == tmp_path and getpass.getuser() in folder.name
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    assert private_torch.compiled_code_folder() == tmp_path / "other"


def test_private_names_of_torch_stand_in_one_file():
    private = re.compile(r"torch(\.\w+)*\._[a-z]|torch\.ops\.\w+\._|torch\._C\b")
    files = [path for folder in PACKAGES for path in folder.rglob("*.py") if private.search(path.read_text())]
    assert [path.name for path in files] == ["private_torch.py"]
