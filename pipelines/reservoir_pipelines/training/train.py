"""The stage ``train``: end-to-end training of chosen groups of a model's parameters, and sweeps of its options."""

import itertools
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from reservoir_cache import path_below

from reservoir.errors import InputError
from reservoir.options import PlaceOptions, ReservoirOptions, RowOptions, TrainOptions
from reservoir.plan import is_native, resolve_model
from reservoir.tasks import TASKS, source_of, task_named, variant_of
from reservoir.tasks.task import holds_samples
from reservoir.training.groups import frozen_unchanged, set_dropout
from reservoir.training.steps import DEFAULT_STEPS, FPTSteps, default_rate
from reservoir.training.trainer import DivergedError, Processes, processes
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.files import cache_root, write_checked
from reservoir_pipelines.output import notify
from reservoir_pipelines.plots import plot_confusion, plot_training
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.training.job import Job, choose_row_kind
from reservoir_pipelines.training.result import TrainedSteps, Training, training_result
from reservoir_pipelines.training.run_folder import CONFUSION, CURVE, RESULT, RunFolder, train_in_folder
from reservoir_pipelines.training.trainable import load_trainable

REPORTED = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
"""Fields of a result that a row of the sweep shows."""


def train(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> Training:
    """Train some groups of a model's parameters on a task; see `api.train`."""
    place = replace(place, cache=cache_root(place.cache))
    if not options.sweep:
        return train_once(task, reservoir, source, options, place)
    return _sweep(task, reservoir, source, options, place)


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
    with processes() as ranks, torch.random.fork_rng(), ExitStack() as stack:
        job = _load_job(task, reservoir, source, options, place, ranks)
        folder = _folder_of(job)
        with ranks.first_alone():
            if ranks.first:
                stack.enter_context(folder.lock())
                folder.start(job.config)
        if result := _finished_result(job, folder, test=test):
            return result
        if job.keeps_last and ranks.first:
            notify(f"{task}: the test rows are the validation rows, so the last step is scored")
        set_dropout(job.model.fpt, job.options.dropout, below=job.variant.drops_in_frozen_layers)
        with frozen_unchanged(job.model.fpt):
            steps = job.steps()
            trained = _train_steps(job, folder, steps)
        result = training_result(job, folder, steps, trained, test=test)
        if ranks.first:
            plot_training(
                folder.path / CURVE, folder.history, result.best_step, job.title, metric=result.metric
            )
            plot_confusion(folder.path / CONFUSION, result.evaluation, job.title)
            # The result is written last, so that a resumed run draws the plots of a killed one.
            write_checked(folder.path / RESULT, result.to_dict())
        return result


def _load_job(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    options: TrainOptions,
    place: PlaceOptions,
    ranks: Processes,
) -> Job:
    """Prepare the data, decide the defaults, and load the model."""
    variant = variant_of(source.given, task)
    settings = resolve_model(reservoir, random_inits=variant.random_inits)
    # 1. The data.
    with ranks.first_alone():
        prepared = prepare(task, source, cache=place.cache, model=reservoir)
    require_labels(prepared.task, "train")
    if ranks.first:
        notify(*prepared.notes_for(native=settings.input == "native"))
    generator = source_of(prepared.task)
    row_kind = choose_row_kind(generator, task, options)
    # 2. The input: samples of a wave go through the model's own input layer, else each would be a token.
    if reservoir.input is None and holds_samples(prepared.task) and is_native(prepared.task, settings):
        settings = replace(settings, input="native")
    # 3. The model.
    device = ranks.device(place.device)
    model, groups = load_trainable(
        prepared.task,
        settings,
        options.train,
        device,
        options.compute,
        output_init=variant.output_init,
    )
    variant.before_training(model.fpt)
    # 4. The defaults that depend on the model and the task.
    resolved_options = replace(
        options,
        steps=options.steps or DEFAULT_STEPS,
        learning_rate=options.learning_rate
        or default_rate(model.fpt.backbone.family.name, prepared.task.name),
        train=groups,
    )
    return Job(
        task=task,
        reservoir=reservoir,
        source=source,
        options=resolved_options,
        place=place,
        ranks=ranks,
        prepared=prepared,
        variant=variant,
        generator=generator,
        model=model,
        row_kind=row_kind,
    )


def _folder_of(job: Job) -> RunFolder:
    """Return the folder of a run: ``--run``, else one in the cache that is named after its settings."""
    name = f"{job.model.settings.title}-{job.config['key'][:16]}"
    path = job.options.run or path_below(cache_root(job.place.cache), "runs", job.prepared.task.name, name)
    return RunFolder(path)


def _finished_result(job: Job, folder: RunFolder, *, test: bool) -> Training | None:
    """Return the result of a finished run, else None; raise `InputError` if ``--resume`` is needed."""
    options, step = job.options, folder.state.step
    last_step = options.steps or 0
    if result := folder.result(Training.from_dict):
        is_diverged = result.diverged_step is not None and result.diverged_step <= last_step
        is_reported = options.on_divergence == "report" and not options.resume
        if step >= last_step or (is_diverged and is_reported):
            if step > last_step and job.ranks.first:
                notify(f"{folder.path}: this run already has {step:,} steps; printing its result")
            # The runs of a sweep have not been scored on the test rows.
            is_unscored = test and result.best_step is not None and result.test_score is None
            return None if is_unscored else result
    if step and not options.resume:
        raise InputError(
            f"{folder.path}: this run is at step {step:,} of {last_step:,}",
            "pass --resume to continue it, or remove the folder to start over",
        )
    return None


def _train_steps(job: Job, folder: RunFolder, steps: FPTSteps) -> TrainedSteps:
    """Train to the last step, or until the loss diverges if the options ask for a report of that."""
    shown = "loss {0:.4f}  accuracy {1:.1%}" if job.prepared.task.classes else "loss {0:.4f}"
    try:
        return TrainedSteps(
            train_in_folder(folder, job.model.fpt, steps, job.options, shown=shown, ranks=job.ranks)
        )
    except DivergedError as error:
        if job.options.on_divergence == "stop":
            raise
        return TrainedSteps(error.state, error.step)


@dataclass(frozen=True)
class _Trial:
    """One combination of values, and the result of training with it, which never read the test rows."""

    values: dict[str, Any]
    options: TrainOptions
    result: Training

    @property
    def rank(self) -> tuple[float, float]:
        """Validation score, then the negative loss: the best trial has the largest rank.

        A run that diverged has the score of its best validation before the divergence.
        """
        score = self.result.valid_score
        return -math.inf if score is None else score, -(self.result.valid_loss or 0.0)

    @property
    def row(self) -> dict[str, Any]:
        """The line of this trial in the result."""
        return {**self.values, **{name: getattr(self.result, name) for name in REPORTED}}


def _sweep(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> Training:
    """Train with each combination of some options' values, and score only the one with the best validation score."""
    if task in TASKS and (obstacle := task_named(task, **source.given).no_selection):
        raise InputError(
            f"--sweep of {task}: {obstacle.reason}, which would choose the value",
            f"remove --sweep, or {obstacle.remedy}",
        )
    combinations = _combinations(options)
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
    # The steps of the best run are in its folder: this call continues there, and scores the test rows.
    result = train_once(task, reservoir, source, best.options, place)
    return replace(result, swept=tuple(trial.row for trial in trials))


def _combinations(options: TrainOptions) -> list[dict[str, Any]]:
    """Return every combination of the values that ``--sweep`` lists, by the options' names."""
    values_of = options.sweep or {}
    lists = [values if isinstance(values, list | tuple) else [values] for values in values_of.values()]
    combinations = [dict(zip(values_of, values, strict=True)) for values in itertools.product(*lists)]
    for values in combinations:
        replace(options, **values)  # refuses a wrong value before the first run
    return combinations


def _options_of(options: TrainOptions, values: dict[str, Any]) -> TrainOptions:
    """Return the options of one run, which has a folder of its own below ``--run``."""
    folder = options.run and options.run / "-".join(f"{name}-{value:g}" for name, value in values.items())
    settings = {**values, "sweep": None, "resume": True, "run": folder, "on_divergence": "report"}
    return replace(options, **settings)


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
