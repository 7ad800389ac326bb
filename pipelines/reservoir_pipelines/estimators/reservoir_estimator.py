"""From raw sequences to features and back to scikit-learn: what the two estimators over sequences share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.utils.validation import check_is_fitted, validate_data

from reservoir import InputError
from reservoir.options import ReservoirOptions
from reservoir.reservoir import LoadedModel, Reservoir, choose_compute, choose_device
from reservoir.tasks import read_integers
from reservoir.tasks.task import Tokens, Vectors
from reservoir_pipelines.estimators.parameters import options_of
from reservoir_pipelines.estimators.rowcache import FoundRows, shared_cache, shared_model
from reservoir_pipelines.extraction.plan import choose_columns
from reservoir_pipelines.workspace import cache_root

# scikit-learn's own defaults for these parameters are strings and integers, from which type checkers infer too little.
_validate: Callable[..., Any] = validate_data
_check_cv: Callable[..., Any] = check_cv


class ReservoirEstimator(BaseEstimator):
    """What `ReservoirClassifier` and `ReservoirRegressor` share; their parameters are described there."""

    readout_: Any
    vocabulary_: int | None
    layers: str | Sequence[str]
    pool: str | Sequence[str]
    vocabulary: int | None
    alphas: npt.ArrayLike | None
    cv: int | BaseCrossValidator
    cache: str | Path | None
    device: str
    compute: str

    def __sklearn_tags__(self) -> Any:
        """Declare that sequences of several channels are taken too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _choose(self, x: np.ndarray, y: np.ndarray, make: Callable[[Any], Any], *, classifier: bool) -> None:
        """Fit a readout to every column and keep the best: of equal ones the largest penalty, then the first."""
        self._settings = Reservoir.choose(options_of(self, ReservoirOptions))
        # Kept for predict: another machine may choose another precision, or have other weights under this name.
        self._compute = choose_compute(self.compute, choose_device(self.device))
        model = self._model(x)
        self.columns_ = list(choose_columns(model, self.layers, self.pool))
        self._digest = model.digest
        splits = list(_check_cv(self.cv, y, classifier=classifier).split(x, y))
        rows, scores, best = self._features(x), [], None
        for column in self.columns_:
            readout = make(splits).fit(rows.column(column), y)
            scores.append(readout.cv_scores_)
            merit = readout.best_score_, readout.alpha_
            if best is None or merit > best[0]:
                best = merit, column, readout
        assert best is not None
        (self.best_score_, self.alpha_), self.column_, self.readout_ = best
        self.alphas_, self.cv_scores_ = self.readout_.alphas_, np.stack(scores)

    def _read(self, x: npt.ArrayLike) -> np.ndarray:
        """Return what the readout sees of new sequences, (n_samples, width)."""
        check_is_fitted(self)
        return self._features(self._sequences(self._checked(x, reset=False), reset=False)).column(self.column_)

    def _features(self, x: np.ndarray) -> FoundRows:
        model = self._model(x)
        if model.digest != self._digest:
            raise InputError(
                f"the weights of {self._settings.backbone!r} are no longer those this was fitted on; bring them back, "
                "or fit again"
            )
        root = cache_root(None if self.cache is None else Path(self.cache)).resolve()
        # Every column, and not the chosen one alone: another fold may choose another for the same rows.
        return shared_cache(root, model, tuple(self.columns_)).find(model, x)

    def _model(self, x: np.ndarray) -> LoadedModel:
        form = Vectors(x.shape[2]) if self.vocabulary_ is None else Tokens(self.vocabulary_)
        return shared_model(form, x.shape[1], self._settings, self.device, self._compute)

    def _checked(self, x: npt.ArrayLike, *more: Any, reset: bool = True, **options: Any) -> Any:
        """Return what scikit-learn's checks leave of X (and y); a shape or value that does not fit is a ValueError."""
        return _validate(self, x, *more, dtype="numeric", allow_nd=True, reset=reset, **options)

    def _sequences(self, x: np.ndarray, *, reset: bool) -> np.ndarray:
        """Return checked X as rows: (n, values, channels) of float32, or (n, tokens) of int64."""
        if reset:
            self.vocabulary_ = _read_vocabulary(x) if self.vocabulary is None else self.vocabulary
        channels = x.shape[2] if x.ndim == 3 else 1
        if x.ndim > 3 or (self.vocabulary_ is not None and x.ndim > 2):
            want = "(rows, values) or (rows, values, channels)" if self.vocabulary_ is None else "(rows, tokens)"
            raise ValueError(f"X has the shape {x.shape}; give {want}")
        if reset:
            self.n_channels_in_ = channels
        if channels != self.n_channels_in_:
            raise ValueError(
                f"X has {channels} channels, but {type(self).__name__} was fitted on {self.n_channels_in_}"
            )
        if self.vocabulary_ is not None:
            return _symbols(x, self.vocabulary_)
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:2], channels)
        if not np.isfinite(values).all():
            raise ValueError("X holds values beyond the range of float32; scale it")
        return values


def _read_vocabulary(x: np.ndarray) -> int | None:
    """Return how many symbols X holds, None for values; of integers by the rule of files, which is told."""
    if x.ndim != 2 or x.dtype.kind not in "ui":
        return None
    reading = read_integers(x)
    vocabulary = int(x.max()) + 1 if reading.names else None
    what, other = (f"{vocabulary:,} symbols", "give floats") if vocabulary else ("values", "give a vocabulary")
    warnings.warn(f"X read as {what} ({reading.why}; else {other})", stacklevel=4)
    return vocabulary


def _symbols(x: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return symbols as int64; a ValueError names the first value that is none."""
    wrong = (x < 0) | (x >= vocabulary) | (x != np.floor(x))
    if wrong.any():
        row, token = np.argwhere(wrong)[0]
        raise ValueError(
            f"X[{row}, {token}] is {x[row, token]}, no symbol from 0 to {vocabulary - 1}; give a larger vocabulary"
        )
    return np.ascontiguousarray(x, np.int64)
