"""A scikit-learn regressor of raw sequences: a frozen model and a linear readout, with features cached by row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from reservoir.readouts import Targets
from reservoir_pipelines.estimators.parameters import with_parameters
from reservoir_pipelines.estimators.predictor import ReservoirPredictor


@with_parameters("vocabulary", "channels_first", "alphas", "cv")
class ReservoirRegressor(RegressorMixin, ReservoirPredictor):
    """Regressor of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    It works like `ReservoirClassifier` and has the same attributes but ``classes_``; the readout with the best R² on
    held-out samples, averaged over targets, is kept.

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

    _checks: ClassVar = {"multi_output": True, "y_numeric": True}

    def _coded(self, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        self._single = labels.ndim == 1
        values = np.asarray(labels, np.float64).reshape(len(labels), -1)
        return values, Targets(values.shape[1], 0)

    def predict(self, X: npt.ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of sequences."""
        scores = self._scores(X)
        return scores[:, 0] if self._single else scores

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
