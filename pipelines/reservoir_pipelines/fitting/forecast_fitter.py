"""Ridge readouts of forecasts: chosen by their scores on later windows, then fitted to all windows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reservoir.column import RAW, Baseline, Columns, names_of
from reservoir.readouts.linear import Block, LinearReadout, RereadableBlocks, Tally, Targets
from reservoir.readouts.sweep import Sweep
from reservoir.readouts.time_sweep import LastValue, TimeFold, time_sweep
from reservoir.tasks.task import Vectors
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, all_blocks
from reservoir_pipelines.fitting.folds import time_folds
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    JoinedSource,
    KnownSource,
    KnownSplit,
    RawSource,
    in_memory_if_small,
)
from reservoir_pipelines.fitting.statistics import KNOWN_PAST, Statistic

# Names of readouts:
CHANGES = "ridge of changes"  # the readout of the changes from the last value
# The readout that forecasts the mean of ridge and ridge of changes: where the two differ, their errors partly cancel.
# On the training parts of 60 generated and 6 economic, weather and solar forecasts, with later windows to judge, a
# choice among the three had errors of 0.978 times those of ridge by leave-one-out, at worst 1.03 times; a choice among
# the first two 0.984 and 1.07 times.
MEAN_OF_RIDGES = "mean of both ridges"
LAST_VALUE = "the last value"
# The readout that adds to the forecasts of the raw past a share of what the hidden state changes in them. A forecast
# between those of two models can have smaller errors than either, if they err differently.
WEIGHTED = "weighted with raw"
# Share of the folds in which the weighted forecasts must be better than those of the raw past: few large errors, as in
# a crisis, move a standard error. On 124 forecasts of generated, UCR and economic series, errors were 0.845 times those
# of one ridge of the raw past (geometric mean, ratios limited to 0.61 to 1.65), and 6 were more than 2% larger. Without
# weights, and in 0.8 of the folds, they were 0.849 times as large, and 13 were more than 2% larger.
FOLDS_WON = 0.6
# A period is as good as a multiple whose squared error is at most this factor smaller. Of a sine with noise in 300 to
# 2,000 steps, the error of the period was at most 1.21 times that of the best multiple in nine of ten draws.
ALIKE = 1.2
# A period is plain if the squared error of its repetition is below this share of the error of the last value.
PLAIN_PERIOD = 0.8
PERIOD_ROWS = 10_000  # newest training windows in which a period is looked for


@dataclass(frozen=True)
class RawPart:
    """The raw past among the columns of a source."""

    source: RawSource[KnownSplit]  # of the raw past alone
    features: slice  # its features among those of all columns


@dataclass(frozen=True, kw_only=True)
class ForecastFitter(RidgeFitter):
    """Ridge readouts that are scored on folds in time, or with ``folds`` 0 on valid.

    The samples are windows of one or several series, oldest first, and their labels are the values that follow.
    """

    gap: int  # number of windows before a held-out window whose labels overlap with its own: none is fitted

    def fit(self, source: KnownSource) -> ColumnFit:
        """Return the fit of the best of several readouts, with the results of all.

        They are ridge of the labels and, if the raw past is a feature, ridge of their changes from the last value and
        the mean of both. If the source has other columns beside the raw past, the best of the three is then weighted
        with the best of the raw past alone, and the weighted readout is chosen.
        """
        fits = self._fit_values_and_changes(source)
        best = max(fits, key=lambda fit: fit.result.sort_key)
        raw = raw_part_of(source)
        if raw is not None and raw.source is not source:  # there are other columns beside the raw past
            best_of_raw = max(self._fit_values_and_changes(raw.source), key=lambda fit: fit.result.sort_key)
            best = self._weighted(source, best, best_of_raw, raw)
            fits.append(best)
        results = tuple(result for fit in fits for result in fit.results)
        return replace(best, results=results, best=results.index(best.result))

    def _fit_values_and_changes(self, source: KnownSource) -> list[ColumnFit]:
        """Return the fit of the labels, that of their changes if the last value is a feature, and the mean of both."""
        blocks = in_memory_if_small(RereadableBlocks(all_blocks, (source,)))
        fits = [self._fit_labels(source, blocks, None)]
        if last_value := last_value_of(source):
            fits.append(self._fit_labels(source, blocks, last_value))
            fits.append(self._mean_of(source, fits[0], fits[1]))
        return fits

    def _fit_labels(
        self, source: KnownSource, blocks: Iterable[Block], last_value: LastValue | None
    ) -> ColumnFit:
        """Return the fit of the best penalty to the labels, or to their changes from ``last_value`` if it is given."""
        targets, folds = self.targets(source), self._folds(source)

        def sweep_of(alphas: np.ndarray) -> Sweep:
            """Fit the penalties of a grid, and score them on the later windows of each fold."""
            return time_sweep(
                blocks,
                targets,
                alphas,
                folds,
                feature_weights=source.feature_weights,
                last_value=last_value,
            )

        fit = self.best_of(source, sweep_of)
        if last_value is None:
            return fit
        return replace(fit, results=tuple(replace(result, readout=CHANGES) for result in fit.results))

    def _mean_of(self, source: KnownSource, first: ColumnFit, second: ColumnFit) -> ColumnFit:
        """Return the fit whose forecasts are the means of those of two fits to a source."""
        assert first.held_out and second.held_out, "folds in time hold out samples"
        # Both fits have the same held-out windows, so their scores (n, T) can be averaged one by one.
        scores, labels = first.held_out()
        scores_of_second, _ = second.held_out()
        mean_scores = (scores + scores_of_second) / 2

        def solve() -> LinearReadout:
            """Return the readout whose weights are the means of those of both readouts."""
            readout, other = first.readout, second.readout
            assert isinstance(readout, LinearReadout) and isinstance(other, LinearReadout)
            mean_coef = (readout.coef + other.coef) / 2
            mean_intercept = (readout.intercept + other.intercept) / 2
            return replace(readout, coef=mean_coef, intercept=mean_intercept)

        return _fit_without_penalty(
            source.columns, MEAN_OF_RIDGES, self.targets(source), solve, (mean_scores, labels)
        )

    def _weighted(
        self, source: KnownSource, fit: ColumnFit, fit_of_raw: ColumnFit, raw: RawPart
    ) -> ColumnFit:
        """Return the fit whose forecasts lie between those of the raw past alone and those of a fit to a source.

        ``fit_of_raw`` is the fit of the raw past alone, which ``raw`` finds among the columns of the source.
        """
        assert fit.held_out and fit_of_raw.held_out, "folds in time hold out samples"
        # With ``folds`` 0 the only fold is valid.
        scores, labels = fit.held_out()
        scores_of_raw, _ = fit_of_raw.held_out()
        weight = mixture_weight(scores_of_raw, scores, labels, max(1, self.folds))
        weighted_scores = scores_of_raw + weight * (scores - scores_of_raw)

        def solve() -> LinearReadout:
            """Return the readout whose weights lie between those of both."""
            readout, readout_of_raw = fit.readout, fit_of_raw.readout
            assert isinstance(readout, LinearReadout) and isinstance(readout_of_raw, LinearReadout)
            # The readout of the raw past alone has the weight 0 for the features of other columns.
            coef = weight * readout.coef
            coef[raw.features] += (1 - weight) * readout_of_raw.coef
            intercept = weight * readout.intercept + (1 - weight) * readout_of_raw.intercept
            return replace(readout, coef=coef, intercept=intercept)

        held_out = weighted_scores, labels
        return _fit_without_penalty(source.columns, WEIGHTED, self.targets(source), solve, held_out)

    def with_setting_of(self, fit: ColumnFit) -> "ForecastFitter":
        """Return a fitter that tries only the penalty of a fit; all of them if the fit combines several readouts."""
        combines_readouts = fit.result.alpha is None  # as the mean and the weighted readout do
        return self if combines_readouts else super().with_setting_of(fit)

    def units(self, source: KnownSource) -> np.ndarray:
        """Return the unit of each held-out window, (n,): windows whose labels overlap are not independent."""
        return np.arange(self._held_out_count(source)) // (self.gap + 1)

    def wins_most_folds(self, fit: ColumnFit, other: ColumnFit, _: np.ndarray) -> bool:
        """Return whether a fit is better than another on the held-out windows, and on those of most folds.

        The third argument, the units of the windows, is not used: `choose_fit` passes it to any rule.
        """
        if fit.sample_scores is None or other.sample_scores is None:
            return False  # there is no evidence
        # The folds follow each other and have one size; with ``folds`` 0 the only fold is valid.
        differences = np.split(fit.sample_scores() - other.sample_scores(), max(1, self.folds))
        is_won = [difference.mean() > 0 for difference in differences]
        return bool(np.mean(differences) > 0 and np.mean(is_won) >= FOLDS_WON)

    def held_out(self, source: KnownSource, readout: LinearReadout) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores (n, T) that a fixed readout gives the windows that folds hold out, and their labels.

        A fixed readout, such as a repetition of the last value, is fitted to nothing, so it is the same in all folds.
        """
        scores = np.concatenate([readout.scores(x) for x, _ in all_blocks(source)])
        labels = np.concatenate([source.labels(split) for split in KNOWN_SPLITS])
        # The folds follow each other up to the newest window, so the held-out windows are the last ones.
        held_out_count = self._held_out_count(source)
        return scores[-held_out_count:], labels[-held_out_count:]

    def _held_out_count(self, source: KnownSource) -> int:
        """Return the number of windows that are held out in any fold."""
        return sum(len(fold.held_out) for fold in self._folds(source))

    def _folds(self, source: KnownSource) -> list[TimeFold]:
        """Return the folds of train and valid in time; with ``folds`` 0 one, whose held-out windows are valid."""
        train, valid = (len(source.labels(split)) for split in KNOWN_SPLITS)
        if self.folds:
            return time_folds(train + valid, self.folds, self.gap)
        fitted = max(1, train - self.gap)  # a readout needs at least one window
        return [TimeFold(fitted, range(train, train + valid))]


