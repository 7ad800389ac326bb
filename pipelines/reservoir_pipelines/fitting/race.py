"""The fits of columns, after a race: all columns are fitted to some of the rows, the best third to all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir_pipelines.fitting.fitters import ColumnFit, EstimatorFitter, Fitter
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import Pool, SomeRows, Source, groups_of
from reservoir_pipelines.output import meter, notify

RACED_ROWS = 2000  # training rows from which a race saves time
FEWEST_CANDIDATES = 4
SHARE, FEWEST, MOST = 1 / 10, 600, 5000  # share of the training rows in the race, and its limits in rows
VALID = 2000  # validation rows, if these choose the readout


def race(pool: Pool, names: Sequence[str], fitter: Fitter) -> tuple[tuple[str, ...], tuple[Result, ...]]:
    """Return the candidates that go on to all rows, and the best result of each of the others, best first.

    The race chooses readouts as a fit to all rows does: by cross-validation, or on validation rows. All candidates go
    on if there are few candidates or few rows, or if some of the rows lack a class or a group that all have.
    """
    some = _rows_of_race(pool, fitter.folds) if len(names) >= FEWEST_CANDIDATES else None
    if some is None:
        return tuple(names), ()
    quick = fitter if isinstance(fitter, EstimatorFitter) else replace(fitter, widens=False)
    fits: dict[str, ColumnFit] = {}
    sampled = replace(pool, some=some)
    sources = [sampled.source(name) for name in names]
    with meter("race", len(names), unit="columns") as bar:
        for name, source in zip(names, sources, strict=True):
            fits[name] = quick.fit(source)
            bar.advance(1)
    ranked = sorted(names, key=lambda name: fits[name].result.merit, reverse=True)
    most = math.ceil(len(names) / 3)
    going_on = ranked[:most]
    rows = len(some["train"])
    notify(f"race: {most} of {len(names)} columns go on to all rows, the best on {rows:,} training rows")
    left_out = tuple(fits[name].result for name in ranked[most:])
    return tuple(name for name in names if name in going_on), left_out


def _rows_of_race(pool: Pool, folds: int) -> SomeRows | None:
    """Return the rows of train and valid that a race reads, drawn by a fixed seed; None if it would save nothing."""
    train, valid = pool.store["train"], pool.store["valid"]
    if train.rows < RACED_ROWS:
        return None
    size = min(max(round(SHARE * train.rows), FEWEST), MOST)
    judges = round(size * valid.rows / train.rows) if folds else min(valid.rows, VALID)
    draw = np.random.default_rng(0)
    sizes = {"train": (train.rows, size), "valid": (valid.rows, judges)}
    some = {split: np.sort(draw.permutation(rows)[:most]) for split, (rows, most) in sizes.items()}
    groups, found = groups_of(pool.store), groups_of(pool.store, some)
    same_groups = groups is None or found is None or len(np.unique(groups)) == len(np.unique(found))
    same_labels = train.labels.dtype.kind == "f" or np.isin(train.labels, train.labels[some["train"]]).all()
    return some if same_groups and same_labels else None


def fit_columns(pool: Pool, names: Sequence[str], fitter: Fitter) -> list[ColumnFit]:
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
    return 1 + round((samples * (width * size + scored) + (fitter.folds + 1) * size**3) / 1e9)
