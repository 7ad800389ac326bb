"""A scikit-learn regressor over raw sequences: a frozen map and a linear readout, the features cached by row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from reservoir.readouts import Targets
from reservoir.readouts.estimators import sample_weights
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.predictor import ReservoirPredictor


@with_parameters("vocabulary", "alphas", "cv")
class ReservoirRegressor(RegressorMixin, ReservoirPredictor):
    """Regressor of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    As `ReservoirClassifier`, with the same attributes but ``classes_``; what is kept has the highest R² of held-out
    samples, averaged over targets.

    {parameters}

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import ReservoirRegressor
    >>> speed = np.linspace(1, 2, 60)
    >>> X = np.sin(speed[:, None] * np.arange(40) / 3)
    >>> model = ReservoirRegressor(layers="block01", pool="mean").fit(X[::2], speed[::2])
    >>> model.score(X[1::2], speed[1::2]) > 0.9
    True
    """

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
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            A sample of weight 2 counts as two, one of weight 0 as none.
        groups : array-like of shape (n_samples,), default=None
            Samples of a group are held out together.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        (checked, values), lengths = self._checked(X, y, reset=True, multi_output=True, y_numeric=True)
        weights = sample_weights(sample_weight, checked)
        targets = np.asarray(values, np.float64).reshape(len(values), -1)
        self._single = values.ndim == 1
        rows = self._learn(checked, lengths, weights)
        self._choose(rows, targets, Targets(targets.shape[1], 0), weights, groups)
        return self

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of sequences."""
        scores = self._scores(X)
        return scores[:, 0] if self._single else scores

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
