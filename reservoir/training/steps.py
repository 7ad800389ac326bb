"""The steps of a training end to end: Adam on an FPT's trained parameters, everything else frozen."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.fpt import FPT
from reservoir.options import TrainOptions
from reservoir.random import random_key
from reservoir.training.objective import row_hits, row_losses
from reservoir.training.processes import Processes
from reservoir.training.rows import Batch, TrainingRows
from reservoir.training.scoring import Score, score

LEARNING_RATE = 1e-3
LEARNING_RATES = {"lstm": 3e-4, "homology": 1e-4}
"""The paper's: of its LSTMs, and of its homology task; `LEARNING_RATE` of everything else."""


def default_rate(family: str, task: str) -> float:
    """Return the paper's learning rate for a family of backbones and a task."""
    return LEARNING_RATES.get(family) or LEARNING_RATES.get(task) or LEARNING_RATE


class FPTSteps:
    """Training steps; ``forward(x, lengths)`` gives the logits of the model, or of its upper part.

    Forward pass j of step n has number ``j + accumulate * (rank + processes * n)`` in the endless sequence of rows
    and dropout draws. More processes, or more passes per step, therefore change only the number of rows of a step.
    """

    def __init__(
        self, model: FPT, forward: nn.Module, rows: TrainingRows, options: TrainOptions, seed: int, ranks: Processes
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        rate = options.learning_rate or LEARNING_RATE
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self._parameters, lr=rate, fused=True)
        self._forward, self._classes = forward, model.task.classes
        self._rows, self._options, self._seed, self._ranks = rows, options, seed, ranks

    def draw(self, step: int) -> list[Batch]:
        """Return the batches of this process for the forward passes of a step."""
        size = self._options.batch
        passes = (np.arange(number * size, (number + 1) * size) for number in self._passes(step))
        return [self._rows.convert(self._rows.train(numbers)) for numbers in passes]

    def take(self, step: int, batch: list[Batch]) -> Tensor:
        """Take a step; return float32 (3,): loss and accuracy before it, and the gradient norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(2, device=batch[0].x.device)
        for number, rows in zip(self._passes(step), batch, strict=True):
            if self._options.dropout:
                torch.manual_seed(random_key(self._seed, "dropout", number, size=8))
            logits = self._forward(rows.x, rows.lengths)
            loss = row_losses(logits, rows.y, self._classes).mean() / len(batch)
            loss.backward()
            with torch.no_grad():
                right = row_hits(logits, rows.y).sum() / rows.y.numel() if self._classes else torch.zeros_like(loss)
                sums += torch.stack([loss.detach(), right / len(batch)])
        self._ranks.average_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._options.clip)
        self.optimizer.step()
        return torch.cat([self._ranks.add(sums) / self._ranks.count, norm.detach().reshape(1)])

    def numbers(self, values: list[float]) -> dict[str, float]:
        """Return the values of `take` by name; regression has no accuracy."""
        loss, accuracy, norm = values
        return {"loss": loss, "accuracy": accuracy, "norm": norm} if self._classes else {"loss": loss, "norm": norm}

    def validate(self, step: int) -> dict[str, float]:
        """Return loss and score on the validation rows."""
        found = self.score("valid")
        return {"valid_loss": found.loss, "valid_score": found.score}

    def better(self, found: dict[str, float], best: dict[str, float]) -> bool:
        """Return whether the score is higher, or equal with a lower loss."""
        before, now = ((n["valid_score"], -n["valid_loss"]) for n in (best, found))
        return not before >= now

    def score(self, split: str) -> Score:
        """Score the model, in evaluation mode, on ``valid`` or ``test``."""
        rows = self._rows.valid if split == "valid" else self._rows.test
        return score(self._forward, self._rows.convert, rows, self._classes, self._rows.scored, self._ranks)

    def _passes(self, step: int) -> range:
        first = (step * self._ranks.count + self._ranks.rank) * self._options.accumulate
        return range(first, first + self._options.accumulate)
