"""The steps of end-to-end training: the loss, Adam on the trained parameters, and scores on a split."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.batches import batches
from reservoir.devices import pinned
from reservoir.fpt import FPT
from reservoir.options import TrainOptions
from reservoir.random import random_key
from reservoir.readouts.linear import Tally, Targets
from reservoir.tasks.task import Split
from reservoir.training.rows import TrainingBatch, TrainingRows, read_ahead
from reservoir.training.trainer import Processes

Step = Callable[[TrainingBatch], Tensor]
"""Takes a step on a batch, and returns its values."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a model on a split: the mean loss of its rows, and the share of correct labels (R² for regression).

    ``predicted`` (rows, labels of a row) holds class numbers or values; for two classes, ``margins``
    holds the score of the second class minus that of the first.
    """

    loss: float
    score: float
    predicted: np.ndarray
    margins: np.ndarray | None


@dataclass
class FPTSteps:
    """Training steps; ``forward(x, lengths, is_full)`` gives the logits of the model, or of its output layer.

    Forward pass j of step n has number ``j + accumulate * (rank + processes * n)`` in the endless
    sequence of rows and dropout draws. More processes, or more passes per step, therefore change only
    the number of rows of a step.

    If steps have one forward pass and ``capture`` is given, ``capture(step)`` takes them, such as `CapturedSteps`.
    """

    model: FPT
    forward: Callable[[Tensor, Tensor, bool | None], Tensor]
    rows: TrainingRows
    options: TrainOptions
    learning_rate: float
    seed: int
    ranks: Processes
    keeps_last: bool = False  # whether the last weights are kept instead of the best
    capture: Callable[[Step], Step] | None = None

    def __post_init__(self) -> None:
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        # The fused Adam computes the same with and without ``capturable``, which only allows its capture on a GPU.
        capturable = self.capture is not None and self._device.type == "cuda"
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self._parameters, lr=self.learning_rate, fused=True, capturable=capturable
        )
        # torch would warn of the steps before a capture, which are not captured.
        vars(self.optimizer)["_warned_capturable_if_run_uncaptured"] = True
        self._take_captured = self.capture(self._take_one_pass) if self.capture else None
        self._classes = self.model.task.classes
        # Of the tensor that `take` returns, in its order; ``norm`` is that of the gradients before clipping.
        self.value_names: tuple[str, ...] = (
            ("loss", "accuracy", "norm") if self._classes else ("loss", "norm")
        )

    def draw(self, step: int) -> list[TrainingBatch]:
        """Return the batches of this process for the forward passes of a step, on the host."""
        size = self.options.batch
        passes = (np.arange(number * size, (number + 1) * size) for number in self._passes(step))
        return [self.rows.convert(self.rows.train(numbers)) for numbers in passes]

    def take(self, step: int, batch: list[TrainingBatch]) -> Tensor:
        """Take a step; return the loss and, for classes, the accuracy before the step, and the norm before clipping.

        The values are valid until the next step.
        """
        numbers = self._passes(step)
        if self._take_captured:
            self._seed_dropout(numbers[0])
            return self._take_captured(batch[0])
        sums = self._begin()
        for number, rows in zip(numbers, batch, strict=True):
            self._seed_dropout(number)
            self._add_pass(rows.to(self._device), sums, len(batch))
        return self._finish(sums)

    def _take_one_pass(self, rows: TrainingBatch) -> Tensor:
        """Take a step of one forward pass on rows on the device, without seeding the dropout."""
        sums = self._begin()
        self._add_pass(rows, sums, 1)
        return self._finish(sums)

    def _seed_dropout(self, number: int) -> None:
        """Let the dropout of a forward pass depend on its number alone."""
        if self.options.dropout:
            torch.manual_seed(random_key(self.seed, "dropout", number, size=8))

    def _begin(self) -> Tensor:
        """Remove the gradients of the step before; return zeros for the sums of loss and accuracy."""
        self.optimizer.zero_grad(set_to_none=True)
        return torch.zeros(len(self.value_names) - 1, device=self._device)

    def _add_pass(self, rows: TrainingBatch, sums: Tensor, passes: int) -> None:
        """Add the gradients, the loss and the accuracy of a forward pass; loss and accuracy are means over passes."""
        logits = self.forward(rows.x, rows.lengths, rows.is_full)
        loss = row_losses(logits, rows.y, self._classes).mean() / passes
        loss.backward()
        with torch.no_grad():
            sums[0] += loss
            if self._classes:
                sums[1] += (logits.argmax(dim=-1) == rows.y).sum() / rows.y.numel() / passes

    def _finish(self, sums: Tensor) -> Tensor:
        """Change the parameters; return the values that `value_names` names."""
        self.ranks.average_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        self.optimizer.step()
        return torch.cat([self.ranks.add(sums) / self.ranks.count, norm.detach().reshape(1)])

    def validate(self, step: int) -> dict[str, float]:
        """Return loss and score on the validation rows."""
        valid = self.score(self.rows.valid)
        return {"valid_loss": valid.loss, "valid_score": valid.score}

    def better(self, values: dict[str, float], best: dict[str, float]) -> bool:
        """Return whether the score is higher, or equal with a lower loss; True for every step with ``keeps_last``."""
        before = best["valid_score"], -best["valid_loss"]
        now = values["valid_score"], -values["valid_loss"]
        is_as_good_before = before >= now
        return self.keeps_last or not is_as_good_before

    @torch.no_grad()
    def score(self, split: Split) -> Score:
        """Score the model, in evaluation mode, on rows; the processes share the batches."""
        classes = self._classes
        outputs = split.y[0].size
        # A line for each row: its loss, its predictions and, for two classes, its margins. Each process fills in the
        # rows of its batches, and the sum over the processes is the whole table.
        columns = 1 + outputs + (outputs if classes == 2 else 0)
        table = torch.zeros(len(split), columns, dtype=torch.float64, device=self._device)
        own = [*batches(split.lengths, self.rows.scored)][self.ranks.rank :: self.ranks.count]
        converted = read_ahead(lambda rows: self.rows.convert(split.take(rows)), own)
        for rows, on_host in zip(own, converted, strict=True):
            batch = on_host.to(self._device)
            logits = self.forward(batch.x, batch.lengths, batch.is_full)
            # From page-locked memory, so that the copy does not wait.
            index = pinned(torch.from_numpy(rows), self._device).to(self._device, non_blocking=True)
            table[index, 0] = row_losses(logits, batch.y, classes).double()
            table[index, 1 : 1 + outputs] = (logits.argmax(-1) if classes else logits).flatten(1).double()
            if classes == 2:
                table[index, 1 + outputs :] = (logits[..., 1] - logits[..., 0]).flatten(1).double()
        values = self.ranks.add(table).cpu().numpy()
        predicted, y = values[:, 1 : 1 + outputs], split.y.reshape(len(split), -1)
        # A tally counts for several readouts, along the first axis; here it is one.
        if classes:
            score = (predicted == y).mean()
        else:
            score = Tally(Targets(outputs, 0)).update(predicted[None], y).accuracy()[0]
        margins = values[:, 1 + outputs :] if classes == 2 else None
        return Score(
            loss=float(values[:, 0].mean()), score=float(score), predicted=predicted, margins=margins
        )

    def _passes(self, step: int) -> range:
        """Return the numbers of the forward passes of this process in a step."""
        first = (step * self.ranks.count + self.ranks.rank) * self.options.accumulate
        return range(first, first + self.options.accumulate)


def row_losses(logits: Tensor, y: Tensor, classes: int) -> Tensor:
    r"""Return the loss of each row, the mean over its tokens and outputs: cross-entropy, or the squared error."""
    if classes:
        losses = nn.functional.cross_entropy(logits.flatten(0, 2).float(), y.flatten(), reduction="none")
    else:
        losses = (logits[..., 0].float() - y).square()
    return losses.view(len(y), -1).mean(dim=1)
