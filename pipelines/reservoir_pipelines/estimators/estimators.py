"""scikit-learn estimators of raw sequences: a frozen model, with features cached by row, and its readout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from reservoir import options as opt
from reservoir.column import RAW, Baseline, Column, Columns, parse_columns
from reservoir.errors import nearest
from reservoir.features import check_lengths, column_shapes
from reservoir.option_fields import keyword
from reservoir.plan import Plan, default_columns, resolve
from reservoir.raw_input import raw_features
from reservoir.readouts.estimators import check_sample_weights, code_labels, fold_numbers, renumbered
from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.reservoir import LoadedModel
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
)
from reservoir_pipelines.estimators.row_cache import row_cache
from reservoir_pipelines.estimators.shared_model import TASK, shared_model
from reservoir_pipelines.fitting.array_source import ArrayColumns
from reservoir_pipelines.fitting.candidates import Candidates
from reservoir_pipelines.fitting.fitters import Choice, ColumnFit, Fitter, RidgeFitter, fit_source
from reservoir_pipelines.fitting.folds import draw_folds, folds_can_choose
from reservoir_pipelines.fitting.select import Selection, select
from reservoir_pipelines.output import silenced
from reservoir_pipelines.signatures import described
from reservoir_pipelines.training.trainable import check_digest

K = TypeVar("K", bound=type)

# scikit-learn's own defaults for these parameters are strings and integers, from which type checkers infer too little.
_validate: Callable[..., Any] = validate_data


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
        None, "Positive penalties", shown="25 from 1e-2 to 1e6 on a log scale, and more if an end is best"
    )
    cv: int | Iterable[Any] | None = opt.option(
        None,
        "Folds, or a cross-validator that holds each sample out once, by which column and penalty are chosen",
        shown="five folds, repeated five times below 200 samples and three times below 600",
    )
    class_weight: str | Mapping[Any, float] | None = opt.option(
        None, "``balanced`` or weights by class, as in scikit-learn"
    )


_OPTIONS = (
    *fields(opt.ReservoirOptions),
    *(item for item in fields(opt.FeatureOptions) if item.name in ("layers", "pool")),
    *(item for item in fields(opt.OwnDataOptions) if item.name in ("missing", "standardise")),
    *fields(opt.DeviceOptions),
    *fields(opt.ComputeOptions),
)


def with_parameters(*own: str) -> Any:
    """Give a class a constructor with all options and the parameters ``own``, and document them."""
    items = [*_OPTIONS, *(item for item in fields(EstimatorOptions) if item.name in own)]
    defaults = {item.name: item.default for item in items}

    def decorate(kind: K) -> K:
        def __init__(self: Any, **given: Any) -> None:
            for name in given.keys() - defaults.keys():
                raise TypeError(f"{kind.__name__} has no parameter {name!r}{nearest(name, defaults)}")
            vars(self).update(defaults | given)

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [keyword(name, default) for name, default in defaults.items()]
        vars(__init__)["__signature__"] = inspect.Signature([first, *named])
        kind.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
        documented = "\n".join(["Parameters", "----------", *map(described, items)])
        kind.__doc__ = (inspect.getdoc(kind) or "").replace("{parameters}", documented)
        return kind

    return decorate


def _refuse_missing(name: str, values: np.ndarray) -> None:
    from pandas import isna

    if (missing := isna(values).reshape(len(values), -1).any(axis=1)).any():
        raise ValueError(
            f"{name}[{missing.argmax()}] is missing; give every sample a value, or leave it out"
        )


def _refuse_one_row(x: Any, channels: int, *, channels_first: bool) -> None:
    """Refuse a single sequence (values,), or (values, channels) of several channels, in place of rows."""
    plain = isinstance(x, list) and len(x) > 0 and isinstance(x[0], float | int)
    array = np.asarray(x) if plain else x
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return
    of_channels = array.ndim == 2 and channels > 1 and array.shape[-2 if channels_first else -1] == channels
    if array.ndim == 1 or of_channels:
        # scikit-learn's checks of estimators look for its words "Reshape your data".
        raise ValueError(
            f"X is one row, of shape {array.shape}. Reshape your data: for one row: x[:1], not x[0]"
        )


class _ReservoirEstimator(BaseEstimator):
    """Base class of the estimators of raw sequences, which computes their features."""

    vocabulary_: int | None
    n_features_in_: int
    _plan: Plan
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

    def _checked(self, x: Any, *more: Any, reset: bool, **checks: Any) -> tuple[Any, np.ndarray]:
        """Return X (and y) as scikit-learn's checks return them, and the length of each sequence."""
        names, x, lengths = list(getattr(x, "columns", ())), unnested(x), None
        if isinstance(x, list | np.ndarray) and len(x) and isinstance(x[0], str):
            raise ValueError("X holds texts; pass the codes of letters, [list(t.encode()) for t in X]")
        x = with_channels_last(x, channels_first=self.channels_first, warn=reset)
        # `as_rows` refuses NaN: the general message of scikit-learn does not name the parameter ``missing``.
        checks |= {"dtype": "numeric", "allow_nd": True, "ensure_all_finite": "allow-nan"}
        if reset:
            self._names = names
        if is_list(x):
            if min(len(names), len(self._names)) > 1 and names != self._names:
                raise ValueError(
                    f"X has the columns {names}; give the columns of fit in their order: {self._names}"
                )
            x, lengths = pad_sequences(x, 0 if reset else self.n_features_in_)
            if not reset:  # new sequences may be longer, which validate_data refuses
                return check_array(x, **checks), lengths
        found = _validate(self, x, *more, reset=reset, **checks)
        return found, full_lengths(found[0] if more else found) if lengths is None else lengths

    def _learn(self, x: np.ndarray, lengths: np.ndarray, weights: np.ndarray | None = None) -> PaddedRows:
        """Resolve the plan for the data and learn the scale of values; return X as rows."""
        options = opt.ExtractOptions(
            **{item.name: getattr(self, item.name) for item in _OPTIONS}, store="float32"
        )
        self.vocabulary_ = read_vocabulary(x, lengths) if self.vocabulary is None else self.vocabulary
        rows = as_rows(x, lengths, self.vocabulary_, self.missing)
        self.n_channels_in_ = rows.channels
        form = Vectors(self.n_channels_in_) if self.vocabulary_ is None else Tokens(self.vocabulary_)
        self._task = Task(name=TASK, form=form, max_tokens=x.shape[1], classes=0)
        # Stored for predict, because another machine may choose another precision, or have other weights of this name.
        self._plan = resolve(self._task, options, {"train": len(x)})
        self.columns_ = [str(column) for column in self._plan.columns]
        self._digest = self._model().digest
        self._scaling = scaling_of(x, rows, self._task, weights, standardise=self.standardise)
        return rows.scaled(self._scaling)

    def _rows(self, x: Any) -> PaddedRows:
        """Return new sequences in the form of the sequences that the estimator was fitted on."""
        check_is_fitted(self)
        _refuse_one_row(x, self.n_channels_in_, channels_first=self.channels_first)
        checked, lengths = self._checked(x, reset=False)
        rows = as_rows(checked, lengths, self.vocabulary_, self.missing)
        if rows.channels != self.n_channels_in_:
            fitted = f"{type(self).__name__} was fitted on {self.n_channels_in_}"
            raise ValueError(f"X has {rows.channels} channels, but {fitted}")
        return rows.scaled(self._scaling)

    def _features(self, rows: PaddedRows) -> Callable[[Column | Baseline], np.ndarray]:
        """Return a function from a column, or the raw input, to its features (rows, width)."""

        @cache
        # loads the model when first called; the raw input needs none
        def computed() -> dict[str, np.ndarray]:
            model = self._model()
            check_digest(model, self._digest, type(self).__name__)
            check_lengths(model, rows.lengths, "X, row")
            # All columns are computed, because other folds may choose other columns for the same rows.
            return row_cache.features(model, self._plan, rows.x, rows.lengths)

        @cache
        def raw() -> np.ndarray:
            return raw_features(self._task, None, rows.x, rows.lengths)

        return lambda column: raw() if column == RAW else computed()[str(column)]

    def _together(self, rows: PaddedRows, columns: Columns) -> np.ndarray:
        """Return the features (rows, width) of columns side by side."""
        features = self._features(rows)
        return np.concatenate([features(column) for column in columns], axis=1)

    def _model(self) -> LoadedModel:
        return shared_model(self._task, self._plan.reservoir, self.device, self._plan.compute)


