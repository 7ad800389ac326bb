"""Fit columns, with an optional race: all columns are fitted to some of the rows, and the best third to all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir_pipelines.fitting.fitters import ColumnFit, EstimatorFitter, Fitter, add_fit
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import Pool, Source, Tried
from reservoir_pipelines.output import meter, notify


def fit_columns(pool: Pool, tried: Tried, fitter: Fitter) -> tuple[list[ColumnFit], tuple[Result, ...]]:
    """Return the fits of columns to all rows, and the results of the columns that a race excluded, best first."""
    names, left_out = tried.columns, ()
    if tried.raced is not None:
        quick = fitter if isinstance(fitter, EstimatorFitter) else replace(fitter, widens=False)
        fits = _fit_each("race", replace(pool, some=tried.raced), names, quick)
        ranked = sorted(zip(names, fits, strict=True), key=lambda one: one[1].result.merit, reverse=True)
        most = math.ceil(len(names) / 3)
        going_on = {name for name, _ in ranked[:most]}
        rows = len(tried.raced["train"])
        notify(f"race: the best {most} of {len(names)} columns on {rows:,} training rows are fitted to all rows")
        left_out = tuple(fit.result for _, fit in ranked[most:])
        names = tuple(name for name in names if name in going_on)
    return _fit_each("fit", pool, names, fitter), left_out


def _fit_each(stage: str, pool: Pool, names: Sequence[str], fitter: Fitter) -> list[ColumnFit]:
    """Fit every column; progress is shown in multiplications, because one wide column may take longer than the rest."""
    fits: list[ColumnFit] = []
    sources = [pool.source(name) for name in names]
    work = [_products(source, fitter) for source in sources]
    with meter(stage, sum(work), unit="billion multiplications") as bar:
        for source, products in zip(sources, work, strict=True):
            add_fit(fits, fitter.fit(source))
            bar.advance(products)
    return fits


def _products(source: Source, fitter: Fitter) -> int:
    """Return the estimated multiplications of a fit in billions, at least 1."""
    (samples, outputs), width = source.labels("train").shape, source.width()
    size = min(samples, width)  # the matrix that is decomposed for each fold is size x size
    scored = width * outputs * max(1, fitter.classes) * len(DEFAULT_ALPHAS)
    return 1 + round((samples * (width * size + scored) + (fitter.folds + 1) * size**3) / 1e9)
