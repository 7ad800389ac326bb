"""The backbone that comes with the package: its files, its three inits, and that it is what is meant by default."""

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer

from reservoir.backbones import default_init, find, load_backbone, weights_digest
from reservoir.backbones.names import SHIPPED
from reservoir.errors import InputError
from reservoir.options import ReservoirOptions
from reservoir.plan import resolve_model
from reservoir.reservoir import Reservoir

MINI = SHIPPED["mini"]


@pytest.fixture
def decoy(tmp_path, monkeypatch, tiny_gpt2):
    """Stand in a folder that holds another model in a folder called mini."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(tiny_gpt2, tmp_path / "mini")


def test_its_weights_are_halves_in_at_most_12_megabytes():
    assert (MINI / "model.safetensors").stat().st_size <= 12e6
    with safe_open(MINI / "model.safetensors", "np") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert dtypes == {"F16"}


def test_its_configuration_and_tokenizer_are_those_of_the_name():
    kept, named = (find(name)[1] for name in (str(MINI), "mini"))
    settings = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "activation_function", "initializer_range")
    for setting in settings:
        assert getattr(kept, setting) == getattr(named, setting), setting
    tokenizer, text = AutoTokenizer.from_pretrained(MINI), " Reservoir – ein Speicher .\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_it_is_loaded_from_the_package_in_float32_wherever_one_stands(decoy):
    stored = load_file(MINI / "model.safetensors")
    loaded = dict(load_backbone("mini", "pretrained").model.named_parameters())
    assert len(loaded) == 6 * 12 + 3  # every tensor but the token embeddings
    for name, parameter in loaded.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[f"transformer.{name}"].float()), name


def test_its_inits_are_three_models_and_other_shapes_only_random():
    inits = {init: load_backbone("mini", init, seed=3) for init in ("pretrained", "random", "statistics")}
    assert len({weights_digest(backbone) for backbone in inits.values()}) == 3
    pretrained, drawn = (inits[init].model.get_parameter("wpe.weight") for init in ("pretrained", "statistics"))
    assert abs(drawn.std() / pretrained.std() - 1) < 0.02
    altered = "mini:n_layer=2"
    assert default_init(altered) == "random"
    assert load_backbone(altered).depth == 2
    with pytest.raises(InputError, match="its settings were changed, so no pretrained weights fit; use --init random"):
        load_backbone(altered, "pretrained")


def choose(**options):
    return resolve_model(ReservoirOptions(**options))


def test_it_is_meant_where_no_backbone_is_named(decoy):
    assert choose() == Reservoir(backbone="mini", init="pretrained")
    for init in ("random", "statistics"):
        assert choose(init=init) == Reservoir(backbone="mini", init=init)
    assert choose(backbone="gpt2") == Reservoir(backbone="gpt2", init="pretrained")
    # A folder of its name is meant only when it is written as one.
    assert choose(backbone="mini").backbone == "mini"
    assert choose(backbone="./mini").backbone == choose(init="mini").backbone == str(decoy)
