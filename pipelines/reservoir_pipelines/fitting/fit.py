"""The stage ``fit``: every column under every setting of a readout; validation chooses, test is scored once."""

import hashlib
import itertools
import json
import math
import operator
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from reservoir_cache import make_folder

from reservoir import InputError
from reservoir.option_fields import typed
from reservoir.options import DeviceOptions, FitOptions
from reservoir.plan import RAW
from reservoir.readouts.evaluation import Evaluation, Readout, compare, evaluate
from reservoir.readouts.linear import LinearReadout, RereadableBlocks
from reservoir.readouts.ridge import DEFAULT_ALPHAS, Arithmetic, fold_moments, products_on, ridge_path, score
from reservoir.readouts.sweep import Sweep, forward_selection
from reservoir.reservoir import choose_device
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task
from reservoir_pipelines.files import locked, write_checked, write_csv, writing
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.conformal import held_out_scores
from reservoir_pipelines.fitting.fitters import (
    ColumnFit,
    EstimatorFitter,
    Fitter,
    RidgeFitter,
    WeightedFitter,
    column_fit,
    make_fitter,
    score_split,
)
from reservoir_pipelines.fitting.race import race
from reservoir_pipelines.fitting.results import ELSEWHERE, SUMMARY, CurvePoint, Fit, Result, score_matrix, table_lines
from reservoir_pipelines.fitting.sources import (
    ColumnSource,
    Features,
    JoinedSource,
    Pool,
    Source,
    choose_columns,
    groups_of,
    stage_blocks,
)
from reservoir_pipelines.output import meter, notify
from reservoir_pipelines.plots import draw_curve, draw_values, plot, plot_confusion, plot_sweep

GREEDY_WIDTH = 6144
"""Joint width of the columns that greedy selection considers; its moments take memory of the square of that."""

CURVE_DRAWS = 5  # random draws of the rows of a learning curve
FAR_BELOW = 0.2  # a caution is printed if R² on test is lower than on validation rows by this much
FEW_ROWS, FEW_PER_CLASS = 100, 5
"""Smallest number of validation rows, in all and per class, that can tell readouts apart."""


@dataclass(frozen=True, kw_only=True)
class FinalReadout:
    """A chosen readout, fitted to all rows that may be used, with its score on test."""

    result: Result
    readout: Readout
    evaluation: Evaluation
    at_edge: bool
    held_out: Callable[[], np.ndarray]