class _ReservoirPredictor(_ReservoirEstimator):
    """Base of classifier and regressor, which chooses columns and penalty as `fit` does."""

    readout_: LinearReadout
    column_: str
    alphas: Sequence[float] | None
    cv: Any
    # labels (n, outputs) as numbers, and the coding of the targets
    _coded: Callable[..., tuple[np.ndarray, Targets]]
    _checks: ClassVar[dict[str, bool]] = {}

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit readouts with every penalty to every column, and choose one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_values) or (n_samples, n_values, n_channels), list of arrays, or table
            Sequences. If their lengths differ, give a list of arrays (n_values,) or (n_values, n_channels), or a table
            or column of pandas or polars with a series in each cell (of a table, one column for each channel).
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Labels for a classifier (a matrix of 0 and 1 if samples have several labels); targets for a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            A sample of weight 2 counts as two samples, one of weight 0 as none.
        groups : array-like of shape (n_samples,), default=None
            The group of each sample; samples of a group are held out together.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        shape = np.asarray(y).shape
        several = {"multi_output": len(shape) == 2 and shape[1] > 1} | self._checks
        (checked, labels), lengths = self._checked(X, y, reset=True, ensure_min_samples=2, **several)
        _refuse_missing("y", labels)
        weights = check_sample_weights(sample_weight, checked)
        coded, targets = self._coded(labels, weights)
        rows = self._learn(checked, lengths, weights)
        known = self._known_columns(rows, coded, targets, weights, groups)
        selection = self._select(known, targets)
        choice = selection.choices[selection.saved]
        readout = choice.fit.readout
        assert isinstance(readout, LinearReadout)
        self.column_, self.readout_ = choice.fit.result.name, readout
        self.alpha_, self.best_score_ = choice.fit.result.alpha, choice.fit.result.valid_score
        fits = [*selection.fits, *(baseline.fit for baseline in selection.baselines)]
        results = [result for fit in fits for result in fit.results]
        self.cv_results_ = {
            "column": np.array([result.name for result in results], object),
            "alpha": np.array([result.alpha for result in results]),
            "score": np.array([result.valid_score for result in results]),
        }
        return self

    def _known_columns(
        self,
        rows: PaddedRows,
        coded: np.ndarray,
        targets: Targets,
        weights: np.ndarray | None,
        groups: ArrayLike | None,
    ) -> ArrayColumns:
        """Return the columns to choose from, without the rows of weight 0."""
        features = self._features(rows)
        folds = self._fold_numbers(rows.x, coded, groups, classifier=targets.classes > 0)
        units = np.arange(len(coded)) if groups is None else np.unique(groups, return_inverse=True)[1]
        if weights is None or weights.all():
            return ArrayColumns(
                features=features, y=coded, units=units, fold_of_sample=folds, weights=weights
            )
        counts = weights > 0
        return ArrayColumns(
            features=lambda column: features(column)[counts],
            y=coded[counts],
            units=units[counts],
            # A fold may have lost all of its rows.
            fold_of_sample=renumbered(folds[counts]),
            weights=weights[counts],
        )

    def _select(self, known: ArrayColumns, targets: Targets) -> Selection:
        """Choose a readout as the stage `fit` does, with the raw input as the only baseline."""
        alphas = DEFAULT_ALPHAS if self.alphas is None else np.array(self.alphas, np.float64, ndmin=1)
        fitter = RidgeFitter(
            classes=targets.classes,
            alphas=alphas,
            widens=self.alphas is None,
            folds=int(known.fold_of_sample.max()) + 1,
            repeats=known.fold_of_sample.shape[1],
            coding=targets,
        )
        columns = self._plan.candidates
        chooses = folds_can_choose(known.source(columns[0]), targets.classes)
        candidates = Candidates(
            all_columns=columns,
            default=default_columns(columns),
            folds=fitter.folds,
            repeats=fitter.repeats,
            chooses=chooses,
            baseline_may_win=chooses,
        )
        # The estimators print nothing, and rich cannot show the progress of several threads.
        with silenced():
            return select(known, candidates, fitter if chooses else fitter.without_choice(), _fit_raw)

    def _fold_numbers(
        self, x: np.ndarray, y: np.ndarray, groups: ArrayLike | None, *, classifier: bool
    ) -> np.ndarray:
        """Return the fold of each sample in each repetition, (n, repeats)."""
        group = None if groups is None else column_or_1d(groups)
        check_consistent_length(x, group)
        if group is not None:
            _refuse_missing("groups", group)
        labels = y[:, 0] if classifier and y.shape[1] == 1 else None
        if self.cv is not None and (group is None or not isinstance(self.cv, int)):
            return fold_numbers(self.cv, x, y if labels is None else labels, group, classifier=classifier)[
                :, None
            ]
        units = len(x) if group is None else len(np.unique(group))
        folds, repeats = min(self._plan.folds, units), self._plan.repeats
        if self.cv is not None:
            folds, repeats = int(self.cv), 1
        draw = partial(draw_folds, len(x), folds, labels=labels, groups=group)
        return np.stack([draw(repeat=number) for number in range(repeats)], axis=1)

    def _apply(self, method: Callable[[LinearReadout, np.ndarray], np.ndarray], x: ArrayLike) -> np.ndarray:
        """Return what a method of the readout returns for the features of new sequences."""
        features = self._together(self._rows(x), parse_columns(self.column_))
        return method(self.readout_, features)


