"""Baselines without a reservoir: linear models of the raw input, and of its simple statistics."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from reservoir.plan import RAW
from reservoir.pooling import raw_features
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.tasks.own.texts import are_words, texts_of
from reservoir.tasks.task import Task, Vectors
from reservoir.tasks.windows import Windows
from reservoir_pipelines.fitting.fitters import (
    ColumnFit,
    EstimatorFitter,
    Fitted,
    Fitter,
    LogisticFitter,
    RidgeFitter,
)
from reservoir_pipelines.fitting.sources import InputFeatures, Pool, RawSource
from reservoir_pipelines.output import notify

WINDOW = 9  # tokens of a window, if the reservoir has no windows
MAX_FEATURES = 1000  # k-mers or words, the most frequent ones
MAX_ROWS, MAX_TOKENS = 20_000, 5_000_000  # training rows of statistics, and their tokens
ALPHAS = np.logspace(-1, 4, 6)  # penalties of logistic regression, which is solved for each fold
CHEAP = 4e10  # multiplications that logistic regression may always take: a few seconds
# Cost of the Python calls for an output of four classes, in multiplications: 1,000 outputs took a minute for each fold.
CALLS = 2e8
MIN_ROWS = 1000  # training samples; with fewer, logistic regression would not be a fair baseline


def fit_baselines(pool: Pool, fits: list[ColumnFit], fitter: Fitter) -> list[Fitted]:
    """Return the best readout of each baseline, the raw input first; none if the prepared data was removed."""
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
        if len(fitter.alphas) == 1:  # chosen for the columns
            ridge, known = replace(fitter, alphas=DEFAULT_ALPHAS, widens=True), None
    tried: list[Fitted] = [(known, raw, fitter)] if known else []
    untried: list[tuple[RawSource, Fitter]] = [(raw, ridge)]
    if isinstance(fitter, EstimatorFitter):
        untried.append((raw, fitter))
    if task.classes and not (known and isinstance(fitter, LogisticFitter)):
        untried += _logistic(raw, pool, fitter, fits)
    tried += [(by.fit(source), source, by) for source, by in untried if not (known and by is fitter)]
    lengths = raw.prepared.split("train").lengths[raw.store["train"].index]
    every = math.ceil(max(len(lengths) / MAX_ROWS, lengths.sum() / MAX_TOKENS))
    fewer = _one_of(every, raw)
    statistics = [replace(fewer, name=name, features=made) for name, made in _statistics(fewer)]
    if statistics and every > 1:
        notify(f"{' and '.join(one.name for one in statistics)}: fitted to one in {every} training rows")
    found = [max(tried, key=lambda one: one[0].result.merit)]
    found += [(ridge.fit(source), source, ridge) for source in statistics]
    if not task.classes:  # a readout of a constant feature predicts the mean of the training rows
        each = task.readout_tokens if task.each else 1
        mean = replace(raw, name="the mean", features=lambda x, _: np.ones((len(x), each, 1), np.float32))
        fit = replace(ridge, alphas=np.ones(1), widens=False).fit(mean)
        constant = replace(fit.result, readout="constant", alpha=None)
        found.append((replace(fit, results=(constant,)), mean, ridge))
    return found


def _one_of(every: int, raw: RawSource) -> RawSource:
    """Return the raw input of one in ``every`` training rows."""
    return replace(raw, some={"train": np.arange(0, raw.store["train"].rows, every)}) if every > 1 else raw


def _logistic(
    raw: RawSource, pool: Pool, fitter: Fitter, fits: list[ColumnFit]
) -> list[tuple[RawSource, Fitter]]:
    """Return logistic regression of the raw input, on as many training rows as a quarter of the fit's time allows."""
    (samples, outputs), width, classes = raw.labels("train").shape, raw.width(), fitter.classes

    # moments, principal axes, about a hundred passes, and calls for each output
    def work(every: int) -> float:
        number = samples / every
        axes = min(number, width)
        products = axes * (number * width + 10 * axes**2 + 1000 * number * outputs * classes)
        return (fitter.folds + 1) * (products + CALLS * outputs * max(1, classes / 4))

    widths = [pool.source(fit.result.name).width() for fit in fits]
    most = max(CHEAP, sum(samples * each * min(samples, each) for each in widths) / 4)
    every = next((n for n in range(1, 1 + max(1, samples // MIN_ROWS)) if work(n) <= most), 0)
    if not every:
        notify(f"{raw.name}: only ridge is fitted, because logistic regression takes too long")
        return []
    if every > 1:
        notify(f"{raw.name}: logistic regression is fitted to one in {every} training rows")
    alphas = fitter.alphas if isinstance(fitter, LogisticFitter) and len(fitter.alphas) > 1 else ALPHAS
    by = LogisticFitter(classes=classes, alphas=alphas, balanced=fitter.balanced, folds=fitter.folds)
    return [(_one_of(every, raw), by)]


def _with_windows(raw: RawSource, pool: Pool, task: Task) -> RawSource:
    """Return the raw input in windows of the reservoir's size, around each token that has a label."""
    made = pool.entry.made_with["reservoir"]
    patch = made["patch"] if made["patch"] and made["patch"] > 1 else WINDOW
    dilations = tuple(map(int, str(made["dilations"] or 1).split(",")))
    windows = Windows(patch=patch, dilations=dilations, pad="same")

    def features(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        values = raw_features(task, raw.prepared.scaling, x, lengths)
        return windows(values, np.minimum(lengths, values.shape[1]).astype(np.int64))[0]

    return replace(raw, name=f"{RAW}, windows of {patch}", features=features)


def _statistics(raw: RawSource) -> Iterator[tuple[str, InputFeatures]]:
    """Yield the name and the features of each suitable statistic, learnt from training rows alone."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    task = raw.prepared.task
    if task.each or task.pictures:
        return
    if isinstance(task.form, Vectors):
        yield "summary statistics", _summaries
        return
    letters: dict[str, Any] = {"analyzer": "char", "lowercase": False, "dtype": np.float32}
    made = {
        "composition": TfidfVectorizer(use_idf=False, norm="l1", **letters),
        "k-mer counts": CountVectorizer(ngram_range=(1, 3), max_features=MAX_FEATURES, **letters),
    }
    if are_words(task.alphabet):
        words = r"\w+|[^\w\s]"  # words of one letter and punctuation are included
        made = {
            "tf-idf": TfidfVectorizer(sublinear_tf=True, max_features=MAX_FEATURES, token_pattern=words)
        }
    for name, vectorizer in made.items():
        vectorizer.fit(text for x, lengths in raw.rows("train") for text in _texts(task, x, lengths))
        yield name, partial(_counts, task, vectorizer)


def _texts(task: Task, x: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return sequences as texts; without an alphabet, each symbol becomes a different character."""
    return texts_of(x if task.alphabet else x.astype(np.int64) + ord("A"), lengths)


def _counts(task: Task, vectorizer: Any, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return vectorizer.transform(_texts(task, x, lengths)).toarray().astype(np.float32)


def _summaries(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return mean, deviation, minimum, maximum and slope of each channel of rows, (rows, 5 * channels)."""
    # Values that are missing and masked are NaN.
    real = (np.arange(x.shape[1]) < lengths[:, None])[:, :, None] & np.isfinite(x)
    values = np.where(real, x.astype(np.float64), np.nan)
    time = np.where(real, np.arange(x.shape[1])[:, None], np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a channel may have no values
        found = [function(values, axis=1) for function in (np.nanmean, np.nanstd, np.nanmin, np.nanmax)]
        time -= np.nanmean(time, axis=1, keepdims=True)
    together = np.nansum(time * (values - found[0][:, None]), axis=1)
    slope = together / np.maximum(np.nansum(np.square(time), axis=1), 1)
    return np.nan_to_num(np.concatenate([*found, slope], axis=1)).astype(np.float32)
