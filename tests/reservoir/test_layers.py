"""Every layer and pooling equals a hand-run transformers model, for any padding and batch."""

import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.tasks.task import Task, Vectors

READOUT_TOKENS = 2


@pytest.fixture(scope="module")
def model(tiny_gpt2):
    task = Task(name="t", form=Vectors(5), max_tokens=12, classes=3, readout_tokens=READOUT_TOKENS)
    return FPT(task, load_backbone(str(tiny_gpt2), "pretrained"), seed=3)


@pytest.fixture(scope="module")
def batch():
    lengths = torch.tensor([12, 9, 2, 12, 5])
    x = torch.randn(5, 12, 5, generator=torch.Generator().manual_seed(1))
    x[torch.arange(12) >= lengths[:, None]] = 0.0
    return x, lengths


def test_only_the_blocks_below_the_deepest_wanted_layer_run(model, batch):
    ran = []
    handles = [
        block.register_forward_pre_hook(lambda _m, _i, n=number: ran.append(n))
        for number, block in enumerate(model.backbone.blocks, start=1)
    ]
    model.features(*batch, ["block02/mean", "block01/last"])
    for handle in handles:
        handle.remove()
    assert ran == [1, 2]
    assert len(model.backbone.blocks) == 3


def test_bfloat16_keeps_the_residual_stream_in_float32(tiny_gpt2, batch):
    task = Task(name="t", form=Vectors(5), max_tokens=12, classes=3)
    exact = FPT(task, load_backbone(str(tiny_gpt2), "pretrained"))
    rounded = FPT(task, load_backbone(str(tiny_gpt2), "pretrained"))
    rounded.backbone.set_compute(torch.bfloat16)
    a = exact.features(*batch, ["block03/mean"])["block03/mean"]
    b = rounded.features(*batch, ["block03/mean"])["block03/mean"]
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    # Three blocks add rounded updates to an exact stream: the error stays below bfloat16's own step of 2^-8.
    assert (a - b).abs().max() < a.abs().max() * 2**-8


def test_initial_weights_of_the_output():
    """Orthogonal as the input layer is, or as torch's own linear layers start, which are the authors'."""
    task = Task(name="t", form=Vectors(5), max_tokens=12, classes=10)
    backbone = load_backbone("gpt2:n_layer=1,n_embd=256,n_head=2,n_positions=20")
    orthogonal, linear, again, other = (
        FPT(task, backbone, seed=seed, output_init=init).output
        for seed, init in ((0, "orthogonal"), (0, "linear"), (0, "linear"), (1, "linear"))
    )
    torch.testing.assert_close(orthogonal.weight @ orthogonal.weight.T, 1.41**2 * torch.eye(10), atol=1e-5, rtol=1e-5)
    assert not orthogonal.bias.any()
    torch.manual_seed(0)
    theirs = torch.nn.Linear(256, 10)
    for parameter in ("weight", "bias"):
        drawn = getattr(linear, parameter)
        assert drawn.abs().max() <= 1 / 16 and drawn.std() > 0.2 / 16
        assert torch.equal(drawn, getattr(again, parameter)) and not torch.equal(drawn, getattr(other, parameter))
    norms = [layer.weight.norm(dim=1).mean().item() for layer in (linear, theirs)]
    assert norms[0] == pytest.approx(3**-0.5, rel=0.02) and norms[1] == pytest.approx(norms[0], rel=0.05)
    with pytest.raises(InputError, match="output init 'kaiming': choose among orthogonal, linear"):
        FPT(task, backbone, output_init="kaiming")
