"""The training loop: Adam on the trained parameters, one step a function of the weights and the step's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir import InputError
from reservoir.training.objective import row_hits, row_losses
from reservoir.training.processes import Processes
from reservoir.training.rows import Batch, Convert, Rows, random_key


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained; every field changes the result.

    Parameters
    ----------
    batch : int
        Rows of one forward pass in one process.
    accumulate : int
        Forward passes per step in one process.
    learning_rate : float
        Of Adam, otherwise with torch's defaults; it stays as it is.
    clip : float
        Most that the norm of all gradients together may be.
    dropout : float
        Share of values dropped; see `reservoir.training.dropout.set_dropout`.
    seed : int
        Chooses the order of the rows and what is dropped.
    """

    batch: int
    accumulate: int = 1
    learning_rate: float = 1e-3
    clip: float = 1.0
    dropout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} {getattr(self, name)}: give a whole number from 1")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: give a positive number")
        if not 0 <= self.dropout < 1:
            raise InputError(f"--dropout {self.dropout}: give a share from 0 up to, not including, 1")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


class Loop:
    """Takes training steps, one after the other.

    Step n sees the same rows and drops the same values whenever it is taken, so a run that goes on from a checkpoint
    ends with the weights of one that was never stopped. Forward pass j of step n is that of number
    ``j + accumulate * (process + processes * n)`` in the endless sequence of rows, so more processes, or more forward
    passes per step, change nothing but how many rows a step has.

    Parameters
    ----------
    forward : callable
        ``forward(x, lengths) -> logits``.
    parameters : list of Parameter
        Those that are trained.
    rows : callable
        The endless sequence of rows.
    convert : callable
        From rows to a batch on the device.
    recipe : Recipe
    classes : int
        0 for regression.
    group : Processes
    """

    def __init__(
        self,
        forward: Callable[[Tensor, Tensor], Tensor],
        parameters: list[nn.Parameter],
        rows: Rows,
        convert: Convert,
        recipe: Recipe,
        classes: int,
        group: Processes,
    ) -> None:
        self.optimizer = torch.optim.Adam(parameters, lr=recipe.learning_rate, fused=True)
        self._forward, self._parameters, self._recipe = forward, parameters, recipe
        self._rows, self._convert, self._classes, self._group = rows, convert, classes, group

    def steps(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """Take the steps with the numbers ``first`` + 1 to ``last``.

        Yields
        ------
        int
            Steps done.
        Tensor of float32, (3,)
            Loss and share of right labels of the step's rows before it, and the norm of the gradients before clipping;
            on the device, so that reading it is what waits.
        """
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._read, first)
            for number in range(first, last):
                batches = ahead.result()
                ahead = reader.submit(self._read, min(number + 1, last - 1))
                yield number + 1, self._step(number, batches)

    def _step(self, number: int, batches: list[Batch]) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(2, device=batches[0].x.device)
        for place, batch in zip(self._places(number), batches, strict=True):
            if self._recipe.dropout:
                torch.manual_seed(random_key(self._recipe.seed, "dropout", place))
            logits = self._forward(batch.x, batch.lengths)
            loss = row_losses(logits, batch.y, self._classes).mean() / len(batches)
            loss.backward()
            with torch.no_grad():
                right = row_hits(logits, batch.y).sum() / batch.y.numel() if self._classes else torch.zeros_like(loss)
                sums += torch.stack([loss.detach(), right / len(batches)])
        self._group.average_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._recipe.clip)
        self.optimizer.step()
        return torch.cat([self._group.add(sums) / self._group.count, norm.detach().reshape(1)])

    def _read(self, number: int) -> list[Batch]:
        size = self._recipe.batch
        return [
            self._convert(self._rows(np.arange(place * size, (place + 1) * size))) for place in self._places(number)
        ]

    def _places(self, number: int) -> range:
        """Return the numbers of a step's forward passes in this process."""
        first = (number * self._group.count + self._group.rank) * self._recipe.accumulate
        return range(first, first + self._recipe.accumulate)
