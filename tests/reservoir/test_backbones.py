"""Backbones: our GPT-2, attention maps, numbers of parameters, pretrained weights, models of the hub and of others."""

import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reservoir_pipelines import extract, fit
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from reservoir import backbone_names, private_torch
from reservoir.backbone_names import KNOWN_BACKBONES, SHORT, check_backbone_name, full_name
from reservoir.backbones import Backbone, attention_maps, gpt2, load_backbone, register, registry, weights_digest
from reservoir.backbones.backbone import trained_counts
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.backbones.registry import find
from reservoir.errors import InputError
from reservoir.paper import paper_counts
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.training import fast
from reservoir.training.trainable import set_dropout, unfreeze
from tests.reservoir.models import MODELS, PIXELS, SOUNDS, WIDTH, make_fpt, save

LENGTHS = torch.tensor([7, 4])
EMBEDS = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("longformer", "mpnet")])
def test_attention_maps_equal_those_of_transformers(kind, tmp_path):
    from transformers import AutoModel, T5EncoderModel

    folder = save(kind, tmp_path / kind)
    backbone = load_backbone(str(folder), "pretrained")
    maps = attention_maps(backbone, EMBEDS, LENGTHS, layer=2)
    if kind in SOUNDS:  # the model in transformers accepts only samples
        theirs, name = partial(_of_encoder, backbone.model.encoder), "hidden_states"
        backbone.model.set_attn_implementation("eager")
    elif kind in PIXELS:  # the model in transformers accepts only images
        theirs, name = backbone.model, "pixel_values"
        theirs.set_attn_implementation("eager")
    else:
        made = (T5EncoderModel if kind == "t5" else AutoModel).from_pretrained(folder, attn_implementation="eager")
        theirs, name = made.eval(), "inputs_embeds"
    for row, n in enumerate(LENGTHS.tolist()):
        alone = theirs(**{name: EMBEDS[row : row + 1, :n]}, output_attentions=True).attentions[1][0]
        torch.testing.assert_close(maps[row, :, :n, :n], alone, atol=1e-6, rtol=1e-5)
    for row, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(maps[row, :, :n].sum(-1), torch.ones(maps.shape[1], n))
        assert not maps[row, :, n:].any() and not maps[row, :, :, n:].any()


def _of_encoder(encoder, hidden_states, output_attentions):
    maps = []
    handles = [each.attention.register_forward_hook(lambda _m, _i, out: maps.append(out[1])) for each in encoder.layers]
    encoder(hidden_states.clone())
    for handle in handles:
        handle.remove()
    return SimpleNamespace(attentions=maps)


def test_attention_maps_leave_the_model_unchanged(tmp_path):
    backbone = load_backbone(str(save("llama", tmp_path / "llama")), "pretrained")
    before = backbone(EMBEDS, LENGTHS)
    attention_maps(backbone, EMBEDS, LENGTHS, layer=1)
    assert backbone.model.config._attn_implementation == "sdpa"
    assert torch.equal(backbone(EMBEDS, LENGTHS), before)


def test_a_linformer_whose_mixtures_are_the_tokens_attends_to_all_tokens():
    attention = load_backbone(f"linformer:width={WIDTH},heads=2,tokens=7,rank=7").blocks[0].attn
    for mixtures in (attention.E, attention.F):
        mixtures.copy_(torch.eye(7))
    query, key, value = attention.c_attn(EMBEDS).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attention(EMBEDS)[0], attention.c_proj(mixed.transpose(1, 2).flatten(2)))


CIFAR10 = Task(name="cifar10", form=Vectors(48), max_tokens=64, classes=10)

# Lu et al. 2021, Table 8 and appendix: depth, width, and parameters trained on cifar10, in thousands.
PAPER = {
    "gpt2": (12, 768, 106),
    "gpt2-medium": (24, 1024, 190),
    "gpt2-large": (36, 1280, 300),
    "gpt2-xl": (48, 1600, 0),
}


def without_weights(name):
    family, config = find(name)
    with torch.device("meta"):
        return Backbone(family.loader.build(config), family, config)


@pytest.mark.parametrize("name", PAPER)
def test_paper_counts_for_every_size_of_gpt2(name):
    depth, width, thousands = PAPER[name]
    backbone = without_weights(name)
    counts = paper_counts(backbone, CIFAR10)
    assert counts == {
        "output": 10 * width,
        "input": 16 * width + width,
        "layernorm": 4 * width * depth,
        "positions": 64 * width,
    }
    if thousands:
        assert sum(counts.values()) // 1000 in (thousands, thousands + 1)


