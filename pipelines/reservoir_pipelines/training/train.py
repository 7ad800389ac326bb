"""The stage ``train``: end-to-end training of chosen groups of a model's parameters."""

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from reservoir_cache import path_below

from reservoir import devices
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.options import (
    RECIPE,
    ExtractOptions,
    PlaceOptions,
    ReservoirOptions,
    RowOptions,
    TrainOptions,
)
from reservoir.plan import BATCH_TOKENS, is_native, resolve_model
from reservoir.random import random_key
from reservoir.readouts.evaluation import evaluate_classes, evaluate_values
from reservoir.readouts.linear import metric_name
from reservoir.reservoir import LoadedModel
from reservoir.tasks import TASKS, source_of, task_named
from reservoir.tasks.sound import holds_samples
from reservoir.tasks.source import Source, fresh_rows
from reservoir.tasks.task import Split
from reservoir.tasks.variants import Variant, variant_of
from reservoir.training.groups import frozen_unchanged, set_dropout, trained_layer
from reservoir.training.rows import StoredRows, TargetScale, TrainingRows, raw_rows, to_batch
from reservoir.training.steps import DEFAULT_STEPS, FPTSteps, baseline, converged_step, default_rate
from reservoir.training.trainer import DivergedError, Processes, State, processes
from reservoir_pipelines.extraction.extract import extract, origin_of
from reservoir_pipelines.extraction.run import draw_rows, make_spec
from reservoir_pipelines.files import cache_root, write_checked
from reservoir_pipelines.fitting.predictions_file import (
    BEST,
    LabelledRows,
    Predicted,
    ReadoutPredictions,
    write_predictions,
)
from reservoir_pipelines.output import notify
from reservoir_pipelines.plots import plot_confusion, plot_training
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.training.run_folder import (
    CONFUSION,
    CURVE,
    RESULT,
    RunFolder,
    Training,
    load_trainable,
    load_trained,
    make_config,
)


def train(
    task: str, reservoir: ReservoirOptions, source: RowOptions, options: TrainOptions, place: PlaceOptions
) -> Training:
    """Train some groups of a model's parameters on a task; see `api.train`."""
    if not options.sweep:
        return _train_once(task, reservoir, source, place, options)
    if task in TASKS and (obstacle := task_named(task, **source.given).no_selection):
        problem = f"--sweep of {task}: {obstacle.reason}, which would choose the value"
        raise InputError(problem, f"remove --sweep, or {obstacle.remedy}")
    lists = [each if isinstance(each, list | tuple) else [each] for each in options.sweep.values()]
    grid = [dict(zip(options.sweep, numbers, strict=True)) for numbers in itertools.product(*lists)]
    for values in grid:
        replace(options, **values)  # refuses a wrong value before the first run
    runs = []
    for number, values in enumerate(grid, start=1):
        notify(
            f"sweep {number} of {len(grid)}: {', '.join(f'{name} {value:g}' for name, value in values.items())}"
        )
        folder = options.run and options.run / "-".join(
            f"{name}-{value:g}" for name, value in values.items()
        )
        settings: dict[str, Any] = {
            **values,
            "sweep": None,
            "resume": True,
            "run": folder,
            "on_divergence": "report",
        }
        one = replace(options, **settings)
        done = _train_once(task, reservoir, source, place, one, test=False)
        # A run that diverged has the score of its best validation before the divergence.
        merit = -math.inf if done.valid_score is None else done.valid_score, -(done.valid_loss or 0.0)
        kept = ("valid_score", "valid_loss", "best_step", "diverged_step", "seconds", "run")
        runs.append((merit, {**values, **{name: getattr(done, name) for name in kept}}, one))
    runs.sort(key=lambda run: run[0], reverse=True)
    _, best, chosen = runs[0]
    if best["best_step"] is None:
        names = ", ".join(options.sweep)
        raise InputError(
            f"--sweep {names}: every run diverged before its first validation", "try smaller values"
        )
    notify(f"{', '.join(f'{name} {best[name]:g}' for name in options.sweep)} has the best validation score")
    done = _train_once(task, reservoir, source, place, chosen)
    return replace(done, swept=tuple(row for _, row, _ in runs))


