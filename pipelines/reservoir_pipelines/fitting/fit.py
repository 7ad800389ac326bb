"""The stage ``fit``: every cached column under every setting of a readout, chosen by validation, test scored once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from reservoir_cache import make_folder

from reservoir import InputError
from reservoir.option_fields import typed
from reservoir.options import DeviceOptions, FitOptions
from reservoir.readouts import (
    DEFAULT_ALPHAS,
    Again,
    LinearReadout,
    NumpyArithmetic,
    TorchArithmetic,
    forward_selection,
    products_on,
)
from reservoir.readouts.evaluation import Evaluation, Readout, compare, evaluate
from reservoir.reservoir import choose_device
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task
from reservoir_pipelines.files import write_checked, writing
from reservoir_pipelines.fitting.bundle import Bundle, alone_in
from reservoir_pipelines.fitting.column_moments import compute_moments
from reservoir_pipelines.fitting.curve import learning_curve, parse_sizes
from reservoir_pipelines.fitting.engines import Engine, RidgeEngine, few_rows, make_engine
from reservoir_pipelines.fitting.pool import Features, Pool, choose_columns
from reservoir_pipelines.fitting.raw import RAW
from reservoir_pipelines.fitting.results import ELSEWHERE, SUMMARY, Fit, Result, score_matrix, write_table
from reservoir_pipelines.fitting.sklearn_readout import EstimatorEngine
from reservoir_pipelines.fitting.sources import ColumnSource, JoinedSource, Source, groups_of
from reservoir_pipelines.fitting.trials import Trial, make_targets, trial_of
from reservoir_pipelines.output import meter, notify
from reservoir_pipelines.plots import plot_confusion, plot_curve, plot_sweep
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.stage import stage

# Greedy selection holds the moments of all candidates side by side, of order the square of their joint width.
SHORTLIST_WIDTH = 6144


CAUTION = (
    "CAUTION: {rows} validation rows chose among {readouts:,} readouts, so chance chose as much as they: choose by "
    "cross-validation (--select cv5), or give more validation rows"
)


EDGE = "{title}: penalty {alpha:g}, the end of those tried, does best; --alphas LO:HI:N tries others"


@stage
def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    Parameters
    ----------
    features : Extraction, FeatureStore or Path, or a sequence of these
        What `extract` returned, or the folder of an entry; several entries of the same rows are fitted together, their
        columns named ``1:block06/mean``, ``2:block06/mean`` and so on.
    **options
        Fields of `FitOptions` and `DeviceOptions`. ``columns`` that are ``all`` are tried each alone, all of a layer
        side by side, and beside the raw input, which is chosen where nothing does better; ``a+b`` reads two side by
        side, ``best:4`` adds up to four greedily by validation. What is chosen on valid is then fitted to train and
        valid together. ``out`` is by default below the cache's ``readouts``, named after all of these.

    Returns
    -------
    Fit

    Raises
    ------
    InputError, CacheError
        Where a column is not cached, an entry is not whole, or settings do not go together.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> found.best.metric, found.best.test_score > 0.5
    ('accuracy', True)
    """
    started = time.monotonic()
    pool = Pool.of(features)
    task = Task.from_dict(pool.entry.spec.task)
    rows = {split: pool.store[split].rows for split in ("train", "valid", "test")}
    groups = groups_of(pool.store)
    engine = make_engine(options, task.classes, rows, None if groups is None else len(np.unique(groups)))
    folds = engine.folds if isinstance(engine, RidgeEngine) else 0
    names, most = choose_columns(pool, options.columns, folds)
    sizes = _sizes(options, engine, most, rows["train"])
    folder = _folder(pool, names, most, options)
    how = f"{folds}-fold cross-validation{'' if groups is None else ' by group'}" if folds else "valid"
    _announce(pool, task, len(names), how)
    with _products(place.device):
        trials = _sweep(pool, names, engine, options)
        if most and isinstance(engine, RidgeEngine):
            trials += _greedy(pool, trials, engine, most)
        best = max(trials, key=lambda trial: trial.result.merit)
        source: Source = pool.source(best.result.name)
        points = learning_curve(source, engine, sizes) if sizes and isinstance(engine, RidgeEngine) else ()
        raw_source = pool.raw()
        raw = _raw(trials, raw_source, engine)
        kept = pool.entry.made_with.get("kept", {}).get("test", 1.0)
        found = _finish(best, source, engine, task, kept)
        plain = _finish(raw, raw_source, engine, task, kept) if raw and raw_source else None
    p_value = compare(found[2], plain[2]) if plain else None
    on_reservoir = found[0]
    if plain and options.columns == "all" and task.name not in TASKS and plain[0].merit > on_reservoir.merit:
        found = plain  # of a named task the reservoir is what is asked about
    if found[0].columns == (RAW,):
        notify("the raw input alone does best: here this reservoir adds nothing to a linear model")
    chosen, model, evaluation = found
    if (raw if raw and found is plain else best).at_edge:
        notify(EDGE.format(title=chosen.title, alpha=chosen.alpha))
    table = tuple(result for trial in trials for result in trial.results)
    if not folds and len(table) > 1 and few_rows(rows["valid"], task.classes):
        notify(CAUTION.format(rows=rows["valid"], readouts=len(table)))
    raw_result = plain[0] if plain else None
    with alone_in(folder):  # all that is in it is of one fit
        write_table(folder / "results.csv", table, chosen, raw_result)
        saved = Bundle.of(pool.stores, scaling_from_json(pool.entry.made_with["scaling"]), model, chosen).write(folder)
        done = Fit(
            entry=pool.entry.path,
            best=chosen,
            evaluation=evaluation,
            raw=raw_result,
            p_value=p_value,
            table=table,
            curve=points,
            readout=model,
            results=folder / "results.csv",
            plot=folder / "sweep.png",
            saved=saved,
            seconds=round(time.monotonic() - started, 3),
        )
        told = {"title": chosen.title, "commands": _commands(pool, options)}
        write_checked(folder / SUMMARY, {**done.to_dict(), **told})
        _draw(folder, f"{task.name}, {pool.title}", table, on_reservoir, raw_result, points, evaluation)
    return done


