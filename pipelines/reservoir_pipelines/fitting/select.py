"""The choice of a readout, which sees train and valid only: candidates race, are fitted and compared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from reservoir.column import Columns
from reservoir.readouts.evaluation import standard_error
from reservoir_pipelines.fitting.baselines import CHEAP
from reservoir_pipelines.fitting.candidates import Candidates
from reservoir_pipelines.fitting.cost import RidgeSize, work_meter
from reservoir_pipelines.fitting.fitter import (
    Choice,
    ColumnFit,
    CurveReadout,
    Fitter,
    add_fit,
    fit_source,
    size_of,
)
from reservoir_pipelines.fitting.folds import held_out_units
from reservoir_pipelines.fitting.pool import Known
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import KNOWN, SomeRows, Source

RACED_ROWS = 2000  # training rows from which a race saves time
RACE_SHARE = 1 / 10  # of the training rows are in the race
MIN_RACE_ROWS, MAX_RACE_ROWS = 600, 5000
RACE_VALID_ROWS = 2000  # most validation rows in the race, if these choose the readout


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What was chosen on train and valid, before any test row is read."""

    fits: list[ColumnFit]
    left_out: tuple[Result, ...]  # the results of columns that a race excluded, best first
    best: Choice  # the best readout of the reservoir
    baselines: list[Choice]
    saved: int  # the number of the readout that is saved among the best and the baselines
    units: np.ndarray  # (n,): the row or the group of each held-out sample
    curve: list[CurveReadout]  # of the columns of the best readout

    @property
    def choices(self) -> list[Choice]:
        """The best readout, then that of each baseline."""
        return [self.best, *self.baselines]


class KnownColumns(Protocol):
    """Columns of rows that may choose a readout: a `Known`, or the arrays of an estimator. None are test rows."""

    def source(self, columns: Columns) -> Source: ...  # noqa: D102
    def raw(self) -> Source | None: ...  # noqa: D102


K = TypeVar("K", bound=KnownColumns)
FitBaselines = Callable[[K, list[ColumnFit], Fitter, bool], list[Choice]]


def select(
    known: K,
    candidates: Candidates,
    fitter: Fitter,
    fit_baselines: FitBaselines[K],
    sizes: Sequence[int] = (),
) -> Selection:
    """Fit all candidates and baselines, and choose one; ``sizes`` are numbers of rows of a learning curve.

    ``fit_baselines`` takes the known columns, the fits of the candidates, the fitter, and whether
    anything can be chosen.
    """
    fits, left_out = fit_columns(known, candidates, fitter)
    # Fits are compared on validation rows, or on the held-out rows of all folds.
    units = held_out_units(known.source(candidates.columns[0]), KNOWN if candidates.folds else ("valid",))
    best_fit = choose_fit(fits, units, candidates.default)
    best = Choice(best_fit, known.source(best_fit.columns), fitter)
    curve = fitter.learning_curve(best.source, sizes) if sizes else []
    work = baseline_work(known, fitter)
    with work_meter("baselines", [work]) as part, part(work):
        baselines = fit_baselines(known, fits, fitter, candidates.chooses)
    # A baseline that is clearly better than the reservoir is saved in its place, if it may be.
    rivals = [baseline.fit for baseline in baselines] if candidates.baseline_may_win else []
    better = better_baseline(best_fit, rivals, units)
    return Selection(
        fits=fits,
        left_out=left_out,
        best=best,
        baselines=baselines,
        saved=0 if better is None else 1 + rivals.index(better),
        units=units,
        curve=curve,
    )


def baseline_work(known: KnownColumns, fitter: Fitter) -> float:
    """Return the estimated multiplications of all baselines."""
    # The raw input is fitted by ridge and perhaps by logistic regression, and statistics of it take less.
    raw = known.raw()
    if raw is None:
        return 0
    return 2 * size_of(raw, fitter).work + (CHEAP if fitter.classes else 0)


def fit_columns(
    known: KnownColumns, candidates: Candidates, fitter: Fitter
) -> tuple[list[ColumnFit], tuple[Result, ...]]:
    """Return the fits of columns to all rows, and the results of the columns that a race excluded, best first."""
    few = _race(known, candidates)
    if few is None:
        return _fit_each("fit", known, candidates.columns, fitter), ()
    # All columns are fitted to some of the rows, and the best third to all rows.
    fits = _fit_each("race", few, candidates.columns, fitter.without_wider_grid())
    ranked = sorted(fits, key=lambda fit: fit.result.sort_key, reverse=True)
    lost = [fit.result for fit in ranked[math.ceil(len(fits) / 3) :]]
    going_on = [
        columns for columns, fit in zip(candidates.columns, fits, strict=True) if fit.result not in lost
    ]
    return _fit_each("fit", known, going_on, fitter), tuple(lost)