def mixture_weight(others: np.ndarray, scores: np.ndarray, labels: np.ndarray, folds: int) -> float:
    """Return the weight from 0 to 1 of ``scores`` (n, T) in a mixture with ``others`` (n, T), for labels (n, T).

    In a fold, the squared errors of others + w (scores - others) are least for

        w = sum (labels - others) (scores - others) / sum (scores - others)^2 .

    The weight is the mean of w, limited to 0 to 1, over ``folds`` consecutive stretches of the samples, because it
    depends less on a few large errors than the best weight of all samples.
    """
    weights: list[float] = []
    for in_fold in np.array_split(np.arange(len(labels)), folds):
        differences = scores[in_fold] - others[in_fold]
        denominator = np.sum(np.square(differences))
        if denominator == 0:  # both are equal, so that any weight would do
            weights.append(0.0)
            continue
        numerator = np.sum((labels[in_fold] - others[in_fold]) * differences)
        weights.append(float(np.clip(numerator / denominator, 0, 1)))
    return float(np.mean(weights))


def last_value_of(source: KnownSource) -> LastValue | None:
    """Return the feature that holds the last value before the forecast.

    None if the raw past is not among the columns, or if its features are not its values one by one.
    """
    raw = raw_part_of(source)
    return _value_before(raw.source, 1, raw.features.start) if raw else None


