"""A scikit-learn classifier over raw sequences: a frozen map and a linear readout, the features cached by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils.multiclass import check_classification_targets

from reservoir.readouts import RidgeSweepClassifier
from reservoir.reservoir import GAIN
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator


class ReservoirClassifier(ClassifierMixin, ReservoirEstimator):
    """Classifier of raw sequences: a frozen sequence model, and a ridge readout of its best layer.

    Sequences go through a fixed input layer and a frozen backbone; the hidden states of each layer, pooled over the
    tokens, are a column. To every column the ridge readouts of `RidgeSweepClassifier` are fitted, and the column and
    penalty that classify most held-out samples rightly are kept.

    The frozen pass depends on nothing but a row itself. Its results are cached under the SHA-256 of the row, in this
    process and on disk, so that in `GridSearchCV` or `cross_val_score` each distinct row passes once, not once for each
    fold and candidate; `backbone`, `init`, `seed`, `gain`, `layers`, `pool`, `patch`, `stride` and `compute` make other
    features, all else does not. With `n_jobs` a row may pass once in each process.

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
    class_weight : dict or "balanced", default=None
        Weights of the classes, as in scikit-learn.
    cache : str or path, default=None
        Root of the cache; None for ``RESERVOIR_CACHE``, else the user's cache folder.
    device, compute : str, default="auto"
        Where and in which precision the forward pass runs: ``cpu``, ``cuda``; ``float32``, ``bfloat16``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
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
        Accuracy of each column and penalty on held-out samples.
    best_score_ : float
        That of the chosen ones.
    n_features_in_ : int
        Length of the sequences, in values of a channel.
    n_channels_in_ : int
        Values at each place; 1 for X of two dimensions.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the places, where they were given as strings.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from reservoir_pipelines import ReservoirClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ReservoirClassifier(patch=8, gain=0.1, pool="mean,segments8")     # 8 rows of 8 pixels
    >>> model.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])        # doctest: +SKIP
    """

    def __init__(
        self,
        backbone: str | None = None,
        init: str | None = None,
        seed: int = 0,
        gain: float = GAIN,
        layers: str | Sequence[str] = "all",
        pool: str | Sequence[str] = "mean",
        patch: int = 1,
        stride: int | None = None,
        vocabulary: int | None = None,
        alphas: npt.ArrayLike | None = None,
        cv: int | BaseCrossValidator = 5,
        class_weight: Mapping[Any, float] | str | None = None,
        cache: str | Path | None = None,
        device: str = "auto",
        compute: str = "auto",
    ) -> None:
        super().__init__(
            backbone, init, seed, gain, layers, pool, patch, stride, vocabulary, alphas, cv, cache, device, compute
        )
        self.class_weight = class_weight

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
        self._choose(
            x,
            labels,
            lambda cv: RidgeSweepClassifier(self.alphas, cv=cv, class_weight=self.class_weight),
            classifier=True,
        )
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
