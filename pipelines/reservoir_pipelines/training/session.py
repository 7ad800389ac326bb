"""A trainer in the folder of its run: from the last checkpoint on, with journal, checkpoints, progress and tracker."""

from __future__ import annotations

import math
from contextlib import ExitStack

from torch import nn

from reservoir.options import StepOptions
from reservoir.training.processes import Processes
from reservoir.training.trainer import State, Steps, Trainer
from reservoir_pipelines.output import training_meter
from reservoir_pipelines.training.checkpoint import forget_others, load_optimizer, load_trained, save_checkpoint
from reservoir_pipelines.training.journal import Journal
from reservoir_pipelines.training.run import CHECKPOINTS, METRICS, Run
from reservoir_pipelines.training.tracking import tracking


def train_in(
    run: Run,
    model: nn.Module,
    steps: Steps,
    options: StepOptions,
    *,
    shown: str,
    unit: tuple[int, str] = (1, "steps"),
    bound: float = math.inf,
    track: str | None = None,
    ranks: Processes | None = None,
) -> State:
    """Train until the run has the steps that are asked for; ``shown`` formats the numbers of a step for its progress.

    ``unit`` is how many units a step has, of the speed that is shown. The first process alone writes.
    """
    ranks, last = ranks or Processes(), options.steps or 0
    state = run.state
    if checkpoint := run.last:
        if run.best != checkpoint:  # which is needed at the end: now is the time to find it damaged
            load_trained(run.best, model)
        load_trained(checkpoint, model)
        load_optimizer(checkpoint, model, steps.optimizer)
    ranks.wait()  # all have read before the first one writes
    settings = {"eval_every": options.eval_every, "state": state, "bound": bound}
    if not ranks.first:
        return Trainer(model, steps, report=lambda *_: None, keep=lambda _: None, **settings).run(last)
    with ExitStack() as held:
        track_step = held.enter_context(tracking(track, run.path, run.config["settings"]["recipe"]))
        run.reopen()
        forget_others(run.path / CHECKPOINTS, state)
        journal = Journal(run.path / METRICS, state.step)
        held.callback(journal.flush)
        show = held.enter_context(training_meter(last, state.step, shown, each=unit[0], unit=unit[1]))

        def report(step: int, numbers: dict[str, float]) -> None:
            journal.add(step, numbers)
            if track_step:
                track_step(step, numbers)
            if "norm" in numbers:  # of a step, not of a validation
                show(step, *numbers.values())

        def keep(state: State) -> None:
            journal.flush(durable=True)
            save_checkpoint(run.path / CHECKPOINTS, model, steps.optimizer, state)

        return Trainer(model, steps, report=report, keep=keep, **settings).run(last)
