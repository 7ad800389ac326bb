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
from reservoir_pipelines.fitting.source import KnownSource


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What was chosen on train and valid, before any test row is read."""

    fits: list[ColumnFit]  # of all candidates that were fitted to all rows
    left_out: tuple[Result, ...]  # the results of columns that a race excluded, best first
    best: Choice  # the best readout of the reservoir
    baselines: list[Choice]
    saved: int  # the index in `choices` of the readout that is saved
    # Standard error of the validation score of the saved readout; None if the scores of single samples are not known.
    valid_error: float | None
    # The readouts of the learning curve, of the columns of the best readout; empty if no curve is requested.
    curve: list[CurveReadout]
    # The best readout of each layer, without its model, and a fitter of its setting alone; empty for fewer than two
    # layers, which cannot be compared.
    layers: dict[str, Choice]

    @property
    def choices(self) -> list[Choice]:
        """The best readout, then that of each baseline."""
        return [self.best, *self.baselines]


class KnownColumns(Protocol):
    """Columns of rows that may choose a readout: a `Known`, or the arrays of an estimator. None are test rows."""

    def source(self, columns: Columns) -> KnownSource: ...  # noqa: D102
    def raw(self) -> KnownSource | None: ...  # noqa: D102


ROUNDING = 1e-9
"""The share of a standard error by which a mean may exceed it through rounding alone."""

K = TypeVar("K", bound=KnownColumns)
# A function of the known columns, the fits of the candidates, the fitter, and whether anything can be chosen (see
# `Candidates.chooses`), which returns the best readout of each baseline.
FitBaselines = Callable[[K, list[ColumnFit], Fitter, bool], list[Choice]]


def select(
    known: K,
    candidates: Candidates,
    fit_baselines: FitBaselines[K],
) -> Selection:
    """Fit all candidates and baselines, and choose one."""
    # Fit all columns, and choose the best readout of the reservoir by its scores on held-out samples. The rule compares
    # units, such as groups of rows, because rows of one unit are no independent evidence.
    fitter = candidates.fitter
    fits, left_out = fit_columns(known, candidates)
    units = fitter.units(known.source(candidates.columns[0]))
    rule = fitter.wins_most_folds if isinstance(fitter, ForecastFitter) else clearly_better
    best_fit = choose_fit(fits, units, candidates.default, rule)
    best = Choice(best_fit, known.source(best_fit.columns), fitter)
    # Fit the best columns again to fewer rows.
    sizes = candidates.curve_sizes
    curve = fitter.learning_curve(best.source, sizes) if sizes else []
    # Fit baselines to the same rows as the columns. The progress is one line for all of them.
    work = baseline_work(known, fitter)
    with work_meter("baselines", [work]) as counting, counting(work):
        baselines = fit_baselines(known, fits, fitter, candidates.chooses)
    # A baseline that is clearly better than the reservoir is saved in its place, if it may be.
    rivals = [baseline.fit for baseline in baselines] if candidates.baseline_may_win else []
    better = better_baseline(best_fit, rivals, units)
    if better is None:
        saved_fit, saved = best_fit, 0  # the first of `Selection.choices`
    else:
        saved_fit, saved = better, 1 + rivals.index(better)
    # The layers are only shown, so their best readouts are kept without their models, and fitted again at the end.
    layers = {
        layer: Choice(fit.without_model(), known.source(fit.columns), fitter.with_setting_of(fit))
        for layer, fit in best_of_layers(fits).items()
    }
    return Selection(
        fits=fits,
        left_out=left_out,
        best=best,
        baselines=baselines,
        saved=saved,
        valid_error=_valid_error(saved_fit, units, has_classes=bool(fitter.classes)),
        curve=curve,
        layers=layers,
    )


def baseline_work(known: KnownColumns, fitter: Fitter) -> float:
    """Return the estimated multiplications of all baselines; 0 without the raw input, from which they are computed."""
    raw = known.raw()
    if raw is None:
        return 0
    # The raw input is fitted by ridge, and statistics of it together take no longer. For classes, it is also fitted by
    # logistic regression, which may always take `CHEAP`.
    return 2 * ridge_size(raw, fitter).work + (CHEAP if fitter.classes else 0)


def fit_columns(known: KnownColumns, candidates: Candidates) -> tuple[list[ColumnFit], tuple[Result, ...]]:
    """Return the fits of columns to all rows, and the results of the columns that a race excluded, best first."""
    fitter = candidates.fitter
    if candidates.race is None:
        return _fit_each("fit", known, candidates.columns, fitter), ()
    # The race: all columns are fitted to some of the rows. The fit that would be chosen after it (the default, unless
    # another is clearly better) and the most accurate others, together a third, are fitted to all rows.
    race_fitter = fitter.without_wider_grid()
    fits = _fit_each("race", candidates.race, candidates.columns, race_fitter)
    units = race_fitter.units(candidates.race.source(candidates.columns[0]))
    winner = choose_fit(fits, units, candidates.default)
    ranked = sorted(fits, key=lambda fit: (fit is winner, fit.result.sort_key), reverse=True)
    excluded = [fit.result for fit in ranked[math.ceil(len(fits) / 3) :]]
    # The remaining columns keep their order, because the first may be the default.
    remaining = [
        columns for columns, fit in zip(candidates.columns, fits, strict=True) if fit.result not in excluded
    ]
    return _fit_each("fit", known, remaining, fitter), tuple(excluded)


def _fit_each(
    title: str,
    known: KnownColumns,
    candidates: Sequence[Columns],
    fitter: Fitter,
) -> list[ColumnFit]:
    """Return the fit of each candidate, few of them with their models (see `add_fit`).

    The line of progress has a ``title``. It counts multiplications, because one wide column may outlast all others.
    """
    fits: list[ColumnFit] = []
    sources = [known.source(columns) for columns in candidates]
    works = [size_of(source, fitter).work for source in sources]
    with work_meter(title, works) as counting:
        for source, work in zip(sources, works, strict=True):
            with counting(work):
                add_fit(fits, fit_source(fitter, source))
    return fits


def choose_fit(
    fits: Sequence[ColumnFit],
    units: np.ndarray,
    default: Columns | None = None,
    rule: Callable[[ColumnFit, ColumnFit, np.ndarray], bool] | None = None,
) -> ColumnFit:
    """Return the fit of the default columns, unless the fit with the best score on held-out samples is clearly better.

    Without default columns among the ``fits``, return the best. ``units`` (n,) is the row or group of each held-out
    sample. The ``rule`` says whether the first of two fits is clearly better; it is `clearly_better` by default.
    """
    best = max(fits, key=lambda fit: fit.result.sort_key)
    default_fit = next((fit for fit in fits if fit.columns == default), None)
    if default_fit is None:
        return best
    is_clearly_better = rule or clearly_better
    return best if is_clearly_better(best, default_fit, units) else default_fit


def better_baseline(
    chosen: ColumnFit, baselines: Sequence[ColumnFit], units: np.ndarray
) -> ColumnFit | None:
    """Return the best of the ``baselines`` that are clearly better than the ``chosen`` fit; None if none is."""
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
    means = scores.reshape(samples, -1).mean(axis=1)
    other_means = other_scores.reshape(samples, -1).mean(axis=1)
    differences = means - other_means
    error = standard_error(differences, _units_of_samples(units, samples))
    # If a single row differs, the mean and its standard error are equal, and must not differ by rounding.
    return float(differences.mean()) > error * (1 + ROUNDING)


def best_of_layers(fits: Sequence[ColumnFit]) -> dict[str, ColumnFit]:
    """Return the fit with the best validation score among the columns of each layer, in the order of the layers.

    Columns of several layers belong to none. Fewer than two layers cannot be compared, so the result is then empty.
    """
    best: dict[str, ColumnFit] = {}
    for fit in fits:
        layer = common_place(fit.columns)  # None if the columns are of several layers
        if layer is not None and fit.columns != (RAW,):
            best[layer] = max(best.get(layer, fit), fit, key=lambda candidate: candidate.result.sort_key)
    if len(best) < 2:
        return {}
    return {layer: best[layer] for layer in layers_first_to_last(best)}


def _valid_error(fit: ColumnFit, units: np.ndarray, *, has_classes: bool) -> float | None:
    """Return the standard error of a fit's validation score; None if the scores of single samples are not known."""
    if fit.sample_scores is None:
        return None
    sample_scores = fit.sample_scores()
    units_of_samples = _units_of_samples(units, len(sample_scores))
    error = standard_error(sample_scores, units_of_samples)
    if not has_classes:
        return error
    # The error is 0 if every row is right, but no accuracy is known better than to one row or group.
    return max(error, 1 / len(np.unique(units_of_samples)))


def _units_of_samples(units: np.ndarray, samples: int) -> np.ndarray:
    """Return the unit of each sample of a column, (samples,), from the units (n,) of another column's samples.

    ``samples`` is a number. All rows have the same number of samples in one column, but columns may differ in it.
    """
    if len(units) >= samples:
        # One sample of this column stands for one or several neighbouring ones of the other. These are of one row, so
        # the first of them has its unit.
        return units.reshape(samples, -1)[:, 0]
    return np.repeat(units, samples // len(units))
