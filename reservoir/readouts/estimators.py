"""The ridge sweep as scikit-learn estimators, for arrays in memory."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from reservoir.readouts.folds import cross_sweep
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.sweep import Sweep
from reservoir.readouts.targets import Targets, balanced_weights

# The defaults of these parameters are strings and integers, from which type checkers infer types that are too narrow.
_validate: Callable[..., Any] = validate_data
_check_cv: Callable[..., Any] = check_cv


class _RidgeSweep(BaseEstimator):
    """Base class of the classifier and the regressor: selection of the penalty, and the linear map."""

    alphas: npt.ArrayLike | None
    cv: int | BaseCrossValidator
    coef_: np.ndarray
    intercept_: np.ndarray

    def _sweep(
        self, x: np.ndarray, y: np.ndarray, labels: np.ndarray, targets: Targets, weights: np.ndarray | None
    ) -> Sweep:
        """Fit features (n, w) to labels (n, outputs) and set the attributes of scikit-learn's ridge models."""
        fold = fold_numbers(self.cv, x, labels, classifier=targets.classes > 0)
        alphas = DEFAULT_ALPHAS if self.alphas is None else np.asarray(self.alphas, np.float64)
        block = (x, y, fold) if weights is None else drop_weightless(x, y, fold, weights)
        found = cross_sweep([block], targets, alphas, folds=int(block[2].max()) + 1)
        readout = found.readout()
        self.coef_, self.intercept_ = readout.coef.T, readout.intercept
        self.alphas_, self.alpha_ = found.path.alphas, found.alpha
        self.cv_scores_, self.best_score_ = found.accuracy, float(found.accuracy[found.best])
        return found

    def _scores(self, x: npt.ArrayLike) -> np.ndarray:
        """Return the scores (n, targets) of features (n, w)."""
        check_is_fitted(self)
        checked = _validate(self, x, dtype=[np.float64, np.float32], reset=False)
        return np.asarray(checked, np.float64) @ self.coef_.T + self.intercept_


