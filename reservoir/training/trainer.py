"""The training loop: steps, validation at intervals, the best state, and divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

FLUSH_STEPS = {"cpu": 1, "cuda": 16}
"""Steps between two readings of the loss; each reading synchronises with the GPU."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a training: steps done and their seconds, step and values of the best validation."""

    step: int = 0
    seconds: float = 0.0
    best_step: int = 0
    best: dict[str, float] = field(default_factory=dict)


class DivergedError(Exception):
    """The loss of a step is not finite or above its bound; ``state`` is the last state before that step."""

    def __init__(self, message: str, step: int, state: State) -> None:
        super().__init__(message)
        self.step, self.state = step, state


class Steps(Protocol):
    """The steps of a training; each step depends only on the weights and on its number, from 0."""

    optimizer: torch.optim.Optimizer

    def draw(self, step: int) -> Any:
        """Return the data of a step; called in another thread while the previous step runs."""
        ...

    def take(self, step: int, batch: Any) -> Tensor:
        """Take a step; return its loss, other values, and the norm of the gradients, on the device."""
        ...

    def numbers(self, values: list[float]) -> dict[str, float]:
        """Return the values of `take` by name, the loss first."""
        ...

    def validate(self, step: int) -> dict[str, float]:
        """Return the values of a validation after ``step`` steps, the loss first."""
        ...

    def better(self, found: dict[str, float], best: dict[str, float]) -> bool:
        """Return whether a validation is better than the best one so far."""
        ...


class Trainer:
    """Takes steps, validates every ``eval_every`` steps, and stops if the loss diverges; it writes no files.

    A step depends only on the weights and its number. A training that resumes from a state, with the weights and the
    optimizer's moments of that state, therefore ends with the same bits as one that was never stopped.

    ``report`` is called with ``(step, values)`` for every step, from 1, and for every validation, including one after
    the last step; ``keep`` with the `State` after every validation. A loss above ``bound`` counts as diverged.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Steps,
        *,
        eval_every: int,
        report: Callable[[int, dict[str, float]], None],
        keep: Callable[[State], None],
        state: State | None = None,
        bound: float = math.inf,
    ) -> None:
        self.state = state or State()
        self._model, self._steps, self._eval_every, self._bound = model, steps, eval_every, bound
        self._report, self._keep = report, keep

    def run(self, last: int) -> State:
        """Train until step ``last``; raise `DivergedError` if the loss diverges."""
        while self.state.step < last:
            first = self.state.step
            pause = min(last, (first // self._eval_every + 1) * self._eval_every)
            started = time.monotonic()
            self._take(first, pause)
            self._validate(pause, self.state.seconds + time.monotonic() - started)
        return self.state

    def _take(self, first: int, last: int) -> None:
        self._model.train()
        flush = FLUSH_STEPS["cuda" if next(self._model.parameters()).is_cuda else "cpu"]
        waiting: list[Tensor] = []
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._steps.draw, first)
            for step in range(first, last):
                batch = ahead.result()
                if step + 1 < last:
                    ahead = reader.submit(self._steps.draw, step + 1)
                waiting.append(self._steps.take(step, batch))
                if len(waiting) == flush or step + 1 == last:
                    for done, values in enumerate(torch.stack(waiting).tolist(), step + 2 - len(waiting)):
                        self._report(done, self._steps.numbers(values))
                        self._check("the loss", done, values[0], values[-1])
                    waiting.clear()

    def _validate(self, step: int, seconds: float) -> None:
        self._model.eval()
        found = self._steps.validate(step)
        self._report(step, found)
        self._check("the validation loss", step, next(iter(found.values())), 0.0)
        before = self.state
        if before.step and not self._steps.better(found, before.best):
            self.state = State(step=step, seconds=seconds, best_step=before.best_step, best=before.best)
        else:
            self.state = State(step=step, seconds=seconds, best_step=step, best=found)
        self._keep(self.state)

    def _check(self, which: str, step: int, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm) and loss <= self._bound:
            return
        gradients = f", with gradients of norm {norm:.4g}" if math.isfinite(loss) and norm else ""
        raise DivergedError(f"{which} is {loss:.4g} at step {step:,}{gradients}", step, self.state)
