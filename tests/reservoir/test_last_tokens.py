"""If only the last tokens are read, the last feedforward skips the others and the result stays the same."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from reservoir.backbones import load_backbone
from reservoir.pooling import pool
from tests.reservoir.models import KINDS, RECURRENT, save

LENGTHS = torch.tensor([9, 2, 6])


def run(backbone, last, count):
    """Return the last ``count`` tokens' final states, and the gradient of the embeddings through them."""
    embeds = torch.randn(3, 9, backbone.width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    read = pool(backbone(embeds, LENGTHS, last), LENGTHS, "last", count)
    (gradient,) = torch.autograd.grad(read.square().sum(), embeds)
    return read.detach(), gradient


@pytest.mark.parametrize("kind", KINDS)
def test_last_tokens_equal_those_of_the_whole_model(kind, tmp_path):
    backbone = load_backbone(str(save(kind, tmp_path / kind)), "pretrained")
    seen = []
    for path in backbone.family.feedforward:
        module = backbone.blocks[-1].get_submodule(path)
        module.register_forward_pre_hook(lambda _module, inputs: seen.append({x.shape[1] for x in inputs}))
    for count in (1, 2):
        for one, other in zip(run(backbone, count, count), run(backbone, None, count), strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    parts = len(backbone.family.feedforward)
    assert bool(parts) == (kind not in RECURRENT)
    tokens = -(-9 // backbone.shape.multiple) * backbone.shape.multiple
    assert seen == [*[{1}] * parts, *[{tokens}] * parts, *[{2}] * parts, *[{tokens}] * parts]


def test_recomputed_block_reads_the_same_tokens(tmp_path):
    backbone = load_backbone(str(save("bert", tmp_path / "bert")), "pretrained")
    expected = run(backbone, 2, 2)
    forward = backbone.blocks[-1].forward
    backbone.blocks[-1].forward = lambda *inputs, **more: checkpoint(forward, *inputs, use_reentrant=False, **more)
    for one, other in zip(run(backbone, 2, 2), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