def _fit_raw(known: ArrayColumns, fits: list[ColumnFit], fitter: Fitter, chooses: bool) -> list[Choice]:
    """Return the readout of the raw input; none if nothing can be chosen."""
    raw = known.raw()
    return [Choice(fit_source(fitter, raw), raw, fitter)] if chooses else []


@with_parameters("vocabulary", "channels_first", "alphas", "cv", "class_weight")
class ReservoirClassifier(ClassifierMixin, _ReservoirPredictor):
    """Classifier of raw sequences: a frozen sequence model, and a ridge readout of its best columns.

    Sequences go through a fixed input layer and a frozen backbone; the hidden states of each layer,
    pooled over the tokens, are a column. Ridge readouts with every penalty are fitted to single
    columns and to several columns; the one with the best held-out accuracy is kept, and the raw input
    only if it is better by more than a standard error (see the rules of `fit`). Defaults are as in
    `extract` and `fit`.

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
        self._several = labels.ndim == 2
        return codes.reshape(len(codes), -1), targets

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the scores of sequences: (n_samples,) for two classes, else (n_samples, n_classes)."""
        scores = self._apply(LinearReadout.scores, X)
        return scores[:, 0] if len(self.classes_) == 2 and not self._several else scores

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the labels (n_samples,) of sequences, or 0 and 1 (n_samples, n_classes) if they have several."""
        found = self._apply(LinearReadout.predict, X)
        return found if self._several else self.classes_[found[:, 0]]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probability of each class, (n_samples, n_classes)."""
        found = self._apply(LinearReadout.probabilities, X)
        return found[:, :, 1] if self._several else found[:, 0]

    def __sklearn_tags__(self) -> Any:
        """Declare that a sample may have several labels."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@with_parameters("vocabulary", "channels_first", "alphas", "cv")
class ReservoirRegressor(RegressorMixin, _ReservoirPredictor):
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

    _checks: ClassVar = {"multi_output": True, "y_numeric": True}

    def _coded(self, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, Targets]:
        self._single = labels.ndim == 1
        values = np.asarray(labels, np.float64).reshape(len(labels), -1)
        return values, Targets(values.shape[1], 0)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predictions, (n_samples,) or (n_samples, n_targets), of sequences."""
        scores = self._apply(LinearReadout.scores, X)
        return scores[:, 0] if self._single else scores

    def __sklearn_tags__(self) -> Any:
        """Declare that several targets are fitted at once."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@with_parameters("vocabulary", "channels_first")
class ReservoirTransformer(TransformerMixin, _ReservoirEstimator):
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
        self._learn(checked, lengths)
        return self

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Return the features of sequences, (n_samples, n_features) of float32."""
        return self._together(self._rows(X), self._plan.columns)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the name of each feature, such as ``block01/mean/17``; ``input_features`` is ignored."""
        check_is_fitted(self)
        shapes = column_shapes(self._task, self._model().fpt.backbone.width, self._plan.columns)
        return np.array(
            [f"{c}/{i}" for c, (tokens, width) in shapes.items() for i in range(tokens * width)], object
        )

    def __sklearn_tags__(self) -> Any:
        """Declare that features are float32, whatever the type of X."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
