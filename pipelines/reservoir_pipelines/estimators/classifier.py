"""A scikit-learn classifier over raw sequences: a frozen map and a linear readout, the features cached by row."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from reservoir.readouts import RidgeSweepClassifier
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator


@with_parameters("vocabulary", "alphas", "cv", "class_weight")
class ReservoirClassifier(ClassifierMixin, ReservoirEstimator):
    """Classifier of raw sequences: a frozen sequence model, and a ridge readout of its best layer.

    Sequences go through a fixed input layer and a frozen backbone; the hidden states of each layer, pooled over the
    tokens, are a column. To every column the ridge readouts of `RidgeSweepClassifier` are fitted, and the column and
    penalty that classify most held-out samples rightly are kept.

    The frozen pass depends on nothing but a row itself. Its results are cached under the SHA-256 of the row, in this
    process and on disk, so that in ``GridSearchCV`` or ``cross_val_score`` each distinct row passes once, not once for
    each fold and candidate; the parameters of the reservoir, `layers`, `pool` and `compute` make other features, all
    else does not. With ``n_jobs`` a row may pass once in each process. Values go in as they are given: scale X, or tune
    `gain`.

    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    vocabulary_ : int or None
        Number of symbols that X holds; None for values.
    readout_ : RidgeSweepClassifier
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
        Accuracy (R² of a regressor) of each column and penalty on held-out samples.
    best_score_ : float
        That of the chosen ones.
    n_features_in_ : int
        Length of the sequences, in values of a channel.
    n_channels_in_ : int
        Values at each place; 1 for X of two dimensions.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of the places, where they were given as strings.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from reservoir_pipelines import ReservoirClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ReservoirClassifier(patch=8, gain=0.1, pool="mean,segments8")     # 8 rows of 8 pixels
    >>> model.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])        # doctest: +SKIP
    """

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit every penalty to every column and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels)
            Sequences.
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        checked, labels = self._checked(X, y)
        check_classification_targets(labels)
        x = self._sequences(checked, reset=True)
        settings = {"class_weight": vars(self)["class_weight"]}
        self._choose(x, labels, lambda cv: RidgeSweepClassifier(self.alphas, cv=cv, **settings), classifier=True)
        self.classes_ = self.readout_.classes_
        return self

    def decision_function(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the scores of sequences: (n_samples,) for two classes, else (n_samples, n_classes)."""
        x = self._read(X)
        return self.readout_.decision_function(x)

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the labels (n_samples,) of sequences."""
        x = self._read(X)
        return self.readout_.predict(x)

    def predict_proba(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the probability of each class, (n_samples, n_classes)."""
        x = self._read(X)
        return self.readout_.predict_proba(x)