def test_trained_counts_equal_parameters_with_a_gradient():

    task = Task(name="t", form=Tokens(7), max_tokens=9, classes=3, outputs=2)
    backbone = load_backbone("gpt2:n_layer=2,n_embd=8,n_head=2,n_positions=20")
    model = make_fpt(task, backbone)
    names = [n for group in ("layernorm", "positions") for n in backbone.groups[group]]
    for name in names:
        backbone.get_parameter(name).requires_grad_(True)
    x = torch.arange(18).reshape(2, 9) % 7
    model(x, torch.tensor([9, 9]))[..., 0].square().sum().backward()
    counts = trained_counts(backbone, task)
    reached = (backbone.get_parameter("model.wpe.weight").grad.abs().sum(dim=1) > 0).sum() * backbone.width
    assert counts["positions"] == reached
    assert counts["layernorm"] == sum(backbone.get_parameter(n).numel() for n in backbone.groups["layernorm"])
    assert counts["input"] == sum(p.numel() for p in model.inputs.parameters())
    assert counts["output"] == sum(p.numel() for p in model.output.parameters())
    assert paper_counts(load_backbone("esn:units=8"), task) is None


@pytest.mark.parametrize(
    ("kind", "unread"), [("gpt2", "wte."), ("bert", "word_embeddings."), ("llama", "embed_tokens.")]
)
def test_checkpoints_without_token_embeddings_load(tmp_path, kind, unread):
    folder = save(kind, tmp_path / kind)
    whole = load_backbone(str(folder), "pretrained")
    tensors = load_file(folder / "model.safetensors")
    few = {name: tensor for name, tensor in tensors.items() if unread not in name}
    assert len(few) < len(tensors)
    save_file(few, folder / "model.safetensors", {"format": "pt"})
    assert weights_digest(load_backbone(str(folder), "pretrained")) == weights_digest(whole)


COMMIT = "0123456789abcdef0123456789abcdef01234567"

# Prints a line for each NAME=INIT: the digest of the weights or the error.
SCRIPT = """
import json, sys
from reservoir.backbones import load_backbone, weights_digest
from reservoir.errors import InputError
for asked in sys.argv[1:]:
    try:
        answer = weights_digest(load_backbone(*asked.split("=")))
    except InputError as error:
        answer = str(error)
    print(json.dumps([asked, answer]))
"""
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