@dataclass(frozen=True)
class _Job:
    """The options of a training run with its data and model."""

    task: str
    source: RowOptions
    options: TrainOptions
    place: PlaceOptions
    ranks: Processes
    prepared: Prepared
    model: LoadedModel
    targets: TargetScale | None
    numbers: Mapping[str, np.ndarray]
    generator: Source
    kind: str  # kind of the rows of a step: fresh (generated), augmented (images) or stored
    test: bool  # whether the test split is scored

    @property
    def variant(self) -> Variant:
        """The variant of the task that the options choose."""
        return variant_of(self.source.given, self.task)

    @property
    def keeps_last(self) -> bool:
        """Whether the last weights are scored, because the test rows are the validation rows."""
        return self.generator.no_selection is not None


def _train_once(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    place: PlaceOptions,
    options: TrainOptions,
    *,
    test: bool = True,
) -> Training:
    """Train with one value of each option; score the test split unless ``test`` is False."""
    variant = variant_of(source.given, task)
    settings = resolve_model(reservoir, random_inits=variant.random_inits)
    place = replace(place, cache=cache_root(place.cache))
    with processes() as ranks, torch.random.fork_rng(), ExitStack() as held:
        with ranks.first_alone():
            prepared = prepare(task, source, cache=place.cache, model=reservoir)
        notify(*(prepared.notes_for(native=settings.input == "native") if ranks.first else ()))
        generator = source_of(prepared.task)
        kind = _kind_of_rows(generator, task, options)
        if reservoir.input is None and holds_samples(prepared.task) and is_native(prepared.task, settings):
            settings = replace(settings, input="native")  # else each sample would be a token
        device = ranks.device(place.device)
        model, groups = load_trainable(
            prepared.task, settings, options.train, device, options.compute, variant.output_init
        )
        variant.before_training(model.fpt)
        rate = options.learning_rate or default_rate(model.fpt.backbone.family.name, prepared.task.name)
        options = replace(options, steps=options.steps or DEFAULT_STEPS, learning_rate=rate, train=groups)
        numbers = draw_rows(prepared, source.limit)
        train_y = prepared.split("train").y[numbers["train"]]
        targets = None if prepared.task.classes else TargetScale.of(train_y)
        job = _Job(
            task, source, options, place, ranks, prepared, model, targets, numbers, generator, kind, test
        )
        config = _config(job)
        config["command"] = typed("train", [task], reservoir, source, replace(options, resume=False), place)
        config["origin"] = origin_of(task)
        name = f"{settings.title}-{config['key'][:16]}"
        run = RunFolder(
            options.run or path_below(cache_root(place.cache), "runs", prepared.task.name, name)
        )
        with ranks.first_alone():
            if ranks.first:
                held.enter_context(run.lock())
                run.start(config)
        if found := _finished_result(job, run):
            return found
        if job.keeps_last and ranks.first:
            notify(f"{task}: the test rows are the validation rows, so the last step is scored")
        set_dropout(model.fpt, options.dropout, below=variant.drops_in_frozen_layers)
        shown = "loss {0:.4f}  accuracy {1:.1%}" if prepared.task.classes else "loss {0:.4f}"
        with frozen_unchanged(model.fpt):
            steps = _steps(job)
            try:
                state, diverged = run.train(model.fpt, steps, options, shown=shown, ranks=ranks), None
            except DivergedError as error:
                if options.on_divergence == "stop":
                    raise
                state, diverged = error.state, error.step
        done = _result(job, run, steps, state, diverged)
        if ranks.first:
            title = f"{prepared.task.name}, {settings.title}: {', '.join(groups)} trained"
            plot_training(run.path / CURVE, run.history, done.best_step, title, metric=done.metric)
            plot_confusion(run.path / CONFUSION, done.evaluation, title)
            # The result is written last, so that a resumed run draws the plots of a killed one.
            write_checked(run.path / RESULT, done.to_dict())
        return done


