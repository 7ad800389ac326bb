"""What the classifier and the regressor do: choose columns and penalty as the stage ``fit`` does, and predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_consistent_length, column_or_1d

from reservoir.column import RAW, Baseline, Column, Columns, parse_columns
from reservoir.plan.candidates import default_columns
from reservoir.readouts.linear import Block, LinearReadout, Targets
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir_pipelines.estimators.base import ReservoirEstimator, refuse_missing
from reservoir_pipelines.fitting.candidates import Candidates
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, Fitter, fit_source
from reservoir_pipelines.fitting.folds import draw_folds, folds_can_choose
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.select import Selection, select
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    KnownSplit,
    OutOfReachError,
    Samples,
    balance_of,
)
from reservoir_pipelines.output import silenced


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayColumns:
    """Columns to choose from, of n rows in memory, with everything that belongs to the rows."""

    features: Callable[[Column | Baseline], np.ndarray]  # returns the features (n, width) of a column
    y: np.ndarray  # labels (n, outputs) as numbers
    units: np.ndarray  # (n,): the number of the row's group, or of the row itself if there are no groups
    fold_of_sample: np.ndarray  # (n, repeats): in each repetition, the fold that holds the row out
    weights: np.ndarray | None  # (n,), all above 0; None if all rows count once

    def source(self, columns: Columns) -> ArraySource:
        """Return the samples of a column, or of several side by side."""
        return ArraySource(self, columns)

    def raw(self) -> ArraySource:
        """Return the raw input of the same rows."""
        return ArraySource(self, (RAW,))


class ArraySource(Samples[KnownSplit]):
    """Samples of arrays; all are training samples, because cross-validation chooses a readout."""

    def __init__(self, array_columns: ArrayColumns, columns: Columns) -> None:
        self._array_columns = array_columns  # all columns, of which this object gives some
        self._columns = columns
        self.sample_weights = array_columns.weights
        self.fold_of_sample = array_columns.fold_of_sample

    @property
    def columns(self) -> Columns:
        """The columns side by side."""
        return self._columns

    def blocks(self, split: KnownSplit) -> Iterator[Block]:
        """Yield features (n, w) and labels (n, outputs) of all training samples as one block; nothing for valid."""
        y = self.labels(split)
        if len(y):
            features = [self._array_columns.features(column) for column in self._columns]
            yield np.concatenate(features, axis=1), y

    def tokens(self) -> int:
        """Return 1: each row is a sample."""
        return 1

    def width(self) -> int:
        """Return the number of features of a sample."""
        return sum(self._widths)

    def labels(self, split: KnownSplit) -> np.ndarray:
        """Return the labels (n, outputs)."""
        return self._array_columns.y[self._rows(split)]

    def counts(self, split: KnownSplit) -> np.ndarray:
        """Return 1 for each row."""
        return np.ones(len(self.labels(split)), int)

    def groups(self, split: KnownSplit) -> np.ndarray:
        """Return the unit of each row, (n,), which no two folds share."""
        return self._array_columns.units[self._rows(split)]

    @cached_property
    def feature_weights(self) -> np.ndarray | None:
        """The weight of each feature, (w,), if the raw input is one of several columns, else None."""
        return balance_of(self._columns, self._widths)

    @property
    def _widths(self) -> list[int]:
        """The number of features of each column."""
        return [self._array_columns.features(column).shape[1] for column in self._columns]

    @staticmethod
    def _rows(split: KnownSplit) -> slice:
        """Return the rows of a split: all are in train, and none in valid; raise `OutOfReachError` for test."""
        if split not in KNOWN_SPLITS:
            raise OutOfReachError(f"{split} rows are out of reach here: arrays have no such rows")
        return slice(None) if split == "train" else slice(0)


def _results_table(selection: Selection) -> dict[str, np.ndarray]:
    """Return the column, the penalty and the score on held-out samples of each result, including baselines.

    The arrays have the keys ``column``, ``alpha`` and ``score``.
    """
    fits = [*selection.fits, *(baseline.fit for baseline in selection.baselines)]
    results = [result for fit in fits for result in fit.results]
    return {
        "column": np.array([result.name for result in results], object),
        "alpha": np.array([result.alpha for result in results]),
        "score": np.array([result.valid_score for result in results]),
    }


class ReservoirPredictor(ReservoirEstimator):
    """Base of classifier and regressor, which chooses columns and penalty as `fit` does."""

    # set by `fit`
    readout_: LinearReadout
    column_: str  # the columns of the readout, joined by a plus
    # parameters
    alphas: Sequence[float] | None
    cv: Any
    # Of subclasses: a method that returns labels (n, outputs) as numbers and their coding, from labels and weights.
    _coded: Callable[..., tuple[np.ndarray, Targets]]
    _checks_of_y: ClassVar[dict[str, bool]] = {}  # arguments of scikit-learn's `check_X_y`

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit readouts with every penalty to every column, and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), list of arrays, or table
            Sequences. If their lengths differ, give a list of arrays (n_values,) or (n_values, n_channels), or a table
            or column of pandas or polars with a series in each cell (of a table, one column for each channel).
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Labels for a classifier (a matrix of 0 and 1 if samples have several labels); targets for a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            A sample of weight 2 counts as two samples, one of weight 0 as none.
        groups : array-like of shape (n_samples,), default=None
            The group of each sample; samples of a group are held out together.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        # Check the arguments, as estimators of scikit-learn do. A y of one column is read as (n_samples,).
        given_labels = np.asarray(y)
        has_several_outputs = given_labels.ndim == 2 and given_labels.shape[1] > 1
        # scikit-learn names NaN among numbers, but not what is missing among other labels.
        if given_labels.ndim and given_labels.dtype.kind not in "biuf":
            refuse_missing("y", given_labels)
        checks = {"multi_output": has_several_outputs} | self._checks_of_y
        (checked_x, labels), lengths = self._checked(X, y, reset=True, ensure_min_samples=2, **checks)
        weights = check_sample_weights(sample_weight, checked_x)
        # Labels become numbers. A row of weight 0 counts as none in everything but the user's own folds.
        coded, targets = self._coded(labels, weights)
        has_weight = np.ones(len(coded), bool) if weights is None else weights > 0
        counted_x = checked_x
        if weights is not None and not has_weight.all():
            lengths, weights = lengths[has_weight], weights[has_weight]
            counted_x = checked_x[has_weight, : lengths.max()]
        # The data decides the model and the columns, of which folds choose one.
        rows = self._plan_and_scale(counted_x, lengths, weights)
        folds = self._fold_numbers(checked_x, coded, groups, has_weight, classifier=targets.classes > 0)
        units = np.arange(len(coded)) if groups is None else np.unique(groups, return_inverse=True)[1]
        array_columns = ArrayColumns(
            features=self._features(rows),
            y=coded[has_weight],
            units=units[has_weight],
            fold_of_sample=folds,
            weights=weights,
        )
        selection = self._select(array_columns, targets)
        choice = selection.choices[selection.saved]
        # Keep what `predict` needs, and what scikit-learn's search estimators show.
        assert isinstance(choice.fit.readout, LinearReadout)  # `RidgeFitter` fits no other
        self.readout_ = choice.fit.readout
        self.column_ = choice.fit.result.name
        self.alpha_ = choice.fit.result.alpha
        self.best_score_ = choice.fit.result.valid_score
        self.cv_results_ = _results_table(selection)
        return self

    def _select(self, array_columns: ArrayColumns, targets: Targets) -> Selection:
        """Choose a readout as the stage `fit` does, with the raw input as the only baseline."""
        # The grid of penalties may grow and shrink only if the user has not given it.
        has_default_alphas = self.alphas is None
        alphas = DEFAULT_ALPHAS if has_default_alphas else np.array(self.alphas, np.float64, ndmin=1)
        if alphas.ndim > 1:
            raise ValueError(f"alphas has the shape {alphas.shape}; give a penalty, or a list of penalties")
        fitter = RidgeFitter(
            classes=targets.classes,
            alphas=alphas,
            widens=has_default_alphas,
            narrows=has_default_alphas,
            folds=int(array_columns.fold_of_sample.max()) + 1,
            repeats=array_columns.fold_of_sample.shape[1],
            coding=targets,
        )
        # If the folds have too few samples to choose by, the default columns are fitted with a fixed penalty.
        columns = self._plan.candidates
        chooses = folds_can_choose(array_columns.source(columns[0]), targets.classes)
        candidates = Candidates(
            all_columns=columns,
            default=default_columns(columns),
            fitter=fitter if chooses else fitter.with_fixed_penalty(),
            chooses=chooses,
            baseline_may_win=chooses,
        )
        # The estimators print nothing, and rich cannot show the progress of several threads.
        with silenced():
            return select(array_columns, candidates, _fit_raw)

    def _fold_numbers(
        self,
        x: np.ndarray,
        y: np.ndarray,
        groups: ArrayLike | None,
        has_weight: np.ndarray,
        *,
        classifier: bool,
    ) -> np.ndarray:
        """Return the fold of each sample that has a weight above 0 in each repetition, (n with weight, repeats).

        ``y`` (n, outputs) are labels as numbers, ``groups`` (n,) are the groups of samples, if there are any, and
        ``has_weight`` (n,) is False for samples of weight 0.
        """
        group_of_sample = None if groups is None else column_or_1d(groups)
        check_consistent_length(x, group_of_sample)
        if group_of_sample is not None:
            refuse_missing("groups", group_of_sample)
        # Folds are stratified only by classes, and only if each sample has one.
        labels = y[:, 0] if classifier and y.shape[1] == 1 else None
        y_of_splitter = y if labels is None else labels
        number_of_folds = int(self.cv) if isinstance(self.cv, Integral) else None
        # The user's own folds count all samples. A fold of which no sample has a weight is no fold.
        if self.cv is not None and number_of_folds is None:
            folds_of_all = fold_numbers(self.cv, x, y_of_splitter, group_of_sample, classifier=classifier)
            _, fold_of_sample = np.unique(folds_of_all[has_weight], return_inverse=True)
            return fold_of_sample[:, None]
        # All other folds divide the samples that have a weight, so that each fold has some of them.
        x, y_of_splitter = x[has_weight], y_of_splitter[has_weight]
        labels = None if labels is None else labels[has_weight]
        group_of_sample = None if group_of_sample is None else group_of_sample[has_weight]
        # scikit-learn divides the samples once by a number of folds, but ignores groups then.
        if number_of_folds is not None and group_of_sample is None:
            return fold_numbers(number_of_folds, x, y_of_splitter, classifier=classifier)[:, None]
        # Otherwise folds are drawn here: a number of folds of groups once, or those of the plan, of which there are
        # at most as many as samples or groups.
        if number_of_folds is not None:
            folds, repeats = number_of_folds, 1
        else:
            units = len(x) if group_of_sample is None else len(np.unique(group_of_sample))
            folds, repeats = min(self._plan.folds, units), self._plan.repeats
        fold_of_sample_by_repeat = [
            draw_folds(len(x), folds, labels=labels, groups=group_of_sample, repeat=repeat)
            for repeat in range(repeats)
        ]
        return np.stack(fold_of_sample_by_repeat, axis=1)

    def _apply(self, method: Callable[[LinearReadout, np.ndarray], np.ndarray], x: ArrayLike) -> np.ndarray:
        """Return what ``method`` of the readout, such as ``LinearReadout.predict``, returns for new sequences."""
        features = self._joined_features(self._rows(x), parse_columns(self.column_))
        return method(self.readout_, features)


def _fit_raw(
    array_columns: ArrayColumns, fits: list[ColumnFit], fitter: Fitter, chooses: bool
) -> list[Choice]:
    """Return the readout of the raw input as the only baseline, in a list; an empty list without ``chooses``.

    The parameters are those of `FitBaselines`, the function that `select` calls. ``chooses`` is False if the folds have
    too few samples to choose by, and then no baseline may win. ``fits``, the fits of the columns, are not used.
    """
    raw = array_columns.raw()
    return [Choice(fit_source(fitter, raw), raw, fitter)] if chooses else []


def are_weights(values: np.ndarray) -> bool:
    """Return whether ``values`` (n,) can be weights: finite, at least 0, and not all of them 0."""
    return bool(np.isfinite(values).all() and (values >= 0).all() and values.any())


def check_sample_weights(sample_weight: ArrayLike | None, x: np.ndarray) -> np.ndarray | None:
    """Return the weights (n,) of samples, or None without weights; raise `ValueError` for invalid ones."""
    if sample_weight is None:
        return None
    weights = column_or_1d(sample_weight, dtype=np.float64)
    check_consistent_length(x, weights)
    if not are_weights(weights):
        raise ValueError("sample_weight needs finite values of at least zero, not all of them zero")
    return weights


def fold_numbers(
    cv: Any, x: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, *, classifier: bool
) -> np.ndarray:
    """Return the fold of each sample, (n,), as scikit-learn's ``cv`` divides them.

    Raise `ValueError` if a sample is not held out exactly once.
    """
    fold_of_sample = np.zeros(len(x), np.int64)
    times_held_out = np.zeros(len(x), np.int64)
    splitter: Any = check_cv(cv, labels, classifier=classifier)
    for fold, (_, held_out) in enumerate(splitter.split(x, labels, groups)):
        fold_of_sample[held_out] = fold
        times_held_out[held_out] += 1
    if (times_held_out != 1).any():
        sample = int(np.argmax(times_held_out != 1))
        raise ValueError(
            f"cv={cv!r} holds sample {sample} out {times_held_out[sample]} times; "
            "use folds that hold each out once"
        )
    return fold_of_sample
