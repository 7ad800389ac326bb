"""Every layer and pooling equals a hand-run transformers model, for any padding and batch."""

import itertools

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.pooling import pool
from reservoir.tasks.task import Task, Vectors

POOLINGS = ("last", "mean", "max", "first", "segments8", "all", "std", "min", "quantiles3", "tokens")
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


def hand_run(folder, model, x):
    """Hidden states of one unpadded sequence, from transformers alone."""
    from transformers import GPT2Model

    gpt2 = GPT2Model.from_pretrained(folder).eval()
    embeds = x[None] @ model.inputs.map.weight.T
    with torch.no_grad():
        out = gpt2(inputs_embeds=embeds, output_hidden_states=True, use_cache=False)
        blocks = []  # output_hidden_states gives the last block after ln_f, so its bare output is taken from a hook
        handle = gpt2.h[-1].register_forward_hook(lambda _m, _i, o: blocks.append(o))
        gpt2(inputs_embeds=embeds, use_cache=False)
        handle.remove()
    states = list(out.hidden_states)
    return {"embed": states[0], "block01": states[1], "block02": states[2], "block03": blocks[0], "final": states[3]}


def hand_pool(hidden, pooling, max_tokens):
    """Pool one unpadded sequence (tokens, width), written out in NumPy."""
    h = hidden.numpy()
    n = len(h)
    if pooling == "last":
        return h[-READOUT_TOKENS:]
    if pooling == "all":
        return np.concatenate([h, np.zeros((max_tokens - n, h.shape[1]), h.dtype)])
    if pooling == "segments8":
        bounds = [i * n // 8 for i in range(9)]
        return np.concatenate([h[a : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(bounds)])[None]
    if pooling == "quantiles3":
        return np.quantile(h, [0.25, 0.5, 0.75], axis=0).reshape(1, -1)
    if pooling == "tokens":
        return np.concatenate([h.ravel(), np.zeros((max_tokens - n) * h.shape[1], h.dtype)])[None]
    of_channels = {"mean": h.mean(0), "max": h.max(0), "first": h[0], "std": h.std(0), "min": h.min(0)}
    return of_channels[pooling][None]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("layer", ["embed", "block01", "block02", "block03", "final"])
def test_features_equal_a_hand_run_model(tiny_gpt2, model, batch, layer, pooling):
    x, lengths = batch
    features = model.features(x, lengths, [f"{layer}/{pooling}"])[f"{layer}/{pooling}"]
    for row, n in enumerate(lengths.tolist()):
        hidden = hand_run(tiny_gpt2, model, x[row, :n])[layer][0]
        np.testing.assert_allclose(features[row], hand_pool(hidden, pooling, 12), atol=1e-5, rtol=1e-5)


def test_features_do_not_depend_on_batch_mates_or_padding(model, batch):
    x, lengths = batch
    columns = [f"{layer}/{pooling}" for layer in model.backbone.layers for pooling in ("last", "mean", "max")]
    together = model.features(x, lengths, columns)
    for row, n in enumerate(lengths.tolist()):
        alone = model.features(x[row : row + 1, :n], lengths[row : row + 1], columns)
        for column in columns:
            torch.testing.assert_close(together[column][row], alone[column][0], atol=1e-5, rtol=1e-5)


def test_padding_never_reaches_a_pooling():
    hidden = torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([10, 3, 7])
    poisoned = hidden.clone()
    poisoned[torch.arange(10) >= lengths[:, None]] = float("nan")
    for pooling in POOLINGS:
        clean = hidden.clone()
        clean[torch.arange(10) >= lengths[:, None]] = 0.0
        torch.testing.assert_close(pool(poisoned, lengths, pooling, 2), pool(clean, lengths, pooling, 2))


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
