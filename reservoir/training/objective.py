"""The loss of training, and the number of correct labels."""

from __future__ import annotations

from torch import Tensor, nn


def row_losses(logits: Tensor, y: Tensor, classes: int) -> Tensor:
    r"""Return the loss of each row, the mean over its tokens and outputs: cross-entropy, or the squared error."""
    if classes:
        each = nn.functional.cross_entropy(logits.flatten(0, 2).float(), y.flatten(), reduction="none")
    else:
        each = (logits[..., 0].float() - y).square()
    return each.view(len(y), -1).mean(dim=1)


def row_hits(logits: Tensor, y: Tensor) -> Tensor:
    """Return the number of correct labels of each row, (batch,) of int64."""
    return (logits.argmax(dim=-1) == y).flatten(1).sum(dim=1)