def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting, and choose one by validation."""
    started = time.monotonic()
    pool = Pool.of(features)
    task, groups = pool.task, groups_of(pool.store)
    rows = {split: pool.store[split].rows for split in ("train", "valid", "test")}
    fitter = make_fitter(options, task.classes, rows, None if groups is None else len(np.unique(groups)))
    folds = fitter.folds if isinstance(fitter, RidgeFitter) else 0
    names, most = choose_columns(pool, options.columns, folds, summed=isinstance(fitter, WeightedFitter))
    sizes = _parse_sizes(options.curve, rows["train"]) if options.curve else ()
    if sizes and not isinstance(fitter, RidgeFitter):
        raise InputError(f"--curve {options.curve}: a learning curve needs ridge readouts, not {options.readout}")
    if most and (not isinstance(fitter, RidgeFitter) or folds):
        raise InputError("--columns best:K needs ridge readouts chosen on valid; join columns by name, as in a+b")
    device = choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    folder = _make_folder(pool, names, most, options)
    for number, store in enumerate(pool.stores if len(pool.stores) > 1 else (), start=1):
        notify(f"{number}: {store.entry.path.name}")
    how = f"{folds}-fold cross-validation{'' if groups is None else ' by group'}" if folds else "valid"
    notify(f"fit {task.name}: {len(names)} columns on {rows['train']:,} rows, chosen by {how}")
    with products_on(Arithmetic(None if device.type == "cpu" else str(device))):
        asked = options.columns != "all" or options.select != "auto"
        names, left_out = (names, ()) if asked else race(pool, names, fitter)
        fits = _fit_columns(pool, names, fitter)
        if most and isinstance(fitter, RidgeFitter):
            fits += _greedy(pool, fits, fitter, most)
        best = max(fits, key=lambda fit: fit.result.merit)
        source = pool.source(best.result.name)
        curve = _learning_curve(source, fitter, sizes) if sizes and isinstance(fitter, RidgeFitter) else ()
        chosen = _finish(best, source, fitter, task)
        baselines = [_finish(*found, task) for found in fit_baselines(pool, fits, fitter)]
    raw, on_reservoir = baselines[0] if baselines else None, chosen.result
    ours = max([fit.result.valid_score for fit in fits if fit.result.columns != (RAW,)], default=math.inf)
    level = tuple(one.result.name for one in baselines if one.result.valid_score >= ours)
    for name in level:
        notify(f"This reservoir adds nothing to {'the raw input' if name == RAW else name}.")
    # A named task is a benchmark of the reservoir. On the user's own data the better of both is saved.
    own = options.columns == "all" and task.name not in TASKS and not task.each
    better = own and raw and raw.result.merit > chosen.result.merit
    kept = raw if raw and better else chosen
    table = tuple(result for fit in fits for result in fit.results)
    _warn(kept, len(table), rows["valid"], folds, task.classes)
    lines = table_lines(table, kept.result, raw and raw.result)
    made = [store.entry.made_with.get("call", {}).get("command") for store in pool.stores]
    commands = [*filter(None, made), typed("fit", [str(store.entry.path) for store in pool.stores], options)]
    with locked(folder):  # so that all files in the folder are of one fit
        write_csv(folder / "results.csv", lines)
        done = Fit(
            entry=pool.entry.path,
            best=kept.result,
            evaluation=kept.evaluation,
            raw=raw and raw.result,
            baselines=tuple(one.result for one in baselines),
            adds_nothing_to=level,
            left_out=left_out,
            p_value=compare(chosen.evaluation, raw.evaluation) if raw else None,
            table=table,
            curve=curve,
            layer_weights=best.layer_weights,
            readout=kept.readout,
            results=folder / "results.csv",
            plot=folder / "sweep.png",
            saved=Bundle.of(pool, kept.readout, kept.result, kept.held_out()).write(folder),
            seconds=round(time.monotonic() - started, 3),
        )
        write_checked(folder / SUMMARY, {**done.to_dict(), "title": kept.result.title, "commands": commands})
        _draw(folder, f"{task.name}, {pool.title}", done, on_reservoir)
    return done


def _parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Return ``100,1000,10000`` as ascending numbers of rows, none larger than ``rows``."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--curve {text}: give numbers of rows, such as 100,1000,10000")
    return tuple(sorted({min(size, rows) for size in sizes}))


def _make_folder(pool: Pool, names: Sequence[str], most: int, options: FitOptions) -> Path:
    """Create the folder of the results; its default name differs between fits of other columns or options."""
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


def _fit_columns(pool: Pool, names: Sequence[str], fitter: Fitter) -> list[ColumnFit]:
    """Fit every column; the progress counts products, because a wide column takes longer than all others."""
    fits: list[ColumnFit] = []
    sources = [pool.source(name) for name in names]
    work = [_products(source, fitter) for source in sources]
    with meter("fit", sum(work), unit="billion products") as bar:
        for source, products in zip(sources, work, strict=True):
            fits.append(fitter.fit(source))
            bar.advance(products)
    return fits


def _products(source: Source, fitter: Fitter) -> int:
    """Return about how many billions of products a fit takes, at least 1."""
    (samples, outputs), width = source.labels("train").shape, source.width()
    size = min(samples, width)  # of the matrix that is reduced, for each fold
    scored = width * outputs * max(1, fitter.classes) * len(DEFAULT_ALPHAS)
    folds = getattr(fitter, "folds", 0)
    return 1 + round((samples * (width * size + scored) + (folds + 1) * size**3) / 1e9)


def _greedy(pool: Pool, fits: Sequence[ColumnFit], fitter: RidgeFitter, most: int) -> list[ColumnFit]:
    """Join columns to the best one as long as the validation score rises; return the fit of each number of columns."""
    parts: list[ColumnSource] = []
    places: dict[str, slice] = {}
    width = 0
    for fit in sorted(fits, key=lambda fit: fit.result.merit, reverse=True):
        source = pool.column(fit.result.columns[0])
        if not isinstance(source, ColumnSource):
            continue
        wider = width + source.width()
        if not parts or (source.tokens() == parts[0].tokens() and wider <= GREEDY_WIDTH):
            parts.append(source)
            places[source.columns[0]], width = slice(width, wider), wider
    joined = JoinedSource(tuple(parts))
    train, valid = (RereadableBlocks(joined.blocks, (split,)) for split in ("train", "valid"))
    steps = forward_selection(train, valid, places, fitter.targets(joined), fitter.alphas, limit=most)
    return [column_fit("ridge", columns, swept) for columns, swept in steps[1:]]


def _learning_curve(source: Source, fitter: RidgeFitter, sizes: Sequence[int]) -> tuple[CurvePoint, ...]:
    """Return the scores of growing numbers of training rows, each over `CURVE_DRAWS` stratified draws.

    In a draw each size takes its rows from the next larger one, and has its own penalty, chosen on valid. One pass over
    the rows gives the moments of each stage, whose running sums are the moments of every size.
    """
    targets, emphasis = fitter.targets(source), source.emphasis
    scores: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    with meter("learning curve", CURVE_DRAWS, unit="draws") as bar:
        for draw in range(CURVE_DRAWS):
            blocks = stage_blocks(source, np.asarray(sizes), fitter.classes, draw)
            stages = fold_moments(blocks, targets, len(sizes))
            for size, moments in zip(sizes, itertools.accumulate(stages, operator.add), strict=True):
                path = ridge_path(moments, fitter.alphas, emphasis=emphasis)
                swept = Sweep(path, score(path, source.blocks("valid"), targets))
                test = score_split(swept.readout(), source, "test")
                scores[size].append((float(swept.accuracy[swept.best]), test))
            bar.advance(1)
    return tuple(CurvePoint.of(size, found) for size, found in scores.items())


def _finish(best: ColumnFit, source: Source, fitter: Fitter, task: Task) -> FinalReadout:
    """Calibrate a chosen readout on valid, fit it to train and valid, and score it on test."""
    readout = best.readout
    held_out = partial(held_out_scores, readout, source, fitter, best.result.alpha)
    if isinstance(readout, LinearReadout):
        # Cross-validation calibrates by itself, and scikit-learn's estimators keep probabilities of their own.
        calibrated = isinstance(fitter, EstimatorFitter) or fitter.folds
        if task.classes and not calibrated:
            readout = readout.calibrate(source.blocks("valid"))
            held_out = partial(held_out_scores, readout, source, fitter, best.result.alpha)
        if isinstance(fitter, RidgeFitter) and fitter.refits:
            readout = fitter.refit(source, readout, float(best.result.alpha or 1))
    names = [str(task.label(number)) for number in range(task.classes)]
    kept = source.store.entry.made_with.get("kept", {}).get("test", 1.0)
    found = evaluate(readout, source.blocks("test"), names, source.counts("test")).with_baseline(task.floor, kept)
    metric = best.result.metric
    interval = None if metric == "balanced_accuracy" else found.interval  # of the accuracy, or of R²
    result = replace(best.result, test_score=found.scores[metric], test_interval=interval)
    return FinalReadout(result=result, readout=readout, evaluation=found, at_edge=best.at_edge, held_out=held_out)


def _warn(chosen: FinalReadout, readouts: int, valid: int, folds: int, classes: int) -> None:
    result = chosen.result
    if result.metric == "R²" and result.test_score is not None:
        score, rows = f"R² {result.test_score:.3f}", f"{len(chosen.evaluation.merits):,} test rows"
        if result.test_score < 0:
            notify(f"CAUTION: {score} on {rows} is worse than predicting the mean; give more rows, or do not use it")
        elif result.valid_score - result.test_score > FAR_BELOW:
            notify(f"CAUTION: {score} on {rows} is far below {result.valid_score:.3f} on validation rows")
    if chosen.at_edge:
        title, alpha = chosen.result.title, chosen.result.alpha
        notify(f"{title}: penalty {alpha:g}, an end of the grid, scores best; --alphas LO:HI:N tries others")
    if not folds and readouts > 1 and valid < max(FEW_ROWS, FEW_PER_CLASS * classes):
        notify(
            f"CAUTION: {valid} validation rows are too few to choose among {readouts:,} readouts; choose by "
            "cross-validation (--select cv5), or give more validation rows"
        )


def _draw(folder: Path, title: str, done: Fit, on_reservoir: Result) -> None:
    """Draw the scores of all readouts, the learning curve, and the confusion."""
    columns, settings, scores = score_matrix(done.table)
    place = columns.index(on_reservoir.title), settings.index(on_reservoir.setting)
    level, metric = done.raw.valid_score if done.raw else None, done.best.metric
    plot_sweep(folder / "sweep.png", columns, settings, scores, place, level, metric=metric, title=title)
    if done.curve:
        curve = [point._asdict() for point in done.curve]
        plot(folder / "curve.png", (6, 4.2), f"{title}, {on_reservoir.title}", draw_curve, curve, metric)
    plot_confusion(folder / "confusion.png", done.evaluation, title)
    if not done.evaluation.classes:
        heading = f"{title}: test, R² {done.evaluation.scores['R²']:.3f}"
        plot(folder / "predicted.png", (5, 5), heading, draw_values, done.evaluation.values)
