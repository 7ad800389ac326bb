"""Train a model in the folder of a run, from its last checkpoint on."""

import math
from pathlib import Path

from reservoir_cache import sync
from torch import nn

from reservoir.errors import InputError, as_input_error
from reservoir.options import StepOptions
from reservoir.training.trainer import Processes, State, Steps, Trainer
from reservoir_pipelines.files import checked_line
from reservoir_pipelines.output import training_meter
from reservoir_pipelines.training.checkpoints import STATE, load_optimizer, load_trained, save_checkpoint
from reservoir_pipelines.training.journal import open_journal
from reservoir_pipelines.training.run_folder import CHECKPOINTS, METRICS, RESULT, RunFolder


def train_in_folder(
    folder: RunFolder,
    model: nn.Module,
    steps: Steps,
    options: StepOptions,
    *,
    shown: str,
    unit: tuple[int, str] = (1, "steps"),
    ranks: Processes | None = None,
) -> State:
    """Train until a run has ``options.steps`` steps, starting from its last checkpoint, and return its state.

    ``shown`` formats the numbers of a step for the progress line; ``unit`` is the number of units
    per step and their name. Only the first of the ``ranks`` writes to the folder.
    """
    ranks = ranks or Processes()
    state, last_step = folder.state, options.steps or 0
    if checkpoint := folder.last:
        _restore(folder, checkpoint, model, steps)
    ranks.wait()  # until all processes have read the checkpoint
    settings = {"eval_every": options.eval_every, "state": state}
    if not ranks.first:
        return Trainer(model, steps, report=lambda *_: None, keep=lambda _: None, **settings).run(last_step)
    (folder.path / RESULT).unlink(missing_ok=True)
    meter = training_meter(last_step, state.step, shown, units_per_step=unit[0], unit=unit[1])
    with open_journal(folder.path / METRICS, state.step) as journal, meter as show:

        def report(step: int, numbers: dict[str, float]) -> None:
            # JSON has neither NaN nor infinity.
            finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            journal.write(checked_line({"step": step, **finite}))
            is_training_step = "norm" in numbers  # validations have no gradient norm
            if is_training_step:
                show(step, *numbers.values())

        def keep(state: State) -> None:
            sync(folder.path / METRICS)
            save_checkpoint(folder.path / CHECKPOINTS, model, steps.optimizer, state)

        return Trainer(model, steps, report=report, keep=keep, **settings).run(last_step)


def _restore(folder: RunFolder, checkpoint: Path, model: nn.Module, steps: Steps) -> None:
    """Load a checkpoint, whose best scores must be those of the journal."""
    state = folder.state
    with as_input_error(f"{checkpoint / STATE}: not readable", "train in another folder"):
        steps.better(state.best, state.best)  # fails if a value is missing
    validated = {"step": state.best_step, **state.best}
    for line in folder.history:
        is_validation = "norm" not in line
        if line["step"] == state.best_step and is_validation and line != validated:
            raise InputError(
                f"{checkpoint}: its best scores are not those in {METRICS}",
                "restore it, or train in another folder",
            )
    load_trained(folder.best, model)  # it is needed at the end, so damage is reported now
    load_trained(checkpoint, model)
    load_optimizer(checkpoint, model, steps.optimizer)