def _commands(pool: Pool, options: FitOptions) -> list[str]:
    """Return the commands that extract what was fitted, and fit it."""
    made = [store.entry.made_with.get("call", {}).get("command") for store in pool.stores]
    return [*filter(None, made), typed("fit", [str(store.entry.path) for store in pool.stores], options)]


def _announce(pool: Pool, task: Task, columns: int, how: str) -> None:
    """Say what is fitted, and which number each of several entries has."""
    for number, store in enumerate(pool.stores if len(pool.stores) > 1 else (), start=1):
        notify(f"{number}: {store.entry.path.name}")
    notify(f"fit {task.name}: {columns} columns on {pool.store['train'].rows:,} rows, chosen by {how}")


def _raw(trials: Sequence[Trial], source: Source | None, engine: Engine) -> Trial | None:
    """Return the trial of the raw input, which may be one of those tried; None where the prepared data is gone."""
    if source is None:
        notify("raw input: the prepared data is gone, so it is left out; reservoir prepare brings it back")
        return None
    if isinstance(engine, RidgeEngine) and len(engine.alphas) == 1:  # a penalty that suits the columns
        return replace(engine, alphas=DEFAULT_ALPHAS, widens=True).run(source)
    return next((trial for trial in trials if trial.result.columns == (RAW,)), None) or engine.run(source)


def class_names(task: Task) -> list[str]:
    """Return the names of a task's classes; none for regression."""
    return [str(task.label(number)) for number in range(task.classes)]


def _sizes(options: FitOptions, engine: Engine, most: int, rows: int) -> tuple[int, ...]:
    """Return the sizes of the learning curve, and refuse what only ridge readouts chosen on valid can do."""
    if options.curve and not isinstance(engine, RidgeEngine):
        raise InputError(
            f"--curve: a learning curve comes from the moments of ridge readouts, not of {options.readout}"
        )
    if most and (not isinstance(engine, RidgeEngine) or engine.folds):
        raise InputError("--columns best:K goes with ridge readouts chosen on valid; name the columns as a+b instead")
    return parse_sizes(options.curve, rows) if options.curve else ()


