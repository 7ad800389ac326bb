"""Families of backbones of other packages: registered by a program or by an entry point of an installed package."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from reservoir_pipelines import extract, fit
from torch import nn

from reservoir import backbone_names
from reservoir.backbone_names import KNOWN, check_backbone_name
from reservoir.backbones import find, load_backbone, register, registry, weights_digest
from reservoir.backbones.family import Config, Family, FolderLoader, Shape, run_unmasked
from reservoir.errors import InputError


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
