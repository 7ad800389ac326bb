"""The course of a training: steps, validation at intervals, checkpoints, and what to do when the loss diverges."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reservoir.fpt import FPT
from reservoir.training.loop import Loop
from reservoir.training.processes import Processes
from reservoir.training.scoring import Score
from reservoir_pipelines.output import training_meter
from reservoir_pipelines.training.checkpoint import State, save_checkpoint
from reservoir_pipelines.training.run import CHECKPOINTS, METRICS, Journal, Run, read_journal
from reservoir_pipelines.training.tracking import Tracker

TOLERANCE = 0.01
"""Validation accuracy has converged once it stays so close to its last value."""

FLUSH_STEPS = {"cpu": 1, "cuda": 16}
"""Steps between two readings of the loss: reading it makes a GPU wait."""

JOURNAL_SECONDS = 1.0


class DivergedError(Exception):
    """The loss is not finite, or above its bound.

    Parameters
    ----------
    message : str
    step : int
        Where.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def converged_step(history: Sequence[tuple[int, float]], tolerance: float = TOLERANCE) -> int | None:
    """Return the first validated step from which on accuracy stays within ``tolerance`` of its last value.

    Parameters
    ----------
    history : sequence of (int, float)
        Steps done and validation accuracy, in order.
    tolerance : float, default 0.01

    Returns
    -------
    int or None
        None where nothing was validated.
    """
    first = None
    for step, accuracy in reversed(history):
        if not abs(accuracy - history[-1][1]) <= tolerance:
            break
        first = step
    return first


@dataclass(kw_only=True)
class Course:
    """A training under way.

    Parameters
    ----------
    model : FPT
        The model.
    loop : Loop
        Takes its steps.
    validate : callable
        Scores it on the validation split.
    run : Run
        Where checkpoints and numbers go.
    group : Processes
    eval_every : int
        Steps between validations, after each of which there is a checkpoint.
    bound : float
        A loss above it counts as diverged.
    tracker : Tracker, optional
    state : State, optional
        Where it goes on from.
    """

    model: FPT
    loop: Loop
    validate: Callable[[], Score]
    run: Run
    group: Processes
    eval_every: int
    bound: float
    tracker: Tracker | None = None
    state: State | None = None
    history: list[tuple[int, float]] = field(default_factory=list)

    def go(self, steps: int) -> None:
        """Train until so many steps are done.

        Raises
        ------
        DivergedError
            Naming the step.
        """
        first = self.state.step if self.state else 0
        journal = self._journal(first)
        text = "loss {0:.4f}  accuracy {1:.1%}" if self.model.task.classes else "loss {0:.4f}"
        with training_meter(steps, first, text, quiet=not self.group.first) as show:
            while first < steps:
                last = min(steps, (first // self.eval_every + 1) * self.eval_every)
                started = time.monotonic()
                self._stretch(first, last, journal, show)
                self._validate(last, time.monotonic() - started, journal)
                first = last

    def _stretch(self, first: int, last: int, journal: Journal | None, show: Callable[..., None]) -> None:
        self.model.train()
        waiting: list[tuple[int, Tensor]] = []
        flush = FLUSH_STEPS["cuda" if next(self.model.parameters()).is_cuda else "cpu"]
        lines: list[dict[str, Any]] = []
        written = time.monotonic()
        try:
            for step, values in self.loop.steps(first, last):
                waiting.append((step, values))
                if len(waiting) < flush and step < last:
                    continue
                for done, (loss, accuracy, norm) in zip(
                    [step for step, _ in waiting], torch.stack([v for _, v in waiting]).tolist(), strict=True
                ):
                    right = {"accuracy": accuracy} if self.model.task.classes else {}
                    lines.append({"step": done, "loss": loss, **right, "norm": norm})
                    self._check(done, loss, norm)
                    show(done, loss, accuracy)
                waiting.clear()
                if journal and time.monotonic() - written > JOURNAL_SECONDS:
                    self._write(journal, lines)
                    written = time.monotonic()
        finally:
            self._write(journal, lines)

    def _validate(self, step: int, seconds: float, journal: Journal | None) -> None:
        self.model.eval()
        found = self.validate()
        self._write(journal, [{"step": step, "valid_loss": found.loss, "valid_accuracy": found.accuracy}])
        self._check(step, found.loss)
        before = self.state
        best = (found.accuracy, found.loss, step)
        if before and (before.best_score, -before.best_loss) >= (found.accuracy, -found.loss):
            best = (before.best_score, before.best_loss, before.best_step)
        self.state = State(
            step=step,
            seconds=seconds + (before.seconds if before else 0.0),
            best_step=best[2],
            best_score=best[0],
            best_loss=best[1],
        )
        self.history.append((step, found.accuracy))
        if self.group.first:
            save_checkpoint(self.run.path / CHECKPOINTS, self.model, self.loop.optimizer, self.state)

    def _check(self, step: int, loss: float, norm: float | None = None) -> None:
        """Stop where the loss of a step, or without ``norm`` that of a validation, is out of bounds."""
        if not (math.isfinite(loss) and math.isfinite(norm or 0.0)) or loss > self.bound:
            which = "the validation loss" if norm is None else "the loss"
            gradients = "" if norm is None else f", with gradients of norm {norm:.4g}"
            raise DivergedError(f"{which} is {loss:.4g} at step {step:,}{gradients}", step)

    def _journal(self, step: int) -> Journal | None:
        path = self.run.path / METRICS
        if path.exists():
            lines = [line for line in read_journal(path) if line["step"] <= step]
            self.history = [(line["step"], line["valid_accuracy"]) for line in lines if "valid_accuracy" in line]
        self.group.wait()  # all have read before the first one cuts
        return Journal(path, step) if self.group.first else None

    def _write(self, journal: Journal | None, lines: list[dict[str, Any]]) -> None:
        if journal and lines:
            journal.add(lines)
            for line in lines:
                if self.tracker:
                    self.tracker.log(line["step"], {name: value for name, value in line.items() if name != "step"})
        lines.clear()