def _folder(pool: Pool, names: Sequence[str], most: int, options: FitOptions) -> Path:
    """Make the folder of the results, by default one that fits with other columns or settings do not write into."""
    settings = [names, most, options.readout, options.alphas, options.select, options.class_weight]
    if options.one_standard_error:
        settings.append("one-standard-error")
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    kind = options.readout.partition(":")[0].rpartition(".")[2]
    default = pool.folder(f"{kind}-{digest}")
    folder = Path(options.out) if options.out else default
    with writing(folder):
        make_folder(folder)
    if options.out and default.parents[1].name == "readouts":
        with suppress(OSError):  # a cache that others own can be read only
            default.mkdir(parents=True, exist_ok=True)
            write_checked(default / ELSEWHERE, {"folder": str(folder.resolve())})
    return folder


def _products(device: str) -> AbstractContextManager[None]:
    """Return the context in which products run on a device."""
    place = choose_device(device)
    if place.type not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: readouts are fitted on cpu or cuda")
    return products_on(NumpyArithmetic() if place.type == "cpu" else TorchArithmetic(str(place)))


def _sweep(pool: Pool, names: Sequence[str], engine: Engine, options: FitOptions) -> list[Trial]:
    """Fit every column, from moments that other processes compute first where there are any."""
    if options.workers or options.scheduler:
        wanted = [moments for name in names if (moments := engine.moments(pool.source(name))) and not moments.load()]
        with meter("read", len(wanted), unit="columns") as bar:
            for _ in compute_moments(wanted, workers=options.workers, scheduler=options.scheduler):
                bar.advance(1)
    trials: list[Trial] = []
    with meter("fit", len(names), unit="columns") as bar:
        for name in names:
            trials.append(engine.run(pool.source(name)))
            bar.advance(1)
    return trials


def _greedy(pool: Pool, trials: Sequence[Trial], engine: RidgeEngine, most: int) -> list[Trial]:
    """Add columns to the best one as long as validation gains; return the trial of each number of columns."""
    ranked = sorted(trials, key=lambda trial: trial.result.merit, reverse=True)
    parts: list[ColumnSource] = []
    places: dict[str, slice] = {}
    for trial in ranked:
        source = pool.column(trial.result.columns[0])
        if not isinstance(source, ColumnSource):
            continue
        start = max((place.stop for place in places.values()), default=0)
        stop = start + source.width()
        if not parts or (source.tokens() == parts[0].tokens() and stop <= SHORTLIST_WIDTH):
            parts.append(source)
            places[source.columns[0]] = slice(start, stop)
    joined = JoinedSource(tuple(parts))
    targets = make_targets(joined, engine.classes, engine.balanced)
    train, valid = (Again(joined.blocks, (split,)) for split in ("train", "valid"))
    steps = forward_selection(train, valid, places, targets, engine.alphas, limit=most)
    return [trial_of("ridge", pool.source("+".join(step.columns)).columns, step.sweep) for step in steps[1:]]


def _finish(best: Trial, source: Source, engine: Engine, task: Task, kept: float) -> tuple[Result, Readout, Evaluation]:
    """Make the chosen readout final: how sure it is from valid, fitted to all but test, and scored on test once."""
    model = best.readout
    # Cross-validation calibrates by itself, and scikit-learn's estimators keep probabilities of their own.
    calibrates = not (isinstance(engine, EstimatorEngine) or (isinstance(engine, RidgeEngine) and engine.folds))
    if task.classes and isinstance(model, LinearReadout) and calibrates:
        model = model.calibrate(source.blocks("valid"))
    if isinstance(engine, RidgeEngine) and isinstance(model, LinearReadout) and engine.refits:
        model = engine.refit(source, model, float(best.result.alpha or 0))
    evaluation = evaluate(model, source.blocks("test"), class_names(task), source.counts("test")).beside(
        task.floor, kept
    )
    return best.result.tested(evaluation), model, evaluation


def _draw(
    folder: Path,
    title: str,
    table: Sequence[Result],
    chosen: Result,
    raw: Result | None,
    points: Sequence[tuple[int, float, float]],
    evaluation: Evaluation,
) -> None:
    columns, settings, scores = score_matrix(table)
    best = columns.index(chosen.title), settings.index(chosen.setting)
    level = raw.valid_score if raw else None
    plot_sweep(folder / "sweep.png", columns, settings, scores, best, level, metric=chosen.metric, title=title)
    if points:
        rows, valid, test = zip(*points, strict=True)
        plot_curve(folder / "curve.png", rows, valid, test, metric=chosen.metric, title=f"{title}, {chosen.title}")
    plot_confusion(folder / "confusion.png", evaluation, title)
