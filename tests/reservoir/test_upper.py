"""The upper part of a model gives the same logits from hidden states, for every family and layer."""

import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.tasks.task import Task, Vectors
from reservoir.training.groups import UpperPart
from reservoir.training.steps import row_losses
from tests.reservoir.models import KINDS, save

TASK = Task(name="t", form=Vectors(3), max_tokens=9, classes=4, readout_tokens=2)


@pytest.mark.parametrize("kind", KINDS)
def test_upper_part_gives_the_logits_and_gradients_of_the_model(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    whole = FPT(TASK, load_backbone(str(folder), "pretrained"))
    x, lengths = torch.randn(3, 9, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([9, 4, 6])
    expected = whole(x, lengths)
    expected.square().sum().backward()
    for layer in whole.backbone.layers:
        model = FPT(TASK, load_backbone(str(folder), "pretrained"))
        if kind == "t5" and layer.startswith("block"):
            with pytest.raises(InputError, match="blocks of this t5 share the positions of the first"):
                UpperPart(model, layer)
            continue
        upper = UpperPart(model, layer)
        column = f"{layer}/{upper.pooling}"
        hidden = whole.features(x, lengths, [column])[column].clone()
        logits = upper(hidden, lengths)
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)
        logits.square().sum().backward()
        torch.testing.assert_close(model.output.weight.grad, whole.output.weight.grad, atol=1e-3, rtol=1e-3)


def test_losses_of_rows():
    logits = torch.randn(5, 2, 3, 4)
    y = torch.randint(0, 4, (5, 2, 3))
    losses = row_losses(logits, y, 4)
    for row in range(5):
        each = [-logits[row, t, o].log_softmax(0)[y[row, t, o]] for t in range(2) for o in range(3)]
        torch.testing.assert_close(losses[row], torch.stack(each).mean())
    values = torch.randn(6, 1, 2)
    torch.testing.assert_close(row_losses(values[..., None], values + 2, 0), torch.full((6,), 4.0))