def raw_part_of(source: KnownSource) -> RawPart | None:
    """Return the raw past among the columns of a source; None if it is not one of them."""
    first_feature = 0  # of the next column
    for part in source.parts if isinstance(source, JoinedSource) else (source,):
        if isinstance(part, RawSource) and part.columns == (RAW,):
            return RawPart(part, slice(first_feature, first_feature + part.width()))
        first_feature += part.width()
    return None


def _value_before(raw: RawSource[KnownSplit], steps: int, first_feature: int = 0) -> LastValue | None:
    """Return the feature of the value some ``steps`` before the forecast.

    ``first_feature`` is the number of the raw past's first feature among those of all columns. None if the features of
    the raw past are not its values one by one, because these are symbols or are pooled.
    """
    if raw.features == Statistic(name=KNOWN_PAST):  # the values of the series themselves, one per step
        number = first_feature + raw.task.max_tokens - steps
        return LastValue(number, slice(first_feature, first_feature + raw.width()), scale=1.0, offset=0.0)
    scaling = raw.scaling
    dim = raw.task.form.dim if isinstance(raw.task.form, Vectors) else 0
    has_each_value = raw.width() == raw.task.max_tokens * dim
    if scaling is None or not has_each_value:
        return None
    # Features are (value - offset) * scale, for the past steps one after the other, with all channels of a step;
    # channel 0 is forecast, so that every ``dim``-th feature is one of its values.
    return LastValue(
        number=first_feature + (raw.task.max_tokens - steps) * dim,
        past=slice(first_feature, first_feature + raw.width(), dim),
        scale=float(1 / scaling.scale[0]),
        offset=float(scaling.offset[0]),
    )


# ---- forecasts without a fit


