"""Loss and score of a trained model on a split, and convergence of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reservoir.features import batches
from reservoir.readouts import Tally, Targets
from reservoir.tasks.task import Split
from reservoir.training.objective import row_losses
from reservoir.training.processes import Processes
from reservoir.training.rows import Convert

TOLERANCE = 0.01
"""A validation score has converged when it stays this close to its last value."""

VALIDATIONS = 3
"""Smallest number of validations that can show convergence."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a model on a split: the mean loss of its rows, and the share of correct labels (R² for regression).

    ``predicted`` (rows, labels of a row) holds class numbers or values; for two classes, ``margins`` holds the score of
    the second class minus that of the first.
    """

    loss: float
    score: float
    predicted: np.ndarray
    margins: np.ndarray | None


def score(
    forward: Callable[[Tensor, Tensor], Tensor],
    convert: Convert,
    split: Split,
    classes: int,
    batch_rows: int,
    ranks: Processes,
) -> Score:
    """Score ``forward(x, lengths) -> logits`` on every row of a split; the processes share the batches."""
    outputs = split.y[0].size
    columns = 1 + outputs + (outputs if classes == 2 else 0)
    device = convert(split.take(np.arange(1))).x.device
    table = torch.zeros(len(split), columns, dtype=torch.float64, device=device)
    for rows, logits, y in _run_batches(forward, convert, split, batch_rows, ranks):
        index = torch.from_numpy(rows).to(logits.device)
        table[index, 0] = row_losses(logits, y, classes).double()
        table[index, 1 : 1 + outputs] = (logits.argmax(-1) if classes else logits).flatten(1).double()
        if classes == 2:
            table[index, 1 + outputs :] = (logits[..., 1] - logits[..., 0]).flatten(1).double()
    values = ranks.add(table).cpu().numpy()
    predicted, y = values[:, 1 : 1 + outputs], split.y.reshape(len(split), -1)
    found = (predicted == y).mean() if classes else Tally(Targets(outputs, 0)).update(predicted[None], y).accuracy()[0]
    margins = values[:, 1 + outputs :] if classes == 2 else None
    return Score(loss=float(values[:, 0].mean()), score=float(found), predicted=predicted, margins=margins)


def baseline(y: np.ndarray, classes: int) -> float:
    """Return the score of the best constant output for labels (rows, readout_tokens, outputs); 0 for R²."""
    if not classes:
        return 0.0
    labels = y.reshape(len(y), -1)
    return float(np.mean([np.bincount(column).max() / len(y) for column in labels.T]))


def converged_step(history: Sequence[tuple[int, float]], floor: float) -> int | None:
    """Return the first validated step after which the score stays close to its last value.

    None if that value is not above ``floor``, the score of a constant output, if only the last validation is close, or
    if there are fewer than `VALIDATIONS`.
    """
    if len(history) < VALIDATIONS or not history[-1][1] > floor:
        return None
    stays: list[int] = []
    for step, value in reversed(history):
        if not abs(value - history[-1][1]) <= TOLERANCE:
            break
        stays.append(step)
    return stays[-1] if len(stays) > 1 else None


@torch.no_grad()
def _run_batches(
    forward: Callable[[Tensor, Tensor], Tensor], convert: Convert, split: Split, batch_rows: int, ranks: Processes
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield row numbers, logits and labels of each batch of this process."""
    for number, rows in enumerate(batches(split.lengths, batch_rows)):
        if number % ranks.count == ranks.rank:
            batch = convert(split.take(rows))
            yield rows, forward(batch.x, batch.lengths), batch.y