def _kind_of_rows(source: Source, task: str, options: TrainOptions) -> str:
    """Return the kind of the rows of a step."""
    possible = {"fresh": source.endless, "augmented": source.augments}
    kinds = [kind for kind, can in possible.items() if can and not options.from_cache] + ["stored"]
    if options.rows not in ("auto", *kinds):
        raise InputError(
            f"--rows {options.rows}: neither task {task!r} nor the cache has such rows", "use --rows stored"
        )
    return kinds[0] if options.rows == "auto" else options.rows


def _config(job: _Job) -> dict[str, Any]:
    options, model, prepared = job.options, job.model, job.prepared
    store = (options.store or "float16") if options.from_cache else "float32"
    spec = make_spec(prepared, job.numbers, model, store).to_dict()
    if not devices.on_gpu(model.device):  # so that the keys of older runs stay valid
        spec["backbone"].pop("gelu", None)
    settings = {
        "spec": spec,
        "train": sorted(options.train or ()),
        "recipe": {name: getattr(options, name) for name in RECIPE} | {"seed": model.settings.seed},
        "processes": job.ranks.count,
        "rows": "cached" if options.from_cache else job.kind,
    }
    if job.variant.output_init != Variant().output_init:
        settings["recipe"] |= {"output_init": job.variant.output_init}
    if job.variant.drops_in_frozen_layers:
        settings["recipe"] |= {"dropout_below": True}
    if job.keeps_last:
        settings["recipe"] |= {"keep": "last"}
    if job.targets:
        settings["targets"] = {name: values.tolist() for name, values in vars(job.targets).items()}
    lengths = prepared.split("train").lengths
    return make_config(
        settings,
        model.device,
        reservoir=model.settings.to_dict(),
        scaling=scaling_to_json(prepared.scaling),
        lengths=bool(lengths.min() < lengths.max()),
    )


def _finished_result(job: _Job, run: RunFolder) -> Training | None:
    """Return the result of a finished run, else None; raise `InputError` if ``--resume`` is needed."""
    options, step = job.options, run.state.step
    last = options.steps or 0
    if result := run.result(Training.from_dict):
        unscored = job.test and result.best_step is not None and result.test_score is None  # in a sweep
        diverged = result.diverged_step is not None and result.diverged_step <= last
        if step >= last or (diverged and options.on_divergence == "report" and not options.resume):
            if step > last and job.ranks.first:
                notify(f"{run.path}: this run already has {step:,} steps; printing its result")
            return None if unscored else result
    if step and not options.resume:
        raise InputError(
            f"{run.path}: this run is at step {step:,} of {last:,}",
            "pass --resume to continue it, or remove the folder to start over",
        )
    return None


