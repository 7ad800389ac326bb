"""A scikit-learn regressor over raw sequences: a frozen map and a linear readout, the features cached by row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from reservoir.readouts import RidgeSweepRegressor
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator


@with_parameters("vocabulary", "alphas", "cv")
class ReservoirRegressor(RegressorMixin, ReservoirEstimator):
    """Regressor of raw sequences: a frozen sequence model, and a ridge readout of its best layer.

    As `ReservoirClassifier`, with the same attributes but ``classes_``, and the readouts of `RidgeSweepRegressor`,
    chosen by the R² of held-out samples.

    {parameters}
    """

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit every penalty to every column and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels)
            Sequences.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        checked, values = self._checked(X, y, multi_output=True, y_numeric=True)
        x = self._sequences(checked, reset=True)
        self._choose(x, values, lambda cv: RidgeSweepRegressor(self.alphas, cv=cv), classifier=False)
        return self

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of sequences."""
        x = self._read(X)
        return self.readout_.predict(x)

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
