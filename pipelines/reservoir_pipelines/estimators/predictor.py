"""What the classifier and the regressor share: the choice of columns and penalty, as `fit` chooses them."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils.validation import column_or_1d

from reservoir.plan import RAW
from reservoir.readouts import DEFAULT_ALPHAS, LinearReadout, Targets, balance_raw, cross_sweep, draw_folds
from reservoir.readouts.estimators import drop_weightless, fold_numbers, sample_weights
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator
from reservoir_pipelines.estimators.sequences import Rows
from reservoir_pipelines.fitting.fitters import ColumnFit, fit_penalties


class ReservoirPredictor(ReservoirEstimator):
    """Base of `ReservoirClassifier` and `ReservoirRegressor`, which document the parameters."""

    readout_: LinearReadout
    column_: str
    alphas: npt.ArrayLike | None
    cv: int | BaseCrossValidator | None
    _checks: ClassVar[dict[str, bool]] = {}

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
    ) -> Self:
        """Fit readouts with every penalty to every column, and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), or list of arrays
            Sequences; of unequal length as a list of arrays (n_values,) or (n_values, n_channels).
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Labels of a classifier (n_samples,), targets of a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            A sample of weight 2 counts as two samples, one of weight 0 as none.
        groups : array-like of shape (n_samples,), default=None
            The group of each sample; samples of a group are held out together.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        (checked, labels), lengths = self._checked(X, y, reset=True, **self._checks)
        weights = sample_weights(sample_weight, checked)
        coded, targets = self._coded(labels, weights)
        self._choose(self._learn(checked, lengths, weights), coded, targets, weights, groups)
        return self

    def _coded(self, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        """Return the labels (n, outputs) as numbers, and the description of the targets."""
        raise NotImplementedError

    def _choose(
        self,
        rows: Rows,
        y: np.ndarray,
        targets: Targets,
        weights: np.ndarray | None,
        groups: npt.ArrayLike | None,
    ) -> None:
        """Fit every column and penalty to labels (n, outputs) and keep the best; ties go to the lower loss."""
        features, folds = self._features(rows), self._fold_numbers(rows.x, y, groups, classifier=targets.classes > 0)
        raw, trials = features(RAW).shape[1], []
        for name in dict.fromkeys([*self._plan.candidates, RAW]):
            block = features(name), y, folds
            block = block if weights is None else drop_weightless(*block, weights)
            trials.append(self._trial(name, block, targets, _emphasis(name, block[0].shape[1], raw)))
        best = max(trials, key=lambda trial: trial.result.merit)
        assert isinstance(best.readout, LinearReadout)
        self.column_, self.alpha_, self.best_score_ = best.result.name, best.result.alpha, best.result.valid_score
        self.readout_ = best.readout
        found = [result for trial in trials for result in trial.results]
        self.cv_results_ = {
            "column": np.array([result.name for result in found], object),
            "alpha": np.array([result.alpha for result in found]),
            "score": np.array([result.valid_score for result in found]),
        }

    def _fold_numbers(
        self, x: np.ndarray, y: np.ndarray, groups: npt.ArrayLike | None, *, classifier: bool
    ) -> np.ndarray:
        """Return the fold of each sample in each repetition, (n, repeats)."""
        group = None if groups is None else column_or_1d(groups)
        labels = y[:, 0] if classifier else None
        if self.cv is not None and (group is None or not isinstance(self.cv, int)):
            return fold_numbers(self.cv, x, y if labels is None else labels, group, classifier=classifier)[:, None]
        units = len(x) if group is None else len(np.unique(group))
        if units < 2:
            what = "n_samples = 1" if group is None else "groups holds 1 group"
            raise ValueError(f"{what}; give at least two, as some are held out to choose a readout")
        plan = self._plan
        folds, repeats = (min(plan.folds, units), plan.repeats) if self.cv is None else (self.cv, 1)
        found = [draw_folds(len(x), int(folds), labels=labels, groups=group, repeat=n) for n in range(repeats)]
        return np.stack(found, axis=1)

    def _trial(
        self, name: str, block: tuple[np.ndarray, ...], targets: Targets, emphasis: np.ndarray | None
    ) -> ColumnFit:
        """Fit one column, or several side by side, with every penalty; extend the grid where its end is best."""
        how: dict[str, Any] = {"folds": int(block[2].max()) + 1, "repeats": block[2].shape[1], "emphasis": emphasis}
        swept = partial(cross_sweep, [block], targets, **how)
        given = DEFAULT_ALPHAS if self.alphas is None else np.asarray(self.alphas, np.float64)
        return fit_penalties("ridge", tuple(name.split("+")), swept, given, widens=self.alphas is None)

    def _scores(self, x: npt.ArrayLike) -> np.ndarray:
        """Return the scores (n, targets) of new sequences."""
        read = self._read(x)
        return self.readout_.scores(read)

    def _read(self, x: npt.ArrayLike) -> np.ndarray:
        """Return the features that the readout reads of new sequences, (n, width)."""
        rows = self._rows(x)
        return self._features(rows)(self.column_)


def _emphasis(name: str, width: int, raw: int) -> np.ndarray | None:
    """Return the weight of each feature, (width,), where the last ``raw`` ones are the raw input; else None."""
    return balance_raw(np.arange(width) >= width - raw) if name.endswith(f"+{RAW}") else None
