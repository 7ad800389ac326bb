"""The stage ``train``: end-to-end training of chosen groups of a model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from reservoir_cache import path_below
from torch import nn
from torch.utils.checkpoint import checkpoint

from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.options import RECIPE, ExtractOptions, PlaceOptions, ReservoirOptions, RowOptions, TrainOptions
from reservoir.plan import is_native, resolve_model, with_audio_options
from reservoir.readouts import metric_name
from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir.reservoir import LoadedModel
from reservoir.tasks import Task, task_named
from reservoir.tasks.own.sounds import holds_samples
from reservoir.training.groups import UpperPart, frozen_digest, parse_groups, set_dropout, trained_layer
from reservoir.training.rows import TargetScale, TrainingRows
from reservoir.training.steps import FPTSteps, Score, baseline, converged_step, default_rate
from reservoir.training.trainer import DivergedError, Processes, State, processes
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.extraction.run import check_windows, draw_rows, make_spec
from reservoir_pipelines.output import notify
from reservoir_pipelines.plots import plot_confusion
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.training.checkpoint import load_trained
from reservoir_pipelines.training.data import choose_kind, hidden_states, sequences
from reservoir_pipelines.training.run_folder import CONFUSION, CURVE, RunFolder, make_config
from reservoir_pipelines.training.session import train_in
from reservoir_pipelines.training.sweep import sweep
from reservoir_pipelines.training.trained import load_trainable
from reservoir_pipelines.training.training_result import Training, plot_training
from reservoir_pipelines.workspace import cache_root, data_folder

STEPS = 5000


def train(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> Training:
    """Train some groups of a model's parameters on a task; everything else is frozen.

    On a CPU the same settings give the same weights, also if the run was stopped and resumed. With several processes,
    started by ``accelerate launch``, each process takes ``batch * accumulate`` rows of a step.
    """
    one = partial(_train_one, task, reservoir, with_audio_options(task, reservoir, source), place)
    return sweep(one, options) if options.sweep else one(options)


@dataclass(frozen=True)
class _Job:
    """The options of a training with its data and model."""

    task: str
    source: RowOptions
    options: TrainOptions
    place: PlaceOptions
    ranks: Processes
    prepared: Prepared
    model: LoadedModel
    targets: TargetScale | None
    numbers: Mapping[str, np.ndarray]


def _train_one(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    place: PlaceOptions,
    options: TrainOptions,
    *,
    test: bool = True,
) -> Training:
    """Train with one value of each option; score the test split unless ``test`` is False."""
    groups = None if options.train is None else parse_groups(options.train)
    settings = resolve_model(reservoir, published=source.published)
    generator = task_named(task, data=data_folder(source.data), **source.given)
    kind = choose_kind(options.rows, generator, task, from_cache=options.from_cache)
    place = replace(place, cache=cache_root(place.cache))
    with processes() as ranks, torch.random.fork_rng(), ExitStack() as held:
        with ranks.first_alone():
            prepared = prepare(task, source, cache=place.cache)
        if reservoir.input is None and holds_samples(prepared.task) and is_native(prepared.task, settings):
            settings = replace(settings, input="native")  # one token per sample would be thousands of tokens
        for note in prepared.notes() if ranks.first else ():
            notify(note)
        output_init, device = "linear" if source.published else "orthogonal", ranks.device(place.device)
        model, groups = load_trainable(prepared.task, settings, groups, device, options.compute, output_init)
        rate = options.learning_rate or default_rate(model.family, prepared.task.name)
        options = replace(options, steps=options.steps or STEPS, learning_rate=rate, train=groups)
        numbers = draw_rows(prepared, source.limit)
        check_windows(prepared, numbers, model.windows)
        train_y = prepared.split("train").y[numbers["train"]]
        targets = None if prepared.task.classes else TargetScale.of(train_y)
        job = _Job(task, source, options, place, ranks, prepared, model, targets, numbers)
        config = _config(job, kind)
        config["command"] = typed("train", [task], reservoir, source, replace(options, resume=False), place)
        name = f"{settings.title}-{config['key'][:16]}"
        run = RunFolder(options.run or path_below(cache_root(place.cache), "runs", prepared.task.name, name))
        with ranks.first_alone():
            if ranks.first:
                held.enter_context(run.lock())
                run.start(config)
        if found := _finished_result(run, options, ranks, test=test):
            return found
        set_dropout(model.fpt, options.dropout, below=source.published)
        before = frozen_digest(model.fpt)
        if options.from_cache:
            forward, rows = _from_cache(job)
        else:
            forward, rows = model.fpt, sequences(model, prepared, numbers, generator, kind, targets)
        steps = FPTSteps(model.fpt, _forward(forward, model, options), rows, options, settings.seed, ranks)
        state, diverged = _train(run, model, steps, options, ranks)
        if frozen_digest(model.fpt) != before:
            raise RuntimeError("a frozen tensor has changed; this is a defect of reservoir")
        done = _result(job, run, steps, rows, state, diverged, test=test)
        if ranks.first:
            title = f"{prepared.task.name}, {settings.title}: {', '.join(groups)} trained"
            plot_training(run.path / CURVE, run.history, done.best_step, title, metric=done.metric)
            plot_confusion(run.path / CONFUSION, done.evaluation, title)
            run.finish(done.to_dict())  # last: a run that was killed before draws its pictures when it is resumed
        return done


def _config(job: _Job, kind: str) -> dict[str, Any]:
    """Return the configuration that the run folder keeps."""
    options, model, prepared = job.options, job.model, job.prepared
    store = (options.store or "float16") if options.from_cache else "float32"
    settings = {
        "spec": make_spec(prepared, job.numbers, model, store).to_dict(),
        "train": sorted(options.train or ()),
        "recipe": {name: getattr(options, name) for name in RECIPE} | {"seed": model.settings.seed},
        "processes": job.ranks.count,
        "rows": "cached" if options.from_cache else kind,
    }
    if job.source.published:  # the output layer and dropout of the authors' code
        settings["recipe"] |= {"output_init": "linear", "dropout_below": True}
    if job.targets:
        settings["targets"] = job.targets.to_json()
    lengths = prepared.split("train").lengths
    return make_config(
        settings,
        model.device,
        reservoir=model.settings.to_dict(),
        scaling=scaling_to_json(prepared.scaling),
        lengths=bool(lengths.min() < lengths.max()),
    )


def _finished_result(run: RunFolder, options: TrainOptions, ranks: Processes, *, test: bool) -> Training | None:
    """Return the result of a run that needs no more steps, else None; raise `InputError` if ``--resume`` is missing."""
    state, last = run.state, options.steps or 0
    if found := run.result:
        result = Training.from_dict(found)
        if test and result.best_step is not None and result.test_score is None and state.step == last:
            return None  # a run of a sweep, which has not been scored on the test rows
        if state.step and state.step >= last:
            if state.step > last and ranks.first:
                notify(f"{run.path}: this run already has {state.step:,} steps; printing its result")
            return result
        diverged_before = result.diverged_step is not None and result.diverged_step <= last
        if diverged_before and options.on_divergence == "report" and not options.resume:
            return result
    if state.step and not options.resume:
        raise InputError(
            f"{run.path}: this run is at step {state.step:,} of {last:,}; pass --resume to continue it, or remove the "
            "folder to start again"
        )
    return None


def _from_cache(job: _Job) -> tuple[nn.Module, TrainingRows]:
    """Return the trained upper part of the model, and the cached hidden states that it reads."""
    model, options = job.model, job.options
    layer = trained_layer(model.fpt)
    if layer is None:
        raise InputError(
            f"--from-cache --train {','.join(options.train or ())}: parameters before the first block are trained, "
            "so nothing can be cached; remove --from-cache, or train neither input nor positions"
        )
    if options.dropout and job.source.published:
        raise InputError(
            "--from-cache --protocol paper: the authors' dropout also applies to frozen layers, which the cache cannot "
            "repeat; pass --dropout 0, or remove --from-cache"
        )
    upper = {"layers": layer, "pool": "last" if layer == "final" else "all", "store": options.store or "float16"}
    with job.ranks.first_alone():
        where = {"cache": job.place.cache, "device": str(model.device), "compute": model.compute}
        reservoir = as_group(model.settings, ReservoirOptions)
        store = extract(job.task, ExtractOptions(**vars(reservoir), **vars(job.source), **upper, **where)).store
    part = UpperPart(model.fpt, layer)
    return part, hidden_states(model, part, store, job.targets)


def _forward(forward: nn.Module, model: LoadedModel, options: TrainOptions) -> nn.Module:
    """Recompute blocks in the backward pass, and compile the model, if the options ask for it."""
    if options.recompute:
        for block in model.fpt.backbone.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if not options.compiled:
        return forward
    if model.device.type != "cuda":
        raise InputError("--compile: a compiled model is faster on GPUs only; remove the flag")
    return torch.compile(forward)  # pyright: ignore[reportReturnType]


def _train(
    run: RunFolder, model: LoadedModel, steps: FPTSteps, options: TrainOptions, ranks: Processes
) -> tuple[State, int | None]:
    """Train; return the last state, and the step at which the loss diverged, if it did and that is reported."""
    shown = "loss {0:.4f}  accuracy {1:.1%}" if model.fpt.task.classes else "loss {0:.4f}"
    track = options.track
    try:
        state = train_in(run, model.fpt, steps, options, shown=shown, bound=options.bound, track=track, ranks=ranks)
    except DivergedError as error:
        if options.on_divergence == "report":
            return error.state, error.step
        good = f"the last good checkpoint is {run.last}" if error.state.step else "there is no checkpoint before it"
        message = f"{error}; {good}; use a smaller --learning-rate"
        raise DivergedError(message, error.step, error.state) from None
    return state, None


def _result(
    job: _Job, run: RunFolder, steps: FPTSteps, rows: TrainingRows, state: State, diverged: int | None, *, test: bool
) -> Training:
    """Return the result; with ``test`` the best weights are scored on the test rows."""
    fpt, task, found = job.model.fpt, job.prepared.task, None
    job.ranks.wait()  # until the first process has written checkpoints and journal
    if state.step and test:
        load_trained(run.best, fpt)
        fpt.eval()
        found = steps.score("test")
    floor, kept = max(baseline(rows.valid.y, task.classes), task.floor or 0.0), job.prepared.kept("test")
    scores = [(line["step"], line["valid_score"]) for line in run.history if line.get("valid_score") is not None]
    trained = [p for p in fpt.parameters() if p.requires_grad]
    return Training(
        run=str(run.path),
        steps=diverged or state.step,
        best_step=state.best_step if state.step else None,
        metric=metric_name(task.classes),
        valid_score=state.best.get("valid_score"),
        valid_loss=state.best.get("valid_loss"),
        test_score=found.score if found else None,
        test_loss=found.loss if found else None,
        test_score_of_all=kept * found.score if found and task.classes else None,
        floor=floor,
        converged_step=converged_step(scores, floor),
        diverged_step=diverged,
        groups=tuple(job.options.train or ()),
        trained=sum(p.numel() for p in trained),
        frozen_tensors=len(fpt.state_dict()) - len(trained),
        seconds=round(state.seconds, 3),
        evaluation=_evaluate(found, rows.test.y, task, job.targets, kept) if found else None,
    )


def _evaluate(found: Score, y: np.ndarray, task: Task, targets: TargetScale | None, kept: float) -> Evaluation:
    """Compare predictions of the test rows with their labels, or with their targets in the unit of the data."""
    flat = y.reshape(len(y), -1)
    if targets is None:
        names = [str(task.label(number)) for number in range(task.classes)]
        return evaluate_classes(flat, found.predicted.astype(int), names, found.margins).beside(task.floor, kept)
    values, predicted = (targets.restore(array.reshape(y.shape)) for array in (y, found.predicted))
    return evaluate_values(values.reshape(len(y), -1), predicted.reshape(len(y), -1))
