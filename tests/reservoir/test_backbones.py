"""Backbones: attention maps, numbers of parameters, pretrained weights, models of the hub and of other packages."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from reservoir_pipelines import extract, fit
from safetensors.torch import load_file, save_file
from torch import nn

from reservoir import backbone_names
from reservoir.backbone_names import KNOWN, SHORT, check_backbone_name, full_name
from reservoir.backbones import Backbone, attention_maps, load_backbone, register, registry, weights_digest
from reservoir.backbones.backbone import trained_counts
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.backbones.registry import find
from reservoir.errors import InputError
from reservoir.paper import paper_counts
from reservoir.tasks.task import Task, Tokens, Vectors
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
    assert all(known in KNOWN for known in SHORT.values())


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
    monkeypatch.setitem(KNOWN, "running-mean", ("", {}))  # so that the name is removed at the end
    monkeypatch.delitem(KNOWN, "running-mean")


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
    return lambda: tuple(EntryPoint(name, value, backbone_names.GROUP) for name, value in points)


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
