"""The stage ``train``: end-to-end training of chosen groups of a model's parameters, and sweeps of its options."""

import itertools
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from reservoir.backbones.weights import frozen_unchanged
from reservoir.errors import InputError
from reservoir.options import PlaceOptions, ReservoirOptions, RowOptions, TrainOptions
from reservoir.plan.columns import split_names
from reservoir.tasks import variant_of
from reservoir.training.trainer import processes
from reservoir_pipelines.files import cache_root, with_digests, write_checked
from reservoir_pipelines.fitting.predictions_csv import PREDICTIONS
from reservoir_pipelines.output import notify
from reservoir_pipelines.plots import plot_confusion, plot_training
from reservoir_pipelines.training.checkpoints import Display, train_in_folder
from reservoir_pipelines.training.inputs import check_flags, inputs_of
from reservoir_pipelines.training.job import Job, load_job
from reservoir_pipelines.training.result import Training, training_result
from reservoir_pipelines.training.run_folder import CONFUSION, CURVE, RESULT, RunFolder

REPORTED = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
"""Fields of a result that a row of the sweep shows."""

DISPLAY_OF_CLASSES = Display(
    step="loss {0:.4f}  accuracy {1:.1%}",
    validation="validation loss {valid_loss:.4f}, accuracy {valid_score:.1%}",
)
DISPLAY_OF_VALUES = Display(
    step="loss {0:.4f}",
    validation="validation loss {valid_loss:.4f}, R² {valid_score:.3f}",
)