def ask(endpoint, home, *asked):
    """Load backbones in another process; return the digest or error of each, and stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *asked], capture_output=True, text=True, env=environment, check=True
    )
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


def test_hub_models_load_from_the_cache_without_a_network(tmp_path, tiny_gpt2):
    kept = tmp_path / "hub" / "models--tiny--gpt2"  # the layout of the hub library's cache
    shutil.copytree(tiny_gpt2, kept / "snapshots" / COMMIT)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)
    name, folder, *absent = "tiny/gpt2=pretrained", f"{tiny_gpt2}=pretrained", "nosuch/one=random", "gpt2=pretrained"
    answers, err = ask(NOWHERE, tmp_path, name, folder, *absent)
    assert answers[name] == answers[folder] and len(answers[name]) == 64
    assert err == "", "the one line is the error's"
    for asked in absent:
        assert f"backbone {asked.partition('=')[0]!r}" in answers[asked]
        assert "ConnectError" in answers[asked]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gtp2", "did you mean 'gpt2'"),
        ("berd", "did you mean 'bert'"),
        ("nothing-like-it", "neither a known name nor a"),
    ],
)
def test_unknown_names_are_refused_without_a_network(name, message, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(InputError, match=message):
        registry.find(name)


def test_family_names_mean_the_base_size():
    assert {name: full_name(name) for name in SHORT} == SHORT
    assert all(known in KNOWN_BACKBONES for known in SHORT.values())


# Families of backbones of other packages: registered by a program or by an entry point of an installed package.


@dataclass
class MeanConfig(Config):
    depth: int = 2
    width: int = 8
    initializer_range: float = 0.3
    model_type: str = "running-mean"


class Block(nn.Module):
    """A projection of the mean of the tokens so far."""

    def __init__(self, width):
        super().__init__()
        self.projection = nn.Linear(width, width)

    def forward(self, hidden):
        counts = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
        return hidden + self.projection(hidden.cumsum(dim=1) / counts).tanh()


class RunningMean(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(config.depth))

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


RUNNING_MEAN = Family(
    name="running-mean",
    loader=FolderLoader(RunningMean),
    config=MeanConfig,
    pretrained=False,
    shape=lambda config: Shape(config.depth, config.width, None, causal=True),
    run=run_unmasked,
    blocks="blocks",
    groups={"feedforward": (".projection.",)},
)


LOAD = registry._load.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]


@pytest.fixture
def no_family(monkeypatch):
    """Forget what a test registers, and load the entry points again."""
    registry.families()
    monkeypatch.setattr(registry, "_families", dict(registry.families()))
    monkeypatch.setattr(registry, "_load", lambda: None)
    monkeypatch.setitem(KNOWN_BACKBONES, "running-mean", ("", {}))  # so that the name is removed at the end
    monkeypatch.delitem(KNOWN_BACKBONES, "running-mean")


@pytest.fixture
def running_mean(no_family):
    register(RUNNING_MEAN)


def test_a_registered_family_extracts_and_its_key_depends_on_its_settings(running_mean, cache):
    settings = {"backbone": "running-mean:width=6", "layers": "block01,final", "pool": "mean", "limit": 40}
    features = extract("digits", **settings)
    assert features["train"]["final/mean"].shape == (40, 6) and fit(features).best.metric == "accuracy"
    again = extract("digits", **settings)
    assert again.reused and again.entry == features.entry
    # The digest of the weights is the part of the key that depends on the family: it must not change between versions.
    digest = "f69764aa8bc7b77630246a824012085c350b9d9b54fa913f0f2e57a721f947ad"
    assert weights_digest(load_backbone("running-mean:width=6")) == digest
    assert extract("digits", **settings | {"backbone": "running-mean:width=7"}).entry != features.entry
    assert find("running-mean")[0] is RUNNING_MEAN and load_backbone("running-mean").depth == 2


def test_a_family_is_registered_once(running_mean):
    register(RUNNING_MEAN)
    with pytest.raises(ValueError, match="already called 'gpt2'"):
        register(Family(**{**vars(RUNNING_MEAN), "name": "gpt2"}))


def entry_points(*points):
    return lambda: tuple(EntryPoint(name, value, backbone_names.ENTRY_POINTS) for name, value in points)


@pytest.fixture
def installed(monkeypatch, no_family):
    """Return a function that makes entry points those of installed packages, as if nothing had been loaded."""

    def install(*points):
        for module in (backbone_names, registry):
            monkeypatch.setattr(module, "plugins", entry_points(*points))
        monkeypatch.setattr(registry, "_load", LOAD)

    return install


def test_an_entry_point_of_an_installed_package_adds_a_family(installed):
    with pytest.raises(InputError, match="'running-mean'"):
        check_backbone_name("running-mean")
    installed(("running-mean", f"{__name__}:RUNNING_MEAN"))
    check_backbone_name("running-mean:width=6")  # its name is known before anything is imported
    assert load_backbone("running-mean:width=6").width == 6


@pytest.mark.parametrize("value", ["no_such_module:FAMILY", f"{__name__}:MeanConfig", "reservoir.backbones.esn:ESN"])
def test_an_entry_point_without_a_family_is_refused_by_name(installed, value):
    installed(("running-mean", value))
    with pytest.raises(InputError, match=r"'running-mean'.*uninstall"):
        find("mini")


def test_no_package_is_imported_until_a_backbone_is_needed():
    script = (
        "import sys, reservoir.backbone_names, reservoir.tasks; from reservoir_pipelines import cli\n"
        "print([name for name in sys.modules if name.startswith(('reservoir.paper', 'reservoir.backbones', 'torch'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# Our GPT-2, and the private functions of torch that it uses, equal the public ones, and training gives the same.


SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 9, "initializer_range": 0.3}
GPT2_EMBEDS = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


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
        expected = model(inputs_embeds=GPT2_EMBEDS).last_hidden_state
    torch.testing.assert_close(load_backbone(folder, "pretrained")(GPT2_EMBEDS), expected, atol=1e-6, rtol=1e-5)


def test_gpt2_in_bfloat16_has_the_bits_of_transformers(tmp_path):
    _, folder = saved(tmp_path, activation_function="relu")
    model = GPT2Model.from_pretrained(folder, dtype=torch.bfloat16).eval()
    backbone = load_backbone(folder, "pretrained")
    backbone.set_compute("bfloat16-all")
    with torch.inference_mode():
        expected = model(inputs_embeds=GPT2_EMBEDS.bfloat16()).last_hidden_state
        assert torch.equal(backbone(GPT2_EMBEDS), expected.float())


def test_gpt2_config_has_the_defaults_and_other_names_of_transformers():
    theirs = GPT2Config().to_dict()
    for name, value in gpt2.GPT2Config().to_dict().items():
        assert theirs[name] == value, name
    other = gpt2.read_config(n_embd=32, n_layer=3, summary_type="mean")
    assert other == gpt2.GPT2Config(n_layer=3, n_embd=32)


@pytest.mark.parametrize("form", ["with a head", "with masks", "in parts"])
def test_weights_are_equal_for_every_storage_format(tmp_path, form):
    model, folder = saved(tmp_path / "plain")
    expected = load_backbone(folder, "pretrained")(GPT2_EMBEDS)
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
    assert torch.equal(load_backbone(str(other), "pretrained")(GPT2_EMBEDS), expected)


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
    draw = fast.mask_generator(seed)
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