def expected_sizes(known: Known, candidates: Candidates, fitter: Fitter) -> list[RidgeSize]:
    """Return the sizes of all fits of candidates and of the raw input; of a race, the widest third goes on."""
    sizes = [size_of(known.source(columns), fitter) for columns in candidates.columns]
    raw = known.raw()
    of_raw = [size_of(raw, fitter)] if raw else []
    few = _race(known, candidates)
    if few is None:
        return sizes + of_raw
    widest = sorted(sizes, key=lambda size: size.work, reverse=True)[: math.ceil(len(sizes) / 3)]
    return [size_of(few.source(columns), fitter) for columns in candidates.columns] + widest + of_raw


def _race(known: KnownColumns, candidates: Candidates) -> Known | None:
    """Return the columns in some rows, for a first fit of all of them; None if it would save no time."""
    # Only cached columns race. Without them, rows are few enough for an estimator.
    if not candidates.races or not isinstance(known, Known):
        return None
    some = _rows_of_race(known, candidates)
    return None if some is None else replace(known, some=some)


def _rows_of_race(known: Known, candidates: Candidates) -> SomeRows | None:
    """Return random rows of each split; None if all rows are few, or a class or group would be missing."""
    train, valid = known.view["train"], known.view["valid"]
    groups = candidates.groups
    if train.rows < RACED_ROWS:
        return None
    size = min(max(round(RACE_SHARE * train.rows), MIN_RACE_ROWS), MAX_RACE_ROWS)
    held_out = (
        round(size * valid.rows / train.rows) if candidates.folds else min(valid.rows, RACE_VALID_ROWS)
    )
    draw = np.random.default_rng(0)
    sizes = {"train": (train.rows, size), "valid": (valid.rows, held_out)}
    some = {split: np.sort(draw.permutation(rows)[:most]) for split, (rows, most) in sizes.items()}
    drawn = np.concatenate([some["train"], train.rows + some["valid"]])
    same_groups = groups is None or len(np.unique(groups)) == len(np.unique(groups[drawn]))
    same_labels = train.labels.dtype.kind == "f" or np.isin(train.labels, train.labels[some["train"]]).all()
    return some if same_groups and same_labels else None


def _fit_each(
    stage: str, known: KnownColumns, candidates: Sequence[Columns], fitter: Fitter
) -> list[ColumnFit]:
    """Fit every column; progress counts multiplications: one wide column may outlast the rest."""
    fits: list[ColumnFit] = []
    sources = [known.source(columns) for columns in candidates]
    works = [size_of(source, fitter).work for source in sources]
    with work_meter(stage, works) as part:
        for source, work in zip(sources, works, strict=True):
            with part(work):
                add_fit(fits, fit_source(fitter, source))
    return fits


def choose_fit(fits: Sequence[ColumnFit], units: np.ndarray, default: Columns | None = None) -> ColumnFit:
    """Return the fit with the best score on held-out samples, or that of a default column unless it is clearly worse.

    ``units`` (n,) is the row or group of each held-out sample.
    """
    best = max(fits, key=lambda fit: fit.result.sort_key)
    first = next((fit for fit in fits if fit.columns == default), None)
    return best if first is None or clearly_better(best, first, units) else first


def better_baseline(
    chosen: ColumnFit, baselines: Sequence[ColumnFit], units: np.ndarray
) -> ColumnFit | None:
    """Return the best baseline that is clearly better than the reservoir's fit; None to save the reservoir."""
    better = [fit for fit in baselines if clearly_better(fit, chosen, units)]
    return max(better, key=lambda fit: fit.result.sort_key) if better else None


def clearly_better(fit: ColumnFit, other: ColumnFit, units: np.ndarray) -> bool:
    """Return whether a fit is better on the same held-out samples by more than a standard error of the difference."""
    if (
        fit.sample_scores is None
        or other.sample_scores is None
        or fit.result.sort_key <= other.result.sort_key
    ):
        return False
    # A column with a sample for each readout token is compared by row with one that has a sample for each row.
    sample_scores = fit.sample_scores(), other.sample_scores()
    samples = min(len(values) for values in sample_scores)
    ours, others = (values.reshape(samples, -1).mean(axis=1) for values in sample_scores)
    differences = ours - others
    return float(differences.mean()) > standard_error(differences, units_of_samples(units, samples))


def units_of_samples(units: np.ndarray, samples: int) -> np.ndarray:
    """Return the unit of each of some samples, of which every row has the same number, from those of other samples."""
    if len(units) >= samples:
        return units.reshape(samples, -1)[:, 0]
    return np.repeat(units, samples // len(units))
