"""Loss and accuracy of a trained model over all rows of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reservoir.features import batches
from reservoir.tasks.task import Split
from reservoir.training.objective import r_squared, row_hits, row_losses
from reservoir.training.processes import Processes
from reservoir.training.rows import Convert


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a model did on a split.

    Parameters
    ----------
    loss : float
        Mean over rows.
    accuracy : float
        Share of right labels; R^2 for regression.
    """

    loss: float
    accuracy: float


def score(
    forward: Callable[[Tensor, Tensor], Tensor],
    convert: Convert,
    split: Split,
    classes: int,
    batch_rows: int,
    group: Processes,
) -> Score:
    """Score a model on every row of a split, the batches dealt out to the processes.

    Parameters
    ----------
    forward : callable
        ``forward(x, lengths) -> logits``, in evaluation mode.
    convert : callable
        From rows to a batch on the device.
    split : Split
    classes : int
        0 for regression.
    batch_rows : int
        Rows of a batch.
    group : Processes
    """
    outputs = split.y[0].size if not classes else 1
    table: Tensor | None = None
    for rows, logits, y in run_batches(forward, convert, split, batch_rows, group):
        if table is None:
            table = torch.zeros(len(split), 1 + outputs, dtype=torch.float64, device=logits.device)
        place = torch.from_numpy(rows).to(logits.device)
        table[place, 0] = row_losses(logits, y, classes).double()
        table[place, 1:] = (row_hits(logits, y)[:, None] if classes else logits.flatten(1)).double()
    if table is None:  # more processes than batches
        table = torch.zeros(len(split), 1 + outputs, dtype=torch.float64, device=convert(_head(split)).x.device)
    values = group.add(table).cpu().numpy()
    accuracy = float(values[:, 1].sum() / split.y.size) if classes else r_squared(values[:, 1:], split.y)
    return Score(loss=float(values[:, 0].mean()), accuracy=accuracy)


@torch.no_grad()
def run_batches(
    forward: Callable[[Tensor, Tensor], Tensor],
    convert: Convert,
    split: Split,
    batch_rows: int,
    group: Processes | None = None,
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield of each batch of this process the row numbers, the logits and the labels."""
    group = group or Processes()
    for number, rows in enumerate(batches(split.lengths, batch_rows)):
        if number % group.count == group.rank:
            batch = convert(Split(x=split.x[rows], y=split.y[rows], lengths=split.lengths[rows]))
            yield rows, forward(batch.x, batch.lengths), batch.y


def _head(split: Split) -> Split:
    return Split(x=split.x[:1], y=split.y[:1], lengths=split.lengths[:1])
