"""The choice of a readout, which sees train and valid only: candidates race, are fitted and compared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from reservoir.column import RAW, Columns, common_place, layers_first_to_last
from reservoir.readouts.evaluation import standard_error
from reservoir_pipelines.fitting.baselines import CHEAP
from reservoir_pipelines.fitting.candidates import Candidates
from reservoir_pipelines.fitting.cost import ridge_size, size_of, work_meter
from reservoir_pipelines.fitting.fitter import (
    Choice,
    ColumnFit,
    CurveReadout,
    Fitter,
    add_fit,
    fit_source,
)
from reservoir_pipelines.fitting.forecast_fitter import ForecastFitter
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import Source


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What was chosen on train and valid, before any test row is read."""

    fits: list[ColumnFit]
    left_out: tuple[Result, ...]  # the results of columns that a race excluded, best first
    best: Choice  # the best readout of the reservoir
    baselines: list[Choice]
    saved: int  # the number of the readout that is saved among the best and the baselines
    valid_error: float | None  # standard error of the validation score of the saved readout
    curve: list[CurveReadout]  # of the columns of the best readout
    # The best readout of each layer, without its model, and a fitter of its setting alone; none for fewer than two.
    layers: dict[str, Choice]

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
    fit_baselines: FitBaselines[K],
) -> Selection:
    """Fit all candidates and baselines, and choose one.

    ``fit_baselines`` takes the known columns, the fits of the candidates, the fitter, and whether
    anything can be chosen.
    """
    # Fit all columns, and choose the best readout of the reservoir by its scores on held-out samples.
    fitter = candidates.fitter
    fits, left_out = fit_columns(known, candidates)
    units = fitter.units(known.source(candidates.columns[0]))
    rule = fitter.wins_most_folds if isinstance(fitter, ForecastFitter) else clearly_better
    best_fit = choose_fit(fits, units, candidates.default, rule)
    best = Choice(best_fit, known.source(best_fit.columns), fitter)
    # Fit the best columns again to fewer rows, and baselines to the same rows as the columns.
    sizes = candidates.curve_sizes
    curve = fitter.learning_curve(best.source, sizes) if sizes else []
    work = baseline_work(known, fitter)
    with work_meter("baselines", [work]) as part, part(work):
        baselines = fit_baselines(known, fits, fitter, candidates.chooses)
    # A baseline that is clearly better than the reservoir is saved in its place, if it may be.
    rivals = [baseline.fit for baseline in baselines] if candidates.baseline_may_win else []
    better = better_baseline(best_fit, rivals, units)
    saved_fit = better or best_fit
    return Selection(
        fits=fits,
        left_out=left_out,
        best=best,
        baselines=baselines,
        saved=0 if better is None else 1 + rivals.index(better),  # 0 is the best of the reservoir
        valid_error=_valid_error(saved_fit, units),
        curve=curve,
        layers={
            layer: Choice(fit.without_model(), known.source(fit.columns), fitter.with_setting_of(fit))
            for layer, fit in best_of_layers(fits).items()
        },
    )


def baseline_work(known: KnownColumns, fitter: Fitter) -> float:
    """Return the estimated multiplications of all baselines."""
    # The raw input is fitted by ridge and perhaps by logistic regression, and statistics of it take less.
    raw = known.raw()
    if raw is None:
        return 0
    return 2 * ridge_size(raw, fitter).work + (CHEAP if fitter.classes else 0)


def fit_columns(known: KnownColumns, candidates: Candidates) -> tuple[list[ColumnFit], tuple[Result, ...]]:
    """Return the fits of columns to all rows, and the results of the columns that a race excluded, best first."""
    fitter = candidates.fitter
    if candidates.race is None:
        return _fit_each("fit", known, candidates.columns, fitter), ()
    # All columns are fitted to some of the rows, and the best third to all rows. The one that would be chosen after the
    # race is the default, unless another is clearly better.
    raced = fitter.without_wider_grid()
    fits = _fit_each("race", candidates.race, candidates.columns, raced)
    units = raced.units(candidates.race.source(candidates.columns[0]))
    first = choose_fit(fits, units, candidates.default)
    ranked = sorted(fits, key=lambda fit: (fit is first, fit.result.sort_key), reverse=True)
    excluded = [fit.result for fit in ranked[math.ceil(len(fits) / 3) :]]
    remaining = [
        columns for columns, fit in zip(candidates.columns, fits, strict=True) if fit.result not in excluded
    ]
    return _fit_each("fit", known, remaining, fitter), tuple(excluded)