def simple_forecasts(raw: RawSource[KnownSplit], fitter: ForecastFitter) -> list[Choice]:
    """Return a readout that repeats the last value and, if a period is plain, one that repeats the newest period."""
    horizon = raw.task.horizon
    repeats_last_value = _repetition(raw, fitter, LAST_VALUE, [1] * horizon)
    windows, labels = _newest_training_windows(raw)
    period = plain_period(windows, labels)
    if period is None:
        return [repeats_last_value]
    name = f"the value {period} steps before"
    return [repeats_last_value, _repetition(raw, fitter, name, _steps_back(period, horizon))]


def _steps_back(period: int, horizon: int) -> list[int]:
    """Return how many steps before the forecast the newest known value of the same phase is, for each step ahead."""
    return [period - ahead % period for ahead in range(horizon)]


def plain_period(windows: np.ndarray, labels: np.ndarray) -> int | None:
    """Return the period whose repetition forecasts rows best; None if the last value is about as good.

    ``windows`` (rows, past) hold the values before the ``labels`` (rows, horizon).
    """
    past, horizon = windows.shape[1], labels.shape[1]
    # The mean squared error of the repetition of each period; missing values are NaN and do not count.
    errors: dict[int, float] = {}
    for period in range(2, past + 1):
        repeated = windows[:, past - np.array(_steps_back(period, horizon))]
        errors[period] = float(np.nanmean(np.square(repeated - labels)))
    if not errors:  # the past is a single value
        return None
    error_of_last_value = float(np.nanmean(np.square(windows[:, -1:] - labels)))
    best = min(errors, key=errors.__getitem__)
    if errors[best] >= PLAIN_PERIOD * error_of_last_value:
        return None
    # Multiples of a period repeat as well as it does, so noise alone may prefer one of them. Return the smallest
    # divisor of the best period that is about as good.
    return min(period for period in errors if best % period == 0 and errors[period] <= ALIKE * errors[best])


def _newest_training_windows(raw: RawSource[KnownSplit]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of the forecast channel (rows, past) in the newest training windows, and their labels."""
    values = np.concatenate([x[:, :, 0] for x, _ in raw.rows("train")])
    return values[-PERIOD_ROWS:].astype(np.float64), raw.labels("train")[-PERIOD_ROWS:]


def _repetition(
    raw: RawSource[KnownSplit], fitter: ForecastFitter, name: str, steps_back: Sequence[int]
) -> Choice:
    """Return the readout whose forecast of each step ahead is the value ``steps_back`` before the forecast.

    If that value is missing, it is the newest known one before it. ``steps_back`` has a number of steps for each step
    ahead, and ``name`` is that of the baseline.
    """
    # Masked values are 0 in the raw past, as if each were the mean.
    has_masks = raw.task.parameters.get("missing") == "mask"
    source = replace(
        raw, baseline=Baseline(name), features=Statistic(name=KNOWN_PAST) if has_masks else None
    )
    targets = fitter.targets(source)
    coef = np.zeros((source.width(), targets.outputs))
    intercept = np.zeros(targets.outputs)
    for ahead, steps in enumerate(steps_back):
        past_value = _value_before(source, steps)
        assert past_value, "the windows of forecasts are stored value by value"
        # The value is its feature times the scale, plus the offset.
        coef[past_value.number, ahead] = past_value.scale
        intercept[ahead] = past_value.offset
    readout = LinearReadout(coef=coef, intercept=intercept, targets=targets)
    held_out = fitter.held_out(source, readout)
    fit = _fit_without_penalty(source.columns, "repetition", targets, lambda: readout, held_out)
    return Choice(fit, source, fitter)


def _fit_without_penalty(
    columns: Columns,
    readout: str,
    targets: Targets,
    solve: Callable[[], LinearReadout],
    held_out: tuple[np.ndarray, np.ndarray],
) -> ColumnFit:
    """Return the fit of a readout that has no penalty of its own, called ``readout`` in results.

    ``held_out`` are its scores of the held-out windows (n, T), and their labels; ``solve`` returns the model.
    """
    scores, labels = held_out
    # A tally counts for several settings, along the first axis of the scores; here it is one.
    tally = Tally(targets).update(scores[None], labels)
    result = Result(
        columns=names_of(columns),
        readout=readout,
        alpha=None,
        valid_score=float(tally.accuracy()[0]),
        valid_loss=float(tally.loss()[0]),
        metric=targets.metric,
    )
    return ColumnFit(
        columns=columns,
        results=(result,),
        best=0,
        solve=solve,
        sample_scores=partial(targets.sample_scores, scores, labels),
        held_out=lambda: held_out,
    )
