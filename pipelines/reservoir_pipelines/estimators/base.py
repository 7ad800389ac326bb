"""What all estimators do: read X, resolve the plan for it, and compute features of rows; and their parameters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from reservoir import options as opt
from reservoir.batches import check_lengths
from reservoir.column import RAW, Baseline, Column, Columns
from reservoir.errors import nearest
from reservoir.loaded_model import LoadedModel
from reservoir.option_fields import keyword
from reservoir.plan.resolved import Plan, resolve
from reservoir.raw_input import longer_rows_note, raw_features
from reservoir.tasks.source import full_lengths
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir_pipelines.estimators.padded_rows import (
    PaddedRows,
    as_rows,
    is_list,
    pad_sequences,
    read_vocabulary,
    scaling_of,
    unnested,
    with_channels_last,
    with_whole_numbers,
)
from reservoir_pipelines.estimators.row_cache import ROWS_TASK, row_cache, shared_model
from reservoir_pipelines.signatures import described
from reservoir_pipelines.training.checkpoints import check_digest

K = TypeVar("K", bound=type)


@dataclass
class EstimatorOptions:
    """The parameters of the estimators that are not options of `extract`."""

    vocabulary: int | None = opt.option(
        None,
        "Number of symbols in X (whole numbers below it)",
        shown="the rules of `extract` choose symbols or values",
    )
    channels_first: bool = opt.option(
        False,
        "Whether X is (samples, channels, values), or a list of (channels, values), as in aeon and sktime",
    )
    alphas: Sequence[float] | None = opt.option(
        None,
        "Positive penalties",
        shown="25 from 1e-2 to 1e6 on a log scale, more if the first or last is best",
    )
    cv: int | Iterable[Any] | None = opt.option(
        None,
        "Folds, or a cross-validator that holds each sample out once, by which column and penalty are chosen",
        shown="five folds, repeated five times below 200 samples and three times below 600; three from 2,000 on",
    )
    class_weight: str | Mapping[Any, float] | None = opt.option(
        None, "``balanced`` or weights by class, as in scikit-learn"
    )


OPTIONS = (
    *fields(opt.ReservoirOptions),
    *(item for item in fields(opt.FeatureOptions) if item.name in ("layers", "pool")),
    *(item for item in fields(opt.OwnDataOptions) if item.name in ("missing", "standardise")),
    *fields(opt.DeviceOptions),
    *fields(opt.ComputeOptions),
)
"""The options of `extract` that are parameters of all estimators."""


def with_parameters(*own: str) -> Any:
    """Return a decorator that gives a class a constructor and documents its parameters.

    They are `OPTIONS`, and the fields of `EstimatorOptions` that are named in ``own``.
    """
    items = [*OPTIONS, *(item for item in fields(EstimatorOptions) if item.name in own)]
    defaults = {item.name: item.default for item in items}

    def decorate(kind: K) -> K:
        def __init__(self: Any, **parameters: Any) -> None:
            if unknown := parameters.keys() - defaults.keys():
                name = min(unknown)
                raise TypeError(f"{kind.__name__} has no parameter {name!r}{nearest(name, defaults)}")
            vars(self).update(defaults | parameters)

        # scikit-learn's `clone` and `get_params` read the names of parameters from the signature.
        self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        keywords = [keyword(name, default) for name, default in defaults.items()]
        vars(__init__)["__signature__"] = inspect.Signature([self_parameter, *keywords])
        kind.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
        # The docstring of the class says by "{parameters}" where they are described.
        section = "\n".join(["Parameters", "----------", *map(described, items)])
        kind.__doc__ = (inspect.getdoc(kind) or "").replace("{parameters}", section)
        return kind

    return decorate


# scikit-learn's own defaults for these parameters are strings and integers, from which type checkers infer too little.
_validate: Callable[..., Any] = validate_data

# scikit-learn's word for a y that is not passed. None is a y that the user gave, which `validate_data` refuses.
NO_Y = "no_validation"


def refuse_missing(name: str, values: np.ndarray) -> None:
    """Raise `ValueError` that names the first sample whose labels or group are missing.

    ``values`` are (n,) or (n, outputs), and ``name`` is theirs in the message.
    """
    from pandas import isna

    is_missing = isna(values).reshape(len(values), -1).any(axis=1)  # (n,)
    if is_missing.any():
        raise ValueError(
            f"{name}[{is_missing.argmax()}] is missing; give every sample a value, or leave it out"
        )


def _refuse_one_row(x: Any, values: int, channels: int, *, channels_first: bool) -> None:
    """Raise `ValueError` for X that is a single sequence and not rows.

    ``values`` and ``channels`` are those of the rows that the estimator was fitted on.
    """
    # A sequence may be an array, a column of pandas, a list of numbers, or a list of the channels of each value.
    is_column = hasattr(x, "to_numpy") and np.ndim(x) == 1
    is_list_of_numbers = isinstance(x, list) and len(x) > 0 and np.ndim(x[0]) == 0
    is_list_of_channels = isinstance(x, list) and channels > 1 and {*map(np.shape, x)} == {(channels,)}
    array = np.asarray(x) if is_column or is_list_of_numbers or is_list_of_channels else x
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return  # a list of sequences, a table, or no numbers: other checks judge these
    is_one_row = array.ndim == 1
    if array.ndim == 2:
        axis_of_channels = 0 if channels_first else 1
        is_one_row = array.shape[axis_of_channels] == channels
        if channels == 1:
            # An array of rows of one channel is (rows, values), so (values, 1) may also be rows of one value each. It
            # is one row only if it has as many values as the rows of `fit`, and these had more than one.
            is_one_row &= not channels_first and values > 1 and len(array) == values
    if is_one_row:
        # scikit-learn's checks of estimators look for its words "Reshape your data".
        raise ValueError(
            f"X is one row, of shape {array.shape}. Reshape your data: for one row: x[:1], not x[0]"
        )


def _refuse_shared_names(column_names: Sequence[Any]) -> None:
    """Raise `ValueError` if two columns of a table have the same name, which scikit-learn refuses in many lines."""
    if len(set(column_names)) < len(column_names):
        name = next(name for number, name in enumerate(column_names) if name in column_names[:number])
        raise ValueError(f"X has several columns named {name!r}; give every column a name of its own")


class ReservoirEstimator(BaseEstimator):
    """Base class of the estimators of raw sequences, which computes their features."""

    # set by `fit`
    vocabulary_: int | None  # number of symbols; None for values
    n_features_in_: int  # values of the longest sequence
    _plan: Plan
    # parameters
    vocabulary: int | None
    channels_first: bool
    missing: str
    standardise: bool
    device: str

    def __sklearn_tags__(self) -> Any:
        """Declare that X may have three dimensions, and whether it may hold NaN."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "refuse"
        return tags

    def _check_own_parameters(self) -> None:
        """Raise `ValueError` for wrong values of ``vocabulary`` and ``channels_first``, which no option checks."""
        is_number = isinstance(self.vocabulary, Integral) and not isinstance(self.vocabulary, bool)
        if self.vocabulary is not None and not (is_number and self.vocabulary >= 1):
            raise ValueError(f"vocabulary={self.vocabulary!r}: give a whole number from 1 on, or None")
        if not isinstance(self.channels_first, bool | np.bool_):
            raise ValueError(f"channels_first={self.channels_first!r}: give True or False")

    def _checked(self, x: Any, y: Any = NO_Y, *, reset: bool, **checks: Any) -> tuple[Any, np.ndarray]:
        """Return what scikit-learn's checks return, X or with a y the pair (X, y), and the lengths of sequences (n,).

        ``reset`` is True in `fit`, which records the columns and the number of values of X, and False for new data,
        which must match them. ``checks`` are further arguments of scikit-learn's `check_array` or `check_X_y`.
        """
        if reset:
            self._check_own_parameters()
        # A table of series becomes a list of sequences, whose columns are channels.
        column_names: list[str] = list(getattr(x, "columns", ()))
        _refuse_shared_names(column_names)
        x = with_whole_numbers(unnested(x))
        if isinstance(x, list | np.ndarray) and len(x) and isinstance(x[0], str):
            raise ValueError("X holds texts; pass the codes of letters, [list(t.encode()) for t in X]")
        # The channels of a table are its columns, and those of its sequences are last now.
        channels_first = self.channels_first and len(column_names) < 2
        x = with_channels_last(x, channels_first=channels_first, warn=reset)
        # `as_rows` refuses NaN: the general message of scikit-learn does not name the parameter ``missing``.
        checks |= {"dtype": "numeric", "allow_nd": True, "ensure_all_finite": "allow-nan"}
        if reset:
            self._column_names = column_names
        if is_list(x) and not reset:
            return self._checked_new_list(x, column_names, **checks)
        # Sequences in a list may have several lengths, and are padded. Those of an array all have its full length.
        padded_lengths: np.ndarray | None = None
        if is_list(x):
            x, padded_lengths = pad_sequences(x)
        # In fit, scikit-learn records the number of values and the names of columns; a new array must match them.
        checked = _validate(self, x, y, reset=reset, **checks)
        if padded_lengths is not None:
            return checked, padded_lengths
        checked_x = checked if y is NO_Y else checked[0]
        return checked, full_lengths(checked_x)

    def _checked_new_list(
        self, x: Any, column_names: list[str], **checks: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a list of new sequences as one checked array, and their lengths (n,).

        ``column_names`` are those of the table from which the list was made; empty if there was none. ``checks`` are
        further arguments of scikit-learn's `check_array`.
        """
        # scikit-learn does not see the names of the channels in a list, so their order is checked here. Lists and
        # arrays have no names, and the only channel of a table may have any name.
        both_name_several_channels = len(column_names) > 1 and len(self._column_names) > 1
        if both_name_several_channels and column_names != self._column_names:
            raise ValueError(
                f"X has the columns {column_names}; "
                f"give the columns of fit in their order: {self._column_names}"
            )
        # New sequences are padded at least to the length of those of `fit`. They may be longer, which `validate_data`
        # would refuse, so `check_array` checks them.
        padded, lengths = pad_sequences(x, self.n_features_in_)
        return check_array(padded, **checks), lengths

    def _plan_and_scale(
        self, x: np.ndarray, lengths: np.ndarray, weights: np.ndarray | None = None
    ) -> PaddedRows:
        """Resolve the plan for the data and learn the scale of values; return X as scaled rows.

        Both are stored as attributes. ``x`` is checked, ``lengths`` (n,) are in values, and ``weights`` (n,) are sample
        weights.
        """
        options = opt.ExtractOptions(
            **{item.name: getattr(self, item.name) for item in OPTIONS}, store="float32"
        )
        self.vocabulary_ = read_vocabulary(x, lengths) if self.vocabulary is None else self.vocabulary
        rows = as_rows(x, lengths, self.vocabulary_, self.missing)
        self.n_channels_in_ = rows.channels
        form = Vectors(self.n_channels_in_) if self.vocabulary_ is None else Tokens(self.vocabulary_)
        self._task = Task(name=ROWS_TASK, form=form, max_tokens=x.shape[1], classes=0)
        # Plan and digest are stored for `predict`, because another machine may choose another precision, or have other
        # weights of this name.
        self._plan = resolve(self._task, options, {"train": len(x)})
        self.columns_ = [str(column) for column in self._plan.columns]
        self._digest = self._model().digest
        self._scaling = scaling_of(x, rows, self._task, weights, standardise=self.standardise)
        return rows.scaled(self._scaling)

    def _rows(self, x: Any) -> PaddedRows:
        """Return new sequences as scaled rows in the form of those of `fit`; raise `ValueError` for other forms."""
        check_is_fitted(self)
        # With missing="mask", every channel has a further one that marks its gaps.
        channels = self.n_channels_in_ // (2 if self.missing == "mask" else 1)
        _refuse_one_row(x, self.n_features_in_, channels, channels_first=self.channels_first)
        checked, lengths = self._checked(x, reset=False)
        rows = as_rows(checked, lengths, self.vocabulary_, self.missing)
        if rows.channels != self.n_channels_in_:
            problem = f"X has {rows.channels} channels, but {type(self).__name__} was fitted on"
            raise ValueError(f"{problem} {self.n_channels_in_}")
        return rows.scaled(self._scaling)

    def _features(self, rows: PaddedRows) -> Callable[[Column | Baseline], np.ndarray]:
        """Return a function from a column, or the raw input, to its features (rows, width)."""

        # Both functions are called only when needed, and once: the raw input needs no model.
        @cache
        def features_of_columns() -> dict[str, np.ndarray]:
            model = self._model()
            check_digest(model, self._digest, type(self).__name__)
            check_lengths(model, rows.lengths, "X, row")
            # All columns are computed, because other folds may choose other columns for the same rows.
            return row_cache.features(model, self._plan, rows.x, rows.lengths)

        @cache
        def features_of_raw_input() -> np.ndarray:
            return raw_features(self._task, None, rows.x, rows.lengths)  # None: the rows are scaled already

        def features(column: Column | Baseline) -> np.ndarray:
            return features_of_raw_input() if column == RAW else features_of_columns()[str(column)]

        return features

    def _joined_features(self, rows: PaddedRows, columns: Columns) -> np.ndarray:
        """Return the features (rows, width) of columns side by side; warn if these read new rows only in part."""
        if note := longer_rows_note(columns, self._task, rows.lengths):
            # The line of the user that called `predict` or `transform`, which scikit-learn wraps.
            warnings.warn(f"X: {note}", stacklevel=4)
        features = self._features(rows)
        return np.concatenate([features(column) for column in columns], axis=1)

    def _model(self) -> LoadedModel:
        """Return the model of the plan, which all estimators of this process share."""
        return shared_model(self._task, self._plan.reservoir, self.device, self._plan.compute)