class RidgeSweepClassifier(ClassifierMixin, _RidgeSweep):
    """Ridge classifier of standardised features whose penalty is chosen exactly, from K-fold moments.

    With z the features standardised to mean 0 and standard deviation 1, and Y the classes coded as -1 and +1 (one
    column for two classes, one per class for more), the weights of every penalty

        W(alpha) = argmin  sum_i p_i || y_i - b - W' z_i ||^2 + alpha || W ||^2

    come from one reduction of Z'PZ, for all data and for all data but each fold (standardised as all data are). The
    penalty that classifies most held-out samples correctly is chosen; ties go to the largest penalty.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), default=None
        Positive penalties; by default 25 values from 1e-2 to 1e6 in equal ratios.
    cv : int or cross-validator, default=5
        Folds; a cross-validator's test folds must hold every sample exactly once. An integer stratifies.
    class_weight : dict or "balanced", default=None
        Weights p of the classes, as in scikit-learn. Standardisation uses the same weights, so that a weight of 2 is
        equivalent to giving every sample of the class twice.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Weights of the features as given.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Scores where all features are 0.
    classes_ : ndarray of shape (n_classes,)
        The labels.
    alpha_ : float
        The chosen penalty.
    alphas_ : ndarray of shape (n_alphas,)
        Penalties tried.
    cv_scores_ : ndarray of shape (n_alphas,)
        Share of held-out samples that each penalty classified correctly.
    best_score_ : float
        Score of the chosen penalty.
    temperature_ : float
        Divisor of the scores in `predict_proba`, fitted to the held-out scores.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of the features, if they were given as strings.

    Notes
    -----
    A penalty alpha on standardised features is dropout of features with rate alpha / (n_samples + alpha), marginalised
    [1]_. Samples are read three times in blocks, and memory beyond them is of order n_features^2, or of order
    n_samples * n_features where features outnumber samples.

    References
    ----------
    .. [1] Wager, Wang and Liang (2013), Dropout training as adaptive regularization.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from reservoir.readouts import RidgeSweepClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> RidgeSweepClassifier().fit(X, y).predict(X[[0, 60, 140]])
    array([0, 1, 2])
    """

    def __init__(
        self,
        alphas: npt.ArrayLike | None = None,
        *,
        cv: int | BaseCrossValidator = 5,
        class_weight: Mapping[Any, float] | str | None = None,
    ) -> None:
        self.alphas = alphas
        self.cv = cv
        self.class_weight = class_weight

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit every penalty to features X (n_samples, n_features) and labels y (n_samples,), and choose one.

        A sample of weight 2 counts as two samples; a sample of weight 0 is ignored.
        """
        checked, labels = _validate(self, X, y, dtype=[np.float64, np.float32])
        weights = sample_weights(sample_weight, checked)
        self.classes_, codes, self._targets = code_labels(labels, self.class_weight, weights)
        self.temperature_ = self._sweep(checked, codes[:, None], codes, self._targets, weights).temperature
        return self

    def decision_function(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the scores of samples: (n_samples,) for two classes, else (n_samples, n_classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the labels (n_samples,) of samples (n_samples, n_features)."""
        scores = self._scores(X)  # first, as it raises NotFittedError
        return self.classes_[self._targets.predict(scores)[:, 0]]

    def predict_proba(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the probability of each class, (n_samples, n_classes): softmax of the scores over the temperature."""
        scores = self._scores(X)
        return self._targets.probabilities(scores, self.temperature_)[:, 0]


class RidgeSweepRegressor(RegressorMixin, _RidgeSweep):
    """Ridge regression on standardised features whose penalty is chosen exactly, from K-fold moments.

    With z the features standardised to mean 0 and standard deviation 1, the weights of every penalty

        W(alpha) = argmin  sum_i || y_i - b - W' z_i ||^2 + alpha || W ||^2

    come from one reduction of Z'Z, for all data and for all data but each fold. The penalty with the highest R^2 of
    held-out samples, averaged over targets, is chosen; ties go to the largest penalty.

    Parameters
    ----------
    alphas : array-like of shape (n_alphas,), default=None
        Positive penalties; by default 25 values from 1e-2 to 1e6 in equal ratios.
    cv : int or cross-validator, default=5
        Folds; a cross-validator's test folds must hold every sample exactly once.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Weights of the features as given.
    intercept_ : float or ndarray of shape (n_targets,)
        Prediction where all features are 0.
    alpha_ : float
        The chosen penalty.
    alphas_ : ndarray of shape (n_alphas,)
        Penalties tried.
    cv_scores_ : ndarray of shape (n_alphas,)
        R^2 of each penalty over all held-out samples, averaged over targets.
    best_score_ : float
        Score of the chosen penalty.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of the features, if they were given as strings.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from reservoir.readouts import RidgeSweepRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(RidgeSweepRegressor().fit(X, y).best_score_, 2)
    0.5
    """

    def __init__(self, alphas: npt.ArrayLike | None = None, *, cv: int | BaseCrossValidator = 5) -> None:
        self.alphas = alphas
        self.cv = cv

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit every penalty to X (n_samples, n_features) and y, (n_samples,) or (n_samples, n_targets); choose one.

        A sample of weight 2 counts as two samples; a sample of weight 0 is ignored.
        """
        checked, values = _validate(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)
        columns = np.asarray(values, np.float64).reshape(len(values), -1)
        self._sweep(checked, columns, columns, Targets(columns.shape[1], 0), sample_weights(sample_weight, checked))
        if values.ndim == 1:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        return self

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of samples (n_samples, n_features)."""
        return self._scores(X)

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def code_labels(
    labels: np.ndarray, class_weight: Mapping[Any, float] | str | None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Targets]:
    """Return the classes, the class number of each sample, and the coding of the labels.

    Classes whose samples all have weight 0 are left out, and these samples get an arbitrary number.
    """
    check_classification_targets(labels)
    counted = labels if weights is None else labels[weights > 0]
    classes = np.unique(counted)
    if len(classes) < 2:
        raise ValueError(f"y has 1 class, {classes[0]!r}; a classifier needs at least two classes")
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    by_class = None
    if isinstance(class_weight, str) and class_weight == "balanced":
        by_class = balanced_weights(np.bincount(codes, weights))
    elif class_weight is not None:
        by_class = tuple(compute_class_weight(class_weight, classes=classes, y=counted).tolist())
    return classes, codes, Targets(1, len(classes), by_class)


def sample_weights(given: npt.ArrayLike | None, x: np.ndarray) -> np.ndarray | None:
    """Return the weights (n,) of samples, or None if none are given; raise `ValueError` if one is not 0 or more."""
    if given is None:
        return None
    values = np.asarray(given, np.float64)
    weights = np.full(len(x), values) if values.ndim == 0 else column_or_1d(values)
    check_consistent_length(x, weights)
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("sample_weight has a value that is negative or not finite")
    if not weights.any():
        raise ValueError("sample_weight is zero for every sample; give at least one a weight")
    return weights


def drop_weightless(x: np.ndarray, y: np.ndarray, fold: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the samples whose weight is not 0, with their folds (n,) or (n, repeats) renumbered from 0."""
    kept = weights > 0
    repeats = fold[kept].reshape(int(kept.sum()), -1).T
    numbered = np.stack([np.unique(repeat, return_inverse=True)[1] for repeat in repeats], axis=1)
    return x[kept], y[kept], numbered.reshape(-1, *fold.shape[1:]), weights[kept]


def fold_numbers(
    cv: Any, x: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, *, classifier: bool
) -> np.ndarray:
    """Return the fold of each sample, (n,); raise `ValueError` if a sample is not held out exactly once."""
    fold, times = np.zeros(len(x), np.int64), np.zeros(len(x), np.int64)
    for k, (_, held) in enumerate(_check_cv(cv, labels, classifier=classifier).split(x, labels, groups)):
        fold[held] = k
        times[held] += 1
    if (times != 1).any():
        row = int(np.argmax(times != 1))
        raise ValueError(f"cv={cv!r} holds sample {row} out {times[row]} times; use folds that hold each out once")
    return fold