def _steps(job: _Job) -> FPTSteps:
    """Return the steps of a training run."""
    model, options, targets, seed = job.model, job.options, job.targets, job.model.settings.seed
    forward, hidden, convert = model.fpt, None, raw_rows(model, job.prepared.scaling)
    if options.from_cache:
        hidden, convert = _from_cache(job), partial(to_batch, device=model.device)

        def forward(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return model.fpt.logits(x)

    def scaled(split: str) -> Split:
        found = hidden(split) if hidden else job.prepared.split(split).take(job.numbers[split])
        return targets.apply(found) if targets else found

    def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        return job.generator.augmented(
            x, job.numbers["train"][rows], random_key(seed, "view", epoch, size=8)
        )

    tokens = BATCH_TOKENS[devices.kind(model.device)]
    if job.kind == "fresh":
        train = fresh_rows(job.generator, seed)
    else:
        stored = scaled("train")
        # The task's own way to draw rows needs their symbols, which cached hidden states do not have.
        own_rows = None if hidden else job.generator.training_rows(stored, seed, options.batch)
        train = own_rows or StoredRows(stored, seed, augment if job.kind == "augmented" else None)
    rows = TrainingRows(
        train=train,
        valid=scaled("valid"),
        test=scaled("test"),
        convert=convert,
        scored=max(1, tokens // model.fpt.task.max_tokens),
    )
    if options.compiled:
        if not devices.on_gpu(model.device):
            raise InputError("--compile: a compiled model is faster on GPUs only", "remove the flag")
        devices.compile_blocks(model.fpt.backbone.blocks)
    return FPTSteps(model.fpt, forward, rows, options, seed, job.ranks, keeps_last=job.keeps_last)


def _from_cache(job: _Job) -> Callable[[str], Split]:
    """Return a function that reads the cached inputs of the output layer for a split."""
    model, options = job.model, job.options
    if trained_layer(model.fpt) != "final" or (options.dropout and job.variant.drops_in_frozen_layers):
        raise InputError(
            "--from-cache: cached states fit only the output layer, and no dropout in frozen layers",
            "pass --train output, and --dropout 0 if frozen layers have dropout, or remove the flag",
        )
    with job.ranks.first_alone():
        read = {"layers": "final", "pool": "last", "store": options.store or "float16"}
        where = {"cache": job.place.cache, "device": str(model.device), "compute": model.compute}
        reservoir = as_group(model.settings, ReservoirOptions)
        store = extract(
            job.task, ExtractOptions(**vars(reservoir), **vars(job.source), **read, **where)
        ).store

    def hidden(name: str) -> Split:
        split = store[name]
        y = split.labels if split.labels.dtype.kind == "f" else split.labels.astype(np.int64)
        return Split(x=split.read("final/last"), y=y, lengths=split.lengths)

    return hidden


def _test_predictions(
    job: _Job, y: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None
) -> tuple[dict[str, LabelledRows], list[ReadoutPredictions]]:
    """Return the test rows with their labels, and the predictions of the best weights, both (rows, labels per row)."""
    task = job.prepared.task
    labels = y.reshape(len(y), task.readout_tokens, task.outputs)
    ids = job.prepared.split("test").ids[job.numbers["test"]]
    rows = LabelledRows(ids=ids, y=labels, groups=groups)
    by_split = {"test": Predicted(predicted, None)}
    return {"test": rows}, [ReadoutPredictions(name=BEST, of_splits=by_split, rows={"test": slice(None)})]


def _result(job: _Job, run: RunFolder, steps: FPTSteps, state: State, diverged: int | None) -> Training:
    """Return the result, with the score of the saved weights on the test rows in the unit of the data."""
    fpt, task, targets, rows = job.model.fpt, job.prepared.task, job.targets, steps.rows
    kept, found, evaluation = job.prepared.kept("test"), None, None
    job.ranks.wait()  # until the first process has written checkpoints and journal
    if state.step and job.test:
        load_trained(run.best, fpt)
        fpt.eval()
        found = steps.score("test")
        y, predicted = rows.test.y, found.predicted
        if targets:
            y, predicted = (
                targets.restore(array.reshape(y.shape)).reshape(len(y), -1) for array in (y, predicted)
            )
            evaluation = evaluate_values(y, predicted, groups=rows.test.groups)
        else:
            names = [str(task.label(number)) for number in range(task.classes)]
            y, guess, groups = y.reshape(len(y), -1), predicted.astype(int), rows.test.groups
            evaluation = evaluate_classes(y, guess, names, found.margins, groups=groups)
            evaluation = evaluation.with_baseline(task.floor, kept)
            predicted = guess
        if job.ranks.first:
            write_predictions(run.path, task, *_test_predictions(job, y, predicted, rows.test.groups))
    floor = max(baseline(rows.valid.y, task.classes), task.floor or 0.0)
    scores = [
        (line["step"], line["valid_score"]) for line in run.history if line.get("valid_score") is not None
    ]
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
        evaluation=evaluation,
    )