def train(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> Training:
    """Train some groups of a model's parameters on a task, for each value of a sweep, if given; see `api.train`."""
    place = replace(place, cache=cache_root(place.cache))
    trials = _sweep(task, reservoir, source, options, place) if options.sweep else []
    # The steps of the best trial are in its folder: this call continues there, and scores the test rows.
    chosen_options = trials[0].options if trials else options
    result = train_once(task, reservoir, source, chosen_options, place)
    return replace(result, trials=tuple(trial.row for trial in trials))


def train_once(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    options: TrainOptions,
    place: PlaceOptions,
    *,
    test: bool = True,
) -> Training:
    """Train with one value of each option; score the test split unless ``test`` is False."""
    # The stack holds the lock of the folder. Random numbers that the model draws do not change those of the caller.
    with processes() as ranks, torch.random.fork_rng(), ExitStack() as stack:
        # 1. The data, the model, and all defaults. What cannot be trained is refused before there is a folder.
        job = load_job(task, reservoir, source, options, place, ranks)
        check_flags(job)
        if job.generator.no_selection and not test:
            raise InputError(
                f"--sweep of {task}: {job.generator.no_selection.reason}, which would choose the value",
                f"remove --sweep, or {job.generator.no_selection.remedy}",
            )
        # 2. The folder, which no other process may use meanwhile.
        folder = RunFolder(job.folder)
        with ranks.first_alone():
            if ranks.first:
                stack.enter_context(folder.lock())
                folder.check(job.config)
        # 3. The result of a finished run is returned. That of a run of a sweep has no test scores; if they are needed
        # now, the code below takes the steps that are left, which may be none, and scores the test rows.
        options = job.options
        last_step = options.steps or 0
        state = folder.state
        if not test:
            _refuse_longer_run(folder, last_step)
        result = folder.final_result(partial(Training.from_folder, folder.path), options, job.patience)
        if result:
            if state.step > last_step and ranks.first:
                notify(f"{folder.path}: this run already has {state.step:,} steps; printing its result")
            has_no_weights = result.best_step is None  # it diverged before its first validation
            needs_test_scores = test and not has_no_weights and result.test_score is None
            if not needs_test_scores:
                if ranks.first:
                    _notify_other_validation(job, folder)
                return result
        elif state.step and not options.resume:
            raise InputError(
                f"{folder.path}: this run is at step {state.step:,} of {last_step:,}",
                "pass --resume to continue it, or remove the folder to start over",
            )
        # 4. The steps, which leave the best weights in the model and in the folder.
        if job.keeps_last and ranks.first:
            notify(f"{task}: the test rows are the validation rows, so the last step is scored")
        with frozen_unchanged(job.model.fpt):
            inputs = inputs_of(job)
            steps = inputs.steps()
            trained = train_in_folder(
                folder,
                job.config,
                job.model.fpt,
                steps,
                options,
                DISPLAY_OF_CLASSES if job.prepared.task.classes else DISPLAY_OF_VALUES,
                ranks=ranks,
                patience=job.patience,
                on_divergence=options.on_divergence,
            )
        # 5. The scores on the test rows, which nothing above was given, and the plots.
        test_rows = inputs.split("test") if test else None
        result = training_result(job, folder, steps, trained, test_rows)
        if ranks.first:
            plot_training(
                folder.path / CURVE, folder.history, result.best_step, job.title, metric=result.metric
            )
            plot_confusion(folder.path / CONFUSION, result.evaluation, job.title)
            # The result is written last, so that a resumed run draws the plots of a killed one.
            write_checked(folder.path / RESULT, with_digests(result.to_dict(), [folder.path / PREDICTIONS]))
        return result


def _refuse_longer_run(folder: RunFolder, last_step: int) -> None:
    """Raise `InputError` if a run has more steps than the runs of a sweep, which are compared after equal steps."""
    step = folder.state.step
    if step > last_step:
        raise InputError(
            f"{folder.path}: this run already has {step:,} steps, and --sweep compares runs of {last_step:,}",
            f"pass --steps {step}, or another --run",
        )


def _notify_other_validation(job: Job, folder: RunFolder) -> None:
    """Print how the finished run in a folder was validated, if a job asks for other steps or another patience.

    Other validations may have chosen other weights.
    """
    validation = folder.config.get("validation", job.validation)  # which older versions did not write
    if validation != job.validation:
        values = ", ".join(f"{name} {value}" for name, value in validation.items())
        notify(f"{folder.path}: printing the result with {values}; name another --run for other values")


@dataclass(frozen=True)
class _Trial:
    """One combination of values, and the result of training with it, which never read the test rows."""

    values: dict[str, Any]  # by the names of the options
    options: TrainOptions  # with these values
    result: Training

    @property
    def rank(self) -> tuple[float, float]:
        """Validation score, then the negative loss: the best trial has the largest rank.

        A run that diverged has the score of its best validation before the divergence; the rank of one without a
        validation is the smallest.
        """
        score = self.result.valid_score
        negative_loss = -(self.result.valid_loss or 0.0)
        return (-math.inf if score is None else score), negative_loss

    @property
    def row(self) -> dict[str, Any]:
        """The values and the reported fields of this trial, as a row of the table in the result of a sweep."""
        return {**self.values, **{name: getattr(self.result, name) for name in REPORTED}}


def _sweep(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> list[_Trial]:
    """Train with each combination of the values of ``--sweep``, and return the trials, best validation score first.

    Raise `InputError` if all of them diverged before their first validation, or if the values change nothing.
    """
    combinations = _combinations(options)
    # No layer above the lowest trained one has dropout if only the output layer is trained.
    trains_only_output = split_names(options.train or ()) == ("output",)
    drops_in_frozen_layers = variant_of(source.given, task).drops_in_frozen_layers
    sweeps_dropout = "dropout" in (options.sweep or {})
    if sweeps_dropout and trains_only_output and not drops_in_frozen_layers:
        raise InputError(
            "--sweep dropout: with --train output no layer has dropout", "remove it, or train other groups"
        )
    trials = list[_Trial]()
    for number, values in enumerate(combinations, start=1):
        notify(f"sweep {number} of {len(combinations)}: {_text(values)}")
        trial_options = _options_of(options, values)
        result = train_once(task, reservoir, source, trial_options, place, test=False)
        trials.append(_Trial(values, trial_options, result))
    trials.sort(key=lambda trial: trial.rank, reverse=True)
    best = trials[0]
    if best.result.best_step is None:
        raise InputError(
            f"--sweep {', '.join(best.values)}: every run diverged before its first validation",
            "try smaller values",
        )
    notify(f"{_text(best.values)} has the best validation score")
    return trials


def _combinations(options: TrainOptions) -> list[dict[str, Any]]:
    """Return every combination of the values that ``--sweep`` lists, by the options' names."""
    values_of = options.sweep or {}
    # A single value need not be a list.
    lists = [values if isinstance(values, list | tuple) else [values] for values in values_of.values()]
    combinations = [dict(zip(values_of, values, strict=True)) for values in itertools.product(*lists)]
    for values in combinations:
        replace(options, **values)  # refuses a wrong value before the first run
    return combinations


def _options_of(options: TrainOptions, values: dict[str, Any]) -> TrainOptions:
    """Return the options of the run of a sweep with these values.

    It has a folder of its own below ``--run``, if that is given, continues where an earlier sweep stopped, and does not
    end the sweep if it diverges.
    """
    folder = options.run
    if folder:
        folder /= "-".join(f"{name}-{value:g}" for name, value in values.items())
    settings = {**values, "sweep": None, "resume": True, "run": folder, "on_divergence": "report"}
    return replace(options, **settings)


def _text(values: dict[str, Any]) -> str:
    """Return the values of a combination for messages, such as ``learning_rate 0.001, dropout 0.1``."""
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
