"""The choice of columns and penalty, as `fit` chooses: what the classifier and the regressor share."""

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
from reservoir_pipelines.fitting.column_fit import ColumnFit, column_fit, with_wider_grid


class ReservoirPredictor(ReservoirEstimator):
    """What `ReservoirClassifier` and `ReservoirRegressor` share; their parameters are described there."""

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
        """Fit every penalty to every column and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), or list of arrays
            Sequences; of unequal length as a list of arrays (n_values,) or (n_values, n_channels).
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Labels of a classifier (n_samples,), targets of a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            A sample of weight 2 counts as two, one of weight 0 as none.
        groups : array-like of shape (n_samples,), default=None
            Samples of a group are held out together.

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
        """Return the labels (n, outputs) as they are fitted, and what they are."""
        raise NotImplementedError

    def _choose(
        self,
        rows: Rows,
        y: np.ndarray,
        targets: Targets,
        weights: np.ndarray | None,
        groups: npt.ArrayLike | None,
    ) -> None:
        """Fit every column and penalty to labels (n, outputs) and keep the best: of equal ones that of least loss."""
        features, folds = self._features(rows), self._deals(rows.x, y, groups, classifier=targets.classes > 0)
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

    def _deals(self, x: np.ndarray, y: np.ndarray, groups: npt.ArrayLike | None, *, classifier: bool) -> np.ndarray:
        """Return the fold of each sample in each deal, (n, deals)."""
        group = None if groups is None else column_or_1d(groups)
        labels = y[:, 0] if classifier else None
        if self.cv is not None and (group is None or not isinstance(self.cv, int)):
            return fold_numbers(self.cv, x, y if labels is None else labels, group, classifier=classifier)[:, None]
        units = len(x) if group is None else len(np.unique(group))
        if units < 2:
            what = "n_samples = 1" if group is None else "groups holds 1 group"
            raise ValueError(f"{what}; give at least two, to choose by those that are held out")
        plan = self._plan
        folds, deals = (min(plan.folds, units), plan.repeats) if self.cv is None else (self.cv, 1)
        dealt = [draw_folds(len(x), int(folds), labels=labels, groups=group, repeat=n) for n in range(deals)]
        return np.stack(dealt, axis=1)

    def _trial(
        self, name: str, block: tuple[np.ndarray, ...], targets: Targets, emphasis: np.ndarray | None
    ) -> ColumnFit:
        """Sweep one column, or several side by side; an end of the penalties that does best carries them on."""
        deals: dict[str, Any] = {"folds": int(block[2].max()) + 1, "repeats": block[2].shape[1], "emphasis": emphasis}
        swept = partial(cross_sweep, [block], targets, **deals)
        given = DEFAULT_ALPHAS if self.alphas is None else np.asarray(self.alphas, np.float64)
        columns = tuple(name.split("+"))

        def fitted(alphas: np.ndarray) -> ColumnFit:
            return column_fit("ridge", columns, swept(alphas))

        return with_wider_grid(fitted, given) if self.alphas is None else fitted(given)

    def _scores(self, x: npt.ArrayLike) -> np.ndarray:
        """Return the scores (n, targets) of new sequences."""
        read = self._read(x)
        return self.readout_.scores(read)

    def _read(self, x: npt.ArrayLike) -> np.ndarray:
        """Return what the readout sees of new sequences, (n, width)."""
        rows = self._rows(x)
        return self._features(rows)(self.column_)


def _emphasis(name: str, width: int, raw: int) -> np.ndarray | None:
    """Return how much each feature counts, (width,), where columns end with so many of the raw input; else None."""
    return balance_raw(np.arange(width) >= width - raw) if name.endswith(f"+{RAW}") else None
