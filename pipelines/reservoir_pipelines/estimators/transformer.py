"""A scikit-learn transformer of raw sequences: the pooled hidden states of a frozen model, cached by row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from reservoir.features import column_shapes
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.reservoir_estimator import ReservoirEstimator


@with_parameters("vocabulary", "channels_first")
class ReservoirTransformer(TransformerMixin, ReservoirEstimator):
    """Features of raw sequences: the hidden states of a frozen sequence model, pooled over the tokens.

    Sequences go through a fixed input layer and a frozen backbone; each layer under each pooling is a column, and the
    columns stand side by side. Defaults depend on the data as those of `extract` do. Rows are cached as in
    `ReservoirClassifier`. Labels are not used.

    {parameters}

    Attributes
    ----------
    columns_ : list of str
        Columns, such as ``block01/mean``, in the order of the features.
    vocabulary_ : int or None
        Number of symbols that X holds; None for values.
    n_features_in_ : int
        Length of the longest sequence, in values of a channel.
    n_channels_in_ : int
        Channels of each value; 1 for X of two dimensions.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of the columns of X, if X has any.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from reservoir_pipelines import ReservoirTransformer
    >>> model = make_pipeline(ReservoirTransformer(pool="mean,max"), RandomForestClassifier())
    """

    def fit(self, X: npt.ArrayLike, y: Any = None) -> Self:
        """Resolve the options that depend on the data, and learn the scale of values.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), or list of arrays
            Sequences; of unequal length as a list of arrays (n_values,) or (n_values, n_channels).
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        checked, lengths = self._checked(X, reset=True)
        self._learn(checked, lengths)
        return self

    def transform(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the features of sequences, (n_samples, n_features) of float32."""
        rows = self._rows(X)
        return self._features(rows)("+".join(self.columns_))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the name of each feature, such as ``block01/mean/17``; ``input_features`` is ignored."""
        check_is_fitted(self)
        shapes = column_shapes(self._task, self._model().fpt.backbone.width, self.columns_)
        return np.array([f"{c}/{i}" for c, (tokens, width) in shapes.items() for i in range(tokens * width)], object)

    def __sklearn_tags__(self) -> Any:
        """Declare that features are float32, whatever the type of X."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
