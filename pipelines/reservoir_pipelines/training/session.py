"""The training loop of a run folder: it resumes, and writes journal, checkpoints, progress and tracker."""

from __future__ import annotations

import math
from contextlib import ExitStack

from torch import nn

from reservoir.options import StepOptions
from reservoir.training.trainer import Processes, State, Steps, Trainer
from reservoir_pipelines.output import training_meter
from reservoir_pipelines.training.checkpoint import load_optimizer, load_trained, remove_others, save_checkpoint
from reservoir_pipelines.training.journal import Journal
from reservoir_pipelines.training.run_folder import CHECKPOINTS, METRICS, RunFolder
from reservoir_pipelines.training.tracking import tracking


def train_in(
    run: RunFolder,
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
    """Train until the run has ``options.steps`` steps, starting from its last checkpoint, and return its state.

    Parameters
    ----------
    run : RunFolder
        Folder of the run; of several processes the first one writes to it.
    model, steps
        What is trained, and how a step is taken.
    options : StepOptions
        Steps and the interval of validations.
    shown : str
        Format of the numbers of a step, for the progress bar.
    unit : tuple of int and str
        How many units a step processes, and their name, for the speed in the progress bar.
    bound : float
        Loss above which the training counts as diverged.
    track : str, optional
        Name of a tracker.
    ranks : Processes, optional
        The processes that share each step.
    """
    ranks, last = ranks or Processes(), options.steps or 0
    state = run.state
    if checkpoint := run.last:
        if run.best != checkpoint:  # it is needed at the end: a damaged file should be found now
            load_trained(run.best, model)
        load_trained(checkpoint, model)
        load_optimizer(checkpoint, model, steps.optimizer)
    ranks.wait()  # all processes have read before the first one writes
    settings = {"eval_every": options.eval_every, "state": state, "bound": bound}
    if not ranks.first:
        return Trainer(model, steps, report=lambda *_: None, keep=lambda _: None, **settings).run(last)
    with ExitStack() as held:
        track_step = held.enter_context(tracking(track, run.path, run.config["settings"]["recipe"]))
        run.reopen()
        remove_others(run.path / CHECKPOINTS, state)
        journal = Journal(run.path / METRICS, state.step)
        held.callback(journal.flush)
        show = held.enter_context(training_meter(last, state.step, shown, each=unit[0], unit=unit[1]))

        def report(step: int, numbers: dict[str, float]) -> None:
            journal.add(step, numbers)
            if track_step:
                track_step(step, numbers)
            if "norm" in numbers:  # a step; a validation has no gradient norm
                show(step, *numbers.values())

        def keep(state: State) -> None:
            journal.flush(durable=True)
            save_checkpoint(run.path / CHECKPOINTS, model, steps.optimizer, state)

        return Trainer(model, steps, report=report, keep=keep, **settings).run(last)
