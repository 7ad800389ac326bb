"""scikit-learn estimators of raw sequences: a frozen model, with features cached by row, and its readout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from reservoir.column import column_shapes
from reservoir.readouts.linear import LinearReadout, Targets, balanced_weights
from reservoir_pipelines.estimators.base import ReservoirEstimator, with_parameters
from reservoir_pipelines.estimators.predictor import ReservoirPredictor, are_weights


@with_parameters("vocabulary", "channels_first", "alphas", "cv", "class_weight")
class ReservoirClassifier(ClassifierMixin, ReservoirPredictor):
    """Classifier of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    Sequences go through a fixed input layer and a frozen backbone; the hidden states of each layer,
    pooled over the tokens, are a column. Ridge readouts with every penalty are fitted to single
    columns and to several columns; the one with the best held-out accuracy is kept, and the raw input
    only if it is better by more than a standard error (see the rules of `fit`). Defaults are as in
    `extract` and `fit`, but the raw input has a ridge readout alone; `fit` also tries logistic
    regression for it, and statistics of it.

    Features are cached in this process under the SHA-256 of the row, up to 1 GiB, so each distinct row
    goes through the model once, whatever the penalties, class weights and ``cv``. Values are
    standardised by the training samples, so in ``cross_val_score`` a row goes through the model once
    per fold, or once in total with ``standardise=False``. With ``n_jobs``, a row may go through the
    model once in each process.

    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels; with several labels for each sample, the numbers of the columns of y.
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
        Accuracy of the chosen readout on held-out samples; balanced accuracy with ``class_weight``, and
        R² of a regressor.
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
        """Return the class numbers (n, outputs) and their coding; set ``classes_``."""
        self.classes_, codes, targets = code_labels(labels, vars(self)["class_weight"], weights)
        self._is_multilabel = labels.ndim == 2  # whether a sample may have several labels
        return codes.reshape(len(codes), -1), targets

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the scores of sequences: (n_samples,) for two classes, else (n_samples, n_classes)."""
        scores = self._apply(LinearReadout.scores, X)
        is_binary = len(self.classes_) == 2 and not self._is_multilabel
        return scores[:, 0] if is_binary else scores

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the labels (n_samples,) of sequences, or 0 and 1 (n_samples, n_classes) if they have several."""
        class_numbers = self._apply(LinearReadout.predict, X)  # (n_samples, outputs)
        return class_numbers if self._is_multilabel else self.classes_[class_numbers[:, 0]]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probability of each class, (n_samples, n_classes)."""
        # (n_samples, outputs, classes of an output)
        probabilities = self._apply(LinearReadout.probabilities, X)
        # With several labels, each is an output of two classes: 0 and 1. Otherwise there is one output.
        return probabilities[:, :, 1] if self._is_multilabel else probabilities[:, 0]

    def __sklearn_tags__(self) -> Any:
        """Declare that a sample may have several labels."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@with_parameters("vocabulary", "channels_first", "alphas", "cv")
class ReservoirRegressor(RegressorMixin, ReservoirPredictor):
    """Regressor of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    It works like `ReservoirClassifier` and has the same attributes except ``classes_``; the readout
    with the best R² on held-out samples, averaged over targets, is kept.

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

    _checks_of_y: ClassVar = {"multi_output": True, "y_numeric": True}

    def _coded(self, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        """Return the targets (n, n_targets) and their coding; they do not depend on the weights."""
        self._has_single_target = labels.ndim == 1
        values = np.asarray(labels, np.float64).reshape(len(labels), -1)
        return values, Targets(outputs=values.shape[1], classes=0)  # no classes: values

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of sequences."""
        scores = self._apply(LinearReadout.scores, X)
        return scores[:, 0] if self._has_single_target else scores

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@with_parameters("vocabulary", "channels_first")
class ReservoirTransformer(TransformerMixin, ReservoirEstimator):
    """Features of raw sequences: the hidden states of a frozen sequence model, pooled over the tokens.

    Sequences go through a fixed input layer and a frozen backbone; each layer under each pooling is a
    column, and the columns are concatenated. Defaults depend on the data as those of `extract` do.
    Rows are cached as in `ReservoirClassifier`. Labels are not used.

    {parameters}

    Attributes
    ----------
    columns_ : list of str
        Columns, such as ``block01/mean``, in the order of the features.
    vocabulary_, n_features_in_, n_channels_in_, feature_names_in_
        As in `ReservoirClassifier`.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from reservoir_pipelines import ReservoirTransformer
    >>> model = make_pipeline(ReservoirTransformer(pool="mean,max"), RandomForestClassifier())
    """

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Resolve the options that depend on the data, and learn the scale of values.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), or list of arrays
            Sequences. If their lengths differ, give a list of arrays (n_values,) or (n_values, n_channels).
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        checked, lengths = self._checked(X, reset=True)
        self._plan_and_scale(checked, lengths)
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Return the features of sequences, (n_samples, n_features) of float32."""
        return self._joined_features(self._rows(X), self._plan.columns)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the name of each feature, such as ``block01/mean/17``; ``input_features`` is ignored."""
        check_is_fitted(self)
        shapes = column_shapes(self._task, self._model().fpt.backbone.width, self._plan.columns)
        names = [
            f"{column}/{number}"
            for column, (tokens, width) in shapes.items()
            for number in range(tokens * width)
        ]
        return np.array(names, object)

    def __sklearn_tags__(self) -> Any:
        """Declare that features are float32, whatever the type of X."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def code_labels(
    labels: np.ndarray, class_weight: Mapping[Any, float] | str | None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Targets]:
    """Return the classes, the class number of each sample, and the coding of the labels.

    Labels are (n,) of any type, and the numbers are (n,). Classes whose samples all have weight 0 are left out, and
    these samples get the number of another class. Or labels are (n, classes), 1 for the classes of a sample and 0 for
    the others, which are the numbers; the classes are then the numbers of the columns. ``weights`` (n,) are sample
    weights.
    """
    check_classification_targets(labels)
    if labels.ndim == 2:
        are_zeros_and_ones = np.isin(labels, (0, 1)).all()
        if not are_zeros_and_ones or class_weight is not None:
            raise ValueError(
                f"y has the shape {labels.shape}: give multilabel targets as 0 or 1, without class_weight, "
                "or use MultiOutputClassifier of scikit-learn"
            )
        outputs = labels.shape[1]
        return np.arange(outputs), labels.astype(np.int64), Targets(outputs, classes=2)
    # The classes of samples with a weight. `searchsorted` gives a sample of another class the number of the class after
    # it in order, or one too many.
    weighted_labels = labels if weights is None else labels[weights > 0]
    classes = np.unique(weighted_labels)
    if len(classes) < 2:
        raise ValueError(f"y has 1 class, {classes[0]!r}; a classifier needs at least two classes")
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    class_weights: tuple[float, ...] | None = None
    if isinstance(class_weight, str) and class_weight == "balanced":
        # By the sample weights of each class, which scikit-learn's function does not take.
        class_weights = balanced_weights(np.bincount(codes, weights))
    elif class_weight is not None:
        weights_in_order = compute_class_weight(class_weight, classes=classes, y=weighted_labels)
        if not are_weights(weights_in_order):
            raise ValueError("class_weight needs finite values of at least zero, not all of them zero")
        class_weights = tuple(weights_in_order.tolist())
    return classes, codes, Targets(1, len(classes), class_weights)
