"""A scikit-learn classifier of raw sequences: a frozen model and a linear readout, with features cached by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin

from reservoir.readouts import Targets
from reservoir.readouts.estimators import code_labels
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.predictor import ReservoirPredictor


@with_parameters("vocabulary", "channels_first", "alphas", "cv", "class_weight")
class ReservoirClassifier(ClassifierMixin, ReservoirPredictor):
    """Classifier of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    Sequences go through a fixed input layer and a frozen backbone; the hidden states of each layer, pooled over the
    tokens, are a column. Ridge readouts with every penalty are fitted to columns, alone, side by side, and beside the
    raw input, and the one with the best accuracy on held-out samples is kept. Defaults depend on the data as those of
    `extract` and `fit` do.

    Features are cached under the SHA-256 of the row, in this process and on disk, so each distinct row goes through the
    model once, whatever the penalties, class weights and ``cv``. Values are standardised by the samples fitted, so in
    ``cross_val_score`` a row goes through once per fold; with ``standardise=False``, once in all. With ``n_jobs`` a row
    may go through once in each process.

    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    vocabulary_ : int or None
        Number of symbols that X holds; None for values.
    readout_ : LinearReadout
        The chosen readout, fitted to all samples.
    column_ : str
        The column of the readout, such as ``block06/mean``, or several joined by a plus; ``raw`` is the input itself.
    columns_ : list of str
        Columns of the reservoir.
    alpha_ : float
        The chosen penalty.
    best_score_ : float
        Accuracy (R² of a regressor) of the chosen readout on held-out samples.
    cv_results_ : dict of ndarray
        ``column``, ``alpha`` and ``score`` of every readout tried.
    n_features_in_ : int
        Length of the longest sequence, in values of a channel.
    n_channels_in_ : int
        Channels of each value; 1 for X of two dimensions.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of the columns of X, if X has any.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from reservoir_pipelines import ReservoirClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ReservoirClassifier(layers="block01", pool="mean").fit(X[:200], y[:200])
    >>> model.score(X[200:300], y[200:300]) > 0.8
    True
    """

    def _coded(self, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        self.classes_, codes, targets = code_labels(labels, vars(self)["class_weight"], weights)
        return codes[:, None], targets

    def decision_function(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the scores of sequences: (n_samples,) for two classes, else (n_samples, n_classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the labels (n_samples,) of sequences."""
        x = self._read(X)
        return self.classes_[self.readout_.predict(x)[:, 0]]

    def predict_proba(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the probability of each class, (n_samples, n_classes)."""
        x = self._read(X)
        return self.readout_.probabilities(x)[:, 0]
