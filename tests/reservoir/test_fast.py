"""Faster equivalents give the same values and gradients, and drop the given share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir.backbones import load_backbone
from reservoir.fpt import FPT
from reservoir.tasks.task import Task, Vectors
from reservoir.training import fast
from reservoir.training.groups import set_dropout, unfreeze
from tests.reservoir.models import save


def kept(heads, tokens, rate, seed):
    """Return which probabilities are kept, (heads, tokens, tokens), as the blocks draw them."""
    keep = torch.zeros(heads, tokens, tokens, dtype=torch.bool)
    draw = fast.generator(seed)
    for several, rows, seen, _ in fast.blocks(torch.empty(heads, tokens, 1)):
        part = keep[several, rows, :seen]
        part.copy_(fast.keep(part.shape, rate, draw))
    return keep


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    tokens=st.integers(1, 300),
    rate=st.sampled_from([0.1, 0.5]),
    seed=st.integers(0, 2**40),
)
def test_block_attention_equals_attention_with_whole_matrices(batch, heads, tokens, rate, seed):
    draw = torch.Generator().manual_seed(seed)
    q, k, v, w = (torch.randn(batch, heads, tokens, 8, generator=draw).requires_grad_() for _ in range(4))
    found = fast.CausalAttention.apply(q, k, v, 0.4, rate, seed)
    mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    p = (0.4 * q @ k.transpose(2, 3)).masked_fill(mask, float("-inf")).softmax(-1)
    keep = kept(batch * heads, tokens, rate, seed).view(batch, heads, tokens, tokens)
    expected = (p * keep / (1 - rate)) @ v
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    for one, other in zip(*(torch.autograd.grad((o * w).sum(), (q, k, v)) for o in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_scores_are_not_rounded_in_bfloat16():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 70, 16, generator=draw).bfloat16() for _ in range(3))
    exact = fast.CausalAttention.apply(q.float() * 8, k.float(), v.float(), 1.0, 0.1, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fast.CausalAttention.apply(q * 8, k, v, 1.0, 0.1, 3)
    rounded = (q * 8 @ k.transpose(2, 3)).float() - q.float() * 8 @ k.float().transpose(2, 3)
    assert rounded.abs().max() > 0.1  # scores of this size lose that much
    torch.testing.assert_close(found.float(), exact, atol=0.02, rtol=0.02)


def test_values_in_bfloat16_with_queries_and_keys_in_float32():
    """Rotary positions leave queries and keys in float32 under autocast, and the values in bfloat16."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 70, 16, generator=draw).requires_grad_() for _ in range(3))
    exact = torch.autograd.grad(fast.CausalAttention.apply(q, k, v, 0.3, 0.1, 3).square().sum(), (q, k, v))
    low = v.detach().bfloat16().requires_grad_()
    out = fast.CausalAttention.apply(q, k, low, 0.3, 0.1, 3)
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out.float().square().sum(), (q, k, low))
    assert [g.dtype for g in found] == [torch.float32, torch.float32, torch.bfloat16]
    for one, other in zip(found, exact, strict=True):
        assert (one.float() - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 3e-6), (torch.bfloat16, 0.02)])
def test_gelu_and_its_derivative_equal_torch(dtype, close):
    draw = torch.Generator().manual_seed(0)
    values = torch.cat([torch.linspace(-30, 30, 100_001), torch.randn(60_001, generator=draw), torch.zeros(1)])
    for x in (values.to(dtype), values[:12].view(3, 4).T.to(dtype)):
        weights = torch.randn(x.shape, generator=draw).to(dtype)
        x.requires_grad_()
        found, expected = fast.GELU()(x), torch.nn.functional.gelu(x, approximate="tanh")
        torch.testing.assert_close(found, expected, atol=close, rtol=close)
        one, other = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected))
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, atol=close, rtol=close)
    with torch.no_grad():
        assert torch.equal(fast.GELU()(x), torch.nn.functional.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_dropout_drops_the_given_share_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    x = torch.ones(400, 500, requires_grad=True)
    module = fast.Dropout(rate)
    y = module(x)
    share = (y == 0).float().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    assert sorted(set(y.detach().unique().tolist())) == pytest.approx([0, 1 / (1 - rate)])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, y.detach())
    torch.manual_seed(0)
    assert torch.equal(module(x), y) and not torch.equal(module(x), y)
    assert module.eval()(x) is x


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "bert", "vit", "t5", "lstm"])
def test_faster_model_gives_the_same_outputs(kind, tmp_path):
    folder = str(save(kind, tmp_path / kind))
    task = Task(name="t", form=Vectors(3), max_tokens=12, classes=4)
    x, lengths = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([12, 7])
    plain, quick = (FPT(task, load_backbone(folder, "pretrained")) for _ in range(2))
    fast.speed_up(quick)
    for model in (plain, quick):
        unfreeze(model, ["all"])
        set_dropout(model, 0.0)
        model.train()(x, lengths).square().sum().backward()
    torch.testing.assert_close(quick(x, lengths), plain(x, lengths), atol=1e-5, rtol=1e-4)
    for one, other in zip(quick.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-2, rtol=1e-2)
    # With dropout the outputs scatter around the plain model's with the plain model's spread.
    torch.manual_seed(0)
    spread = []
    for model in (plain, quick):
        set_dropout(model, 0.1)
        outputs = torch.stack([model.train()(x, lengths) for _ in range(60)]).detach()
        spread.append((outputs.mean(0), outputs.std(0)))
    (mean, std), (quick_mean, quick_std) = spread
    assert ((mean - quick_mean).abs() < 6 * (std + quick_std) / 60**0.5 + 1e-3).all()
    assert (quick_std / std).log().abs().max() < 0.7
