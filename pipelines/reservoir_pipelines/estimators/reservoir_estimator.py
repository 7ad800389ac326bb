"""What the estimators of sequences share: from raw sequences to features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from reservoir import InputError
from reservoir.features import check_lengths
from reservoir.plan import RAW, Plan, resolve
from reservoir.raw_input import raw_features
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir_pipelines.estimators.parameters import extract_options
from reservoir_pipelines.estimators.rowcache import FoundRows, shared_cache, shared_model
from reservoir_pipelines.estimators.sequences import (
    Rows,
    as_rows,
    holds_texts,
    is_list,
    padded,
    read_vocabulary,
    scaling_of,
    with_channels_last,
)
from reservoir_pipelines.workspace import ROWS, cache_root

# scikit-learn's own defaults for these parameters are strings and integers, from which type checkers infer too little.
_validate: Callable[..., Any] = validate_data


class ReservoirEstimator(BaseEstimator):
    """Base of the estimators of raw sequences, which document the parameters."""

    vocabulary_: int | None
    n_features_in_: int
    _plan: Plan
    layers: str | Sequence[str] | None
    pool: str | Sequence[str] | None
    vocabulary: int | None
    channels_first: bool
    standardise: bool
    cache: str | Path | None
    device: str
    compute: str

    def __sklearn_tags__(self) -> Any:
        """Declare that X may have three dimensions."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _checked(self, x: Any, *more: Any, reset: bool, **checks: Any) -> tuple[Any, np.ndarray]:
        """Return X (and y) as scikit-learn's checks return them, and the length of each sequence."""
        lengths = None
        if holds_texts(x):
            raise ValueError("X holds texts; give their letters as numbers, [list(text.encode()) for text in X]")
        x = with_channels_last(x, channels_first=self.channels_first, warn=reset)
        if is_list(x):
            x, lengths = padded(x, 0 if reset else self.n_features_in_)
            if not reset:  # new sequences may be longer, which scikit-learn's own check refuses
                return check_array(x, allow_nd=True), lengths
        found = _validate(self, x, *more, dtype="numeric", allow_nd=True, reset=reset, **checks)
        values = found[0] if more else found
        full = np.full(len(values), values.shape[1], np.int32)
        return found, full if lengths is None else lengths

    def _learn(self, x: np.ndarray, lengths: np.ndarray, weights: np.ndarray | None = None) -> Rows:
        """Resolve the plan for the data and learn the scale of values; return X as rows."""
        self.vocabulary_ = read_vocabulary(x, lengths) if self.vocabulary is None else self.vocabulary
        rows = as_rows(x, lengths, self.vocabulary_)
        self.n_channels_in_ = rows.x.shape[2] if rows.x.ndim == 3 else 1
        form = Vectors(self.n_channels_in_) if self.vocabulary_ is None else Tokens(self.vocabulary_)
        self._task = Task(name=ROWS, form=form, max_tokens=x.shape[1], classes=0)
        # Kept for predict: another machine may choose another precision, or have other weights under this name.
        self._plan = resolve(self._task, extract_options(self), {"train": len(x)})
        self.columns_ = list(self._plan.columns)
        self._digest = self._model().digest
        self._scaling = scaling_of(x, rows, self._task, weights, standardise=self.standardise)
        return rows.scaled(self._scaling) if self._scaling else rows

    def _rows(self, x: Any) -> Rows:
        """Return new sequences in the form of those that this was fitted on."""
        check_is_fitted(self)
        checked, lengths = self._checked(x, reset=False)
        rows = as_rows(checked, lengths, self.vocabulary_)
        channels = rows.x.shape[2] if rows.x.ndim == 3 else 1
        if channels != self.n_channels_in_:
            raise ValueError(
                f"X has {channels} channels, but {type(self).__name__} was fitted on {self.n_channels_in_}"
            )
        return rows.scaled(self._scaling) if self._scaling else rows

    def _features(self, rows: Rows) -> Callable[[str], np.ndarray]:
        """Return a function from the name of a column, or of several joined by a plus, to features (rows, width)."""
        found: list[FoundRows] = []  # filled when first needed: the raw input needs no model

        def part(name: str) -> np.ndarray:
            if name == RAW:
                return raw_features(self._task, None, rows.x, rows.lengths)
            if not found:
                found.append(self._found(rows))
            return found[0].column(name)

        return lambda name: np.concatenate([part(one) for one in name.split("+")], axis=1)

    def _found(self, rows: Rows) -> FoundRows:
        model = self._model()
        if model.digest != self._digest:
            raise InputError(
                f"the weights of {self._plan.reservoir.backbone!r} have changed since this was fitted; "
                "restore them, or fit again"
            )
        check_lengths(model, rows.lengths, "X, row")
        root = cache_root(None if self.cache is None else Path(self.cache)).resolve()
        # All columns are computed, not only the chosen one: another fold may choose another for the same rows.
        return shared_cache(root, model, self._plan).find(model, rows.x, rows.lengths)

    def _model(self) -> LoadedModel:
        return shared_model(self._task, self._plan.reservoir, self.device, self._plan.compute)