def _fit_each(
    stage: str,
    known: KnownColumns,
    candidates: Sequence[Columns],
    fitter: Fitter,
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


def choose_fit(
    fits: Sequence[ColumnFit],
    units: np.ndarray,
    default: Columns | None = None,
    rule: Callable[[ColumnFit, ColumnFit, np.ndarray], bool] | None = None,
) -> ColumnFit:
    """Return the fit with the best score on held-out samples, or that of a default column unless it is clearly worse.

    ``units`` (n,) is the row or group of each held-out sample. The ``rule`` says whether the first of two
    fits is clearly better; it is `clearly_better` by default.
    """
    best = max(fits, key=lambda fit: fit.result.sort_key)
    default_fit = next((fit for fit in fits if fit.columns == default), None)
    if default_fit is None or (rule or clearly_better)(best, default_fit, units):
        return best
    return default_fit


def better_baseline(
    chosen: ColumnFit, baselines: Sequence[ColumnFit], units: np.ndarray
) -> ColumnFit | None:
    """Return the best baseline that is clearly better than the reservoir's fit; None to save the reservoir."""
    better = [fit for fit in baselines if clearly_better(fit, chosen, units)]
    return max(better, key=lambda fit: fit.result.sort_key) if better else None


def clearly_better(fit: ColumnFit, other: ColumnFit, units: np.ndarray) -> bool:
    """Return whether a fit is better than another on the same held-out rows, by more than a standard error.

    The standard error is that of the difference of their scores. ``units`` (n,) is the row or group of each
    held-out sample: the samples of a unit are not independent.
    """
    if fit.sample_scores is None or other.sample_scores is None:
        return False  # there is no evidence
    if fit.result.sort_key <= other.result.sort_key:
        return False
    # One column may have a sample for each readout token, and the other a sample for each row. The mean score of the
    # samples of a row is then compared.
    scores, other_scores = fit.sample_scores(), other.sample_scores()
    samples = min(len(scores), len(other_scores))
    means, other_means = (of_fit.reshape(samples, -1).mean(axis=1) for of_fit in (scores, other_scores))
    differences = means - other_means
    return float(differences.mean()) > standard_error(differences, _units_of_samples(units, samples))


def best_of_layers(fits: Sequence[ColumnFit]) -> dict[str, ColumnFit]:
    """Return the fit with the best validation score among the columns of each layer, in the order of the layers.

    Columns of several layers belong to none. Fewer than two layers cannot be compared, so there is none.
    """
    best: dict[str, ColumnFit] = {}
    for fit in fits:
        layer = common_place(fit.columns)
        if layer is not None and fit.columns != (RAW,):
            best[layer] = max(best.get(layer, fit), fit, key=lambda candidate: candidate.result.sort_key)
    return {layer: best[layer] for layer in layers_first_to_last(best)} if len(best) > 1 else {}


def _valid_error(fit: ColumnFit, units: np.ndarray) -> float | None:
    """Return the standard error of a fit's validation score; None if the scores of single samples are not known."""
    if fit.sample_scores is None:
        return None
    sample_scores = fit.sample_scores()
    return standard_error(sample_scores, _units_of_samples(units, len(sample_scores)))


def _units_of_samples(units: np.ndarray, samples: int) -> np.ndarray:
    """Return the unit of each of a column's ``samples``, (samples,), from the units (n,) of another column's samples.

    Every row has the same number of samples in one column, but columns may differ in this number.
    """
    if len(units) >= samples:
        # Several of the other samples stand for one of these. They are of one row, so the first has its unit.
        return units.reshape(samples, -1)[:, 0]
    return np.repeat(units, samples // len(units))
