"""Baselines without a reservoir: linear models of the raw input, and of its simple statistics."""

from dataclasses import replace

import numpy as np

from reservoir.plan import RAW
from reservoir.pooling import raw_features
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.tasks.task import Task
from reservoir.tasks.windows import Windows
from reservoir_pipelines.fitting.fitters import (
    ColumnFit,
    EstimatorFitter,
    Fitted,
    Fitter,
    LogisticFitter,
    RidgeFitter,
    fit_source,
)
from reservoir_pipelines.fitting.sources import Pool, RawSource
from reservoir_pipelines.fitting.statistics import learn_statistics
from reservoir_pipelines.output import notify

WINDOW = 9  # tokens of a window, if the reservoir has no windows
ALPHAS = np.logspace(-1, 4, 6)  # penalties of logistic regression, which is solved for each fold
CHEAP = 4e10  # multiplications that logistic regression may always take: a few seconds
# Cost of the Python calls for an output of four classes, in multiplications: 1,000 outputs took a minute for each fold.
CALLS = 2e8
MIN_ROWS = 1000  # training samples; with fewer, logistic regression would not be a fair baseline


def fit_baselines(
    pool: Pool, fits: list[ColumnFit], fitter: Fitter, *, chooses: bool = True
) -> list[Fitted]:
    """Return the best readout of each baseline, the raw input first; none if the prepared data was removed.

    Baselines have the rows, the folds and the repeats of the ``fits`` of columns. Without ``chooses``, they
    have one fixed penalty too.
    """
    raw = pool.raw()
    if raw is None:
        notify("baselines: skipped, because the prepared data was removed; run reservoir prepare")
        return []
    task = raw.prepared.task
    known = next((fit for fit in fits if fit.result.columns == (RAW,)), None)
    if task.each:
        raw, known = _with_windows(raw, pool, task), None
    ridge = RidgeFitter(classes=task.classes, alphas=DEFAULT_ALPHAS, balanced=fitter.balanced)
    if isinstance(fitter, RidgeFitter):
        ridge = fitter
        if len(fitter.alphas) == 1 and chooses:  # chosen for the columns
            ridge, known = replace(fitter, alphas=DEFAULT_ALPHAS, widens=True), None
    tried: list[Fitted] = [(known, raw, fitter)] if known else []
    untried: list[tuple[RawSource, Fitter]] = [(raw, ridge)]
    if isinstance(fitter, EstimatorFitter):
        untried.append((raw, fitter))
    if task.classes and chooses and not (known and isinstance(fitter, LogisticFitter)):
        untried += _logistic(raw, pool, fitter, fits)
    tried += [
        (fit_source(by, source), source, by) for source, by in untried if not (known and by is fitter)
    ]
    found = [max(tried, key=lambda one: one[0].result.merit)]
    for statistic in learn_statistics(task, lambda: raw.rows("train")):
        source = replace(raw, name=statistic.name, features=statistic)
        found.append((fit_source(ridge, source), source, ridge))
    if not task.classes:
        found.append(_mean(raw, ridge))
    return found


def _naming_rows(fit: ColumnFit, source: RawSource) -> ColumnFit:
    """Return a fit that names its training rows beside its readout, if they are not all."""
    if not source.some:
        return fit
    rows = f"on {len(source.some['train']):,} of {source.store['train'].rows:,} training rows"
    return replace(fit, results=tuple(replace(one, readout=f"{one.readout} {rows}") for one in fit.results))


def _mean(raw: RawSource, ridge: RidgeFitter) -> Fitted:
    """Return the readout of a constant feature, which predicts the mean of the training rows."""
    task = raw.prepared.task
    each = task.readout_tokens if task.each else 1
    mean = replace(raw, name="the mean", features=lambda x, _: np.ones((len(x), each, 1), np.float32))
    fit = fit_source(replace(ridge, alphas=np.ones(1), widens=False), mean)
    return replace(fit, results=(replace(fit.result, readout="constant", alpha=None),)), mean, ridge


def _logistic(
    raw: RawSource, pool: Pool, fitter: Fitter, fits: list[ColumnFit]
) -> list[tuple[RawSource, Fitter]]:
    """Return logistic regression of the raw input, on as many training rows as a quarter of the fit's time allows."""
    (samples, outputs), width, classes = raw.labels("train").shape, raw.width(), fitter.classes
    folds, repeats = fitter.folds, fitter.repeats

    # moments, principal axes, about a hundred passes, and calls for each output
    def work(every: int) -> float:
        number = samples / every
        axes = min(number, width)
        products = axes * (number * width + 10 * axes**2 + 1000 * number * outputs * classes)
        return (folds * repeats + 1) * (products + CALLS * outputs * max(1, classes / 4))

    widths = [pool.source(fit.result.name).width() for fit in fits]
    most = max(CHEAP, sum(samples * each * min(samples, each) for each in widths) / 4)
    every = next((n for n in range(1, 1 + max(1, samples // MIN_ROWS)) if work(n) <= most), 0)
    if not every:
        notify(f"{raw.name}: only ridge is fitted, because logistic regression takes too long")
        return []
    alphas = fitter.alphas if isinstance(fitter, LogisticFitter) and len(fitter.alphas) > 1 else ALPHAS
    refits = isinstance(fitter, RidgeFitter) and fitter.refits
    shared = {"classes": classes, "balanced": fitter.balanced, "folds": folds, "repeats": repeats}
    by = LogisticFitter(alphas=alphas, refits=refits, **shared)
    some = {"train": np.arange(0, raw.store["train"].rows, every)} if every > 1 else raw.some
    return [(replace(raw, some=some), by)]


def _with_windows(raw: RawSource, pool: Pool, task: Task) -> RawSource:
    """Return the raw input in windows of the reservoir's size, around each token that has a label."""
    cut = pool.entry.spec.input  # imported features have it, too
    patch = cut["patch"] if cut["patch"] > 1 else WINDOW
    windows = Windows(patch=patch, dilations=tuple(cut.get("dilations", (1,))), pad="same")

    def features(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        values = raw_features(task, raw.prepared.scaling, x, lengths)
        return windows(values, np.minimum(lengths, values.shape[1]).astype(np.int64))[0]

    return replace(raw, name=f"{RAW}, windows of {patch}", features=features)
