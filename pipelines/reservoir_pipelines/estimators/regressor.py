"""A scikit-learn regressor over raw sequences: a frozen map and a linear readout, the features cached by row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from reservoir.readouts import RidgeSweepRegressor
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator


class ReservoirRegressor(RegressorMixin, ReservoirEstimator):
    """Regressor of raw sequences: a frozen sequence model, and a ridge readout of its best layer.

    As `ReservoirClassifier`, with the readouts of `RidgeSweepRegressor`, chosen by the R^2 of held-out samples.

    Parameters
    ----------
    backbone : str, default=None
        A known name such as ``gpt2`` or ``esn:units=500``, a model folder or a hub name; None for ``mini``, whose
        weights come with this package.
    init : {"pretrained", "random", "statistics"} or str, default=None
        Where the frozen weights come from, also a folder; None for ``pretrained``, or ``random`` where nobody publishes
        weights of its kind.
    seed : int, default=0
        Seed of random weights and of the input layer.
    gain : float, default=1.41
        Scale of the input layer. Values go in as they are given: scale X, or tune the gain.
    layers : str or list of str, default="all"
        ``embed``, ``block01`` …, ``final``, comma-separated, or ``all``.
    pool : str or list of str, default="mean"
        ``last``, ``mean``, ``max``, ``first``, ``segments8``, ``all``. Each layer under each pooling is a column that
        may be chosen.
    patch : int, default=1
        A token is a window of so many values, with all their channels.
    stride : int, default=None
        From the beginning of one window to that of the next; None for ``patch``.
    vocabulary : int, default=None
        X holds symbols, the whole numbers below this one; None for values.
    alphas : array-like of shape (n_alphas,), default=None
        Positive penalties; None for 25 values from 1e-2 to 1e6 in equal ratios.
    cv : int or cross-validator, default=5
        Folds by which column and penalty are chosen; the test folds must hold every sample exactly once.
    cache : str or path, default=None
        Root of the cache; None for ``RESERVOIR_CACHE``, else the user's cache folder.
    device, compute : str, default="auto"
        Where and in which precision the forward pass runs: ``cpu``, ``cuda``; ``float32``, ``bfloat16``.

    Attributes
    ----------
    readout_ : RidgeSweepRegressor
        The readout of the chosen column, fitted to all samples.
    column_ : str
        The chosen column, such as ``block06/mean``.
    columns_ : list of str
        Columns tried.
    alpha_ : float
        The chosen penalty.
    alphas_ : ndarray of shape (n_alphas,)
        Penalties tried.
    cv_scores_ : ndarray of shape (n_columns, n_alphas)
        R^2 of each column and penalty on held-out samples.
    best_score_ : float
        That of the chosen ones.
    n_features_in_ : int
        Length of the sequences, in values of a channel.
    n_channels_in_ : int
        Values at each place; 1 for X of two dimensions.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the places, where they were given as strings.
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
