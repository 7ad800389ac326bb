"""Parameters by group, counted directly and as in the paper."""

import numpy as np
import pytest
import torch

from reservoir.backbones import Backbone, load_backbone
from reservoir.backbones.backbone import deviations, group_counts, paper_counts, trained_counts, whole_count
from reservoir.backbones.names import find
from reservoir.tasks.task import Task, Tokens, Vectors
from tests.reservoir.models import KINDS, PIXELS, save

CIFAR10 = Task(name="cifar10", form=Vectors(48), max_tokens=64, classes=10)
# Lu et al. 2021, Table 8 and its appendix: depth, width, and the parameters that they train on cifar10, in thousands.
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


def test_gpt2_small_trains_as_many_parameters_as_in_the_paper():
    backbone = without_weights("gpt2")
    counts = paper_counts(backbone, CIFAR10)
    assert counts == {"output": 7680, "input": 13056, "layernorm": 36864, "positions": 49152}
    assert f"{sum(counts.values()) / whole_count(backbone):.3%}" == "0.086%"
    ours = trained_counts(backbone, CIFAR10)
    assert ours == {"output": 7690, "input": 49 * 768, "layernorm": 36864 + 2 * 768, "positions": 49152}


@pytest.mark.parametrize("kind", KINDS)
def test_group_counts_add_up_and_shrink_with_depth(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    backbone = load_backbone(str(folder), "random")
    assert sum(group_counts(backbone).values()) == sum(p.numel() for p in backbone.parameters())
    assert whole_count(backbone) >= sum(group_counts(backbone).values()) - (kind in PIXELS) * 1024 * backbone.width
    if kind != "esn":
        cut = load_backbone(str(folder), "random", depth=2)
        lost = sum(p.numel() for p in backbone.parameters()) - sum(p.numel() for p in cut.parameters())
        assert lost > 0 and whole_count(backbone) - whole_count(cut) == lost


def test_trained_counts_equal_parameters_with_a_gradient():
    from reservoir.fpt import FPT

    task = Task(name="t", form=Tokens(7), max_tokens=9, classes=3, outputs=2)
    backbone = load_backbone("gpt2:n_layer=2,n_embd=8,n_head=2,n_positions=20")
    model = FPT(task, backbone)
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


def test_deviations_of_each_block():
    backbone = load_backbone("t5-small:num_layers=2,d_model=16,d_kv=4,num_heads=2,d_ff=20")
    spread = deviations(backbone)
    weight = backbone.blocks[1].layer[0].SelfAttention.k.weight.numpy()
    np.testing.assert_allclose(spread["layer.0.SelfAttention.k.weight"][1], weight.std(), rtol=1e-6)
    bias = spread["layer.0.SelfAttention.relative_attention_bias.weight"]
    assert bias[0] > 0 and np.isnan(bias[1])
