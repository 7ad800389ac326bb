"""The readouts that ``fit`` tries: ridge, logistic, and any scikit-learn estimator, each with all of its settings."""

import ast
import hashlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from reservoir_cache import load_arrays, save_arrays

from reservoir import InputError
from reservoir.options import FitOptions
from reservoir.plan import AUTO_FOLDS, default_folds, repeats_of
from reservoir.readouts.evaluation import Readout
from reservoir.readouts.linear import LinearReadout, RereadableBlocks, Tally, Targets, balanced_weights, metric_name
from reservoir.readouts.logistic import LOGISTIC_ALPHAS, logistic_path, logistic_sweep
from reservoir.readouts.ridge import (
    DEFAULT_ALPHAS,
    KernelMatrix,
    Moments,
    Scorer,
    fold_moments,
    ridge_path,
    training_moments,
)
from reservoir.readouts.sweep import Sweep, cross_sweep, extended_alphas, gather, parse_alphas, solve, sweep
from reservoir.readouts.weighted import learn_layers, weighted_sweep
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout, linear_form
from reservoir_pipelines.fitting.sources import ColumnSource, Source, fold_blocks, in_memory_if_small
from reservoir_pipelines.output import notify

MOST_BYTES = 2 * 10**9  # size of float32 features, which an estimator gets all at once


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The score of every setting of one readout on one source, and the best one's index and model.

    ``layer_weights`` are those of the columns in a weighted sum.
    """

    results: tuple[Result, ...]
    best: int
    readout: Readout
    layer_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def at_edge(self) -> bool:
        """Whether the best penalty is an end of the grid, and no other penalty has the same score."""
        alphas = [result.alpha for result in self.results if result.alpha is not None]
        others = [result.valid_score for result in self.results if result is not self.result]
        if not alphas or not others or self.result.alpha not in (min(alphas), max(alphas)):
            return False
        return self.result.valid_score > max(others)


def column_fit(readout: str, columns: tuple[str, ...], swept: Sweep) -> ColumnFit:
    """Return the fit of a sweep over the penalties of a ``readout`` of columns side by side."""
    settings = zip(swept.path.alphas, swept.accuracy, swept.loss, swept.path.converged, strict=True)
    results = tuple(
        Result(
            columns=columns,
            readout=readout,
            metric=metric_of(swept.tally.targets),
            alpha=float(alpha),
            valid_score=float(score),
            valid_loss=float(loss),
            converged=bool(converged),
        )
        for alpha, score, loss, converged in settings
    )
    return ColumnFit(results=results, best=swept.best, readout=swept.readout())


def fit_penalties(
    readout: str,
    columns: tuple[str, ...],
    swept: Callable[[np.ndarray], Sweep],
    alphas: np.ndarray,
    *,
    widens: bool,
) -> ColumnFit:
    """Return the fit of a grid of penalties, or, if it ``widens`` and its end scores best, of a wider grid."""
    found = column_fit(readout, columns, swept(alphas))
    wider = extended_alphas(alphas, found.best) if widens and found.at_edge else None
    return found if wider is None else column_fit(readout, columns, swept(wider))


def make_targets(source: Source, classes: int, balanced: bool = False, splits: Sequence[str] = ("train",)) -> Targets:
    """Return the coding of a source's labels; if ``balanced``, with class weights counted over some splits."""
    labels = np.concatenate([source.labels(split) for split in splits])
    if not balanced:
        return Targets(labels.shape[1], classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(labels.shape[1], classes, balanced_weights(counts))


def metric_of(targets: Targets) -> str:
    """Return the metric by which readouts are chosen: accuracy, balanced accuracy with class weights, or R²."""
    return "balanced_accuracy" if targets.class_weights else metric_name(targets.classes)


def score_split(readout: Readout, source: Source, split: str) -> float:
    """Return the score of one readout on a split."""
    tally = Tally(readout.targets)
    for x, y in source.blocks(split):
        tally.update(readout.scores(x)[None], y)
    return float(tally.accuracy()[0])


def stored_moments(source: Source, targets: Targets, folds: int = 0) -> list[Moments] | None:
    """Return the moments of a cached column, of all training samples or of each fold of train and valid.

    They are computed once and stored in the entry. None for joined columns, the raw input and some of the rows, and
    below four samples per feature: then the float64 moments would be larger than the float16 features.
    """
    splits = ("train", "valid") if folds else ("train",)
    if not isinstance(source, ColumnSource) or source.some:
        return None
    if sum(len(source.labels(split)) for split in splits) <= 4 * source.width():
        return None
    weights, column, entry = targets.class_weights, source.column.replace("/", "-"), source.store.entry
    # The weights depend on the splits that were counted, so moments of other weights have other names.
    end = f"-weighted{hashlib.sha256(repr(weights).encode()).hexdigest()[:8]}-{column}" if weights else f"-{column}"
    names = [f"fold{k}of{folds}{end}" for k in range(folds)] or [f"train{end}"]
    found = [load_arrays(entry, name) for name in names]
    if all(found):
        return [Moments.from_arrays(part[0]) for part in found if part]
    if folds:
        moments = fold_moments(fold_blocks(source, folds, targets.classes), targets, folds)
    else:
        moments = [training_moments(source.blocks("train"), targets)]
    for name, part in zip(names, moments, strict=True):
        save_arrays(entry, name, part.to_arrays(), {"columns": [source.column]})
    return moments


@dataclass(frozen=True, kw_only=True)
class RidgeFitter:
    """Exact ridge readouts of every penalty, chosen on valid, or by cross-validation over train and valid.

    ``folds`` is 0 for a choice on valid. With ``refits``, a readout chosen on valid is fitted again to train and valid.
    With ``widens``, further penalties are tried if an end of ``alphas`` scores best.
    """

    classes: int
    alphas: np.ndarray
    folds: int = 0
    repeats: int = 1
    refits: bool = False
    balanced: bool = False
    widens: bool = True
    one_standard_error: bool = False
    # The last kernel matrix by its columns, from which that of these and further columns is summed.
    _kernels: dict[tuple[str, ...], KernelMatrix] = field(init=False, repr=False, compare=False, default_factory=dict)

    def targets(self, source: Source) -> Targets:
        """Return the coding of a source's labels; class weights count all rows that the final readout is fitted to."""
        splits = ("train", "valid") if self.folds or self.refits else ("train",)
        return make_targets(source, self.classes, self.balanced, splits)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        targets, emphasis = self.targets(source), source.emphasis
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, self.folds) if self.repeats == 1 else None
        if self.folds:
            folded = RereadableBlocks(fold_blocks, (source, self.folds, self.classes, self.repeats))
            blocks = in_memory_if_small(folded)

            def swept(alphas: np.ndarray) -> Sweep:
                found = cross_sweep(
                    blocks,
                    targets,
                    alphas,
                    folds=self.folds,
                    repeats=self.repeats,
                    one_standard_error=self.one_standard_error,
                    moments=moments,
                    emphasis=emphasis,
                    known=self._known(source),
                )
                if found.kernel and emphasis is None:
                    self._kernels.clear()
                    self._kernels[source.columns] = found.kernel
                return found
        else:
            train, valid = (RereadableBlocks(source.blocks, (split,)) for split in ("train", "valid"))
            swept = partial(sweep, train, valid, targets, moments=moments[0] if moments else None, emphasis=emphasis)
        return fit_penalties("ridge", source.columns, swept, self.alphas, widens=self.widens)

    def _known(self, source: Source) -> KernelMatrix | None:
        """Return the kernel matrix of the first columns of a source, if it is the last one that was computed."""
        for columns, kernel in self._kernels.items():
            if source.columns[: len(columns)] == columns:
                return kernel
        return None

    def refit(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout that was chosen on valid, fitted to train and valid; its temperature stays as it was."""
        alphas, emphasis = np.array([alpha]), source.emphasis
        if moments := stored_moments(source, self.targets(source)):
            both = moments[0] + training_moments(source.blocks("valid"), chosen.targets)
            path = ridge_path(both, alphas, emphasis=emphasis)
        else:
            blocks = itertools.chain(source.blocks("train"), source.blocks("valid"))
            path = solve(gather(blocks, chosen.targets), alphas, emphasis)
        return path.readout(0, chosen.targets, chosen.temperature)


@dataclass(frozen=True, kw_only=True)
class LogisticFitter:
    """Multinomial logistic readouts of every penalty (1 / C of scikit-learn), chosen on valid or by ``folds``."""

    classes: int
    alphas: np.ndarray
    balanced: bool = False
    widens: bool = True
    folds: int = 0

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        if self.folds:
            return self._fit_folds(source)
        targets = make_targets(source, self.classes, self.balanced)
        train, valid = (RereadableBlocks(source.blocks, (split,)) for split in ("train", "valid"))
        moments = stored_moments(source, targets)  # their principal axes make the solver fast
        swept = partial(logistic_sweep, train, valid, targets, moments=moments[0] if moments else None)
        return fit_penalties("logistic", source.columns, swept, self.alphas, widens=self.widens)

    def _fit_folds(self, source: Source) -> ColumnFit:
        """Choose by cross-validation over train and valid, whose samples are held in memory."""
        targets = make_targets(source, self.classes, self.balanced, ("train", "valid"))
        x, y, fold = map(np.concatenate, zip(*fold_blocks(source, self.folds, self.classes), strict=True))
        tally = Tally(targets)
        for k in range(self.folds):
            held, rest = fold == k, [(x[fold != k], y[fold != k])]
            path = logistic_path(rest, targets, self.alphas, gather(rest, targets))
            tally.update(Scorer(path, targets)(x[held]), y[held])
        path = logistic_path([(x, y)], targets, self.alphas, gather([(x, y)], targets))
        return column_fit("logistic", source.columns, Sweep(path, tally))


@dataclass(frozen=True, kw_only=True)
class WeightedFitter:
    """Ridge readouts of a sum of layers with learned weights, chosen on valid; see `reservoir.readouts.weighted`."""

    classes: int
    alphas: np.ndarray
    balanced: bool = False
    widens: bool = True
    folds = 0

    def fit(self, source: Source) -> ColumnFit:
        """Learn the weights of columns side by side, fit every penalty and choose one."""
        targets = make_targets(source, self.classes, self.balanced)
        train, valid = (RereadableBlocks(source.blocks, (split,)) for split in ("train", "valid"))
        samples = len(source.labels("train"))
        layers = learn_layers(train, valid, targets, self.alphas, layers=len(source.columns), samples=samples)
        weights = dict(zip(source.columns, layers.weights.tolist(), strict=True))
        notify("layer weights: " + ", ".join(f"{column} {weight:.2f}" for column, weight in weights.items()))
        swept = partial(weighted_sweep, train, valid, targets, layers)
        found = fit_penalties("weighted", source.columns, swept, self.alphas, widens=self.widens)
        return replace(found, layer_weights=weights)


@dataclass(frozen=True, kw_only=True)
class EstimatorFitter:
    """Fits a scikit-learn estimator, given by its import path, with every combination of the given parameters."""

    path: str
    estimator: Callable[..., Any]
    grid: tuple[dict[str, Any], ...]
    classes: int
    balanced: bool

    @classmethod
    def parse(cls, text: str, classes: int, *, balanced: bool = False) -> "EstimatorFitter":
        """Return the fitter of ``module.Class:name=value,value;name=value``."""
        path, _, settings = text.partition(":")
        values: dict[str, list[Any]] = {}
        for part in filter(None, settings.split(";")):
            name, equals, choices = part.partition("=")
            if not equals or not choices:
                raise InputError(f"--readout {text}: write parameters as name=value,value;name=value")
            values[name.strip()] = [_literal(choice) for choice in choices.split(",")]
        if balanced:
            values["class_weight"] = ["balanced"]
        estimator = _import(path)
        known = _checked(path, estimator, classes).get_params()
        for name in values:
            if name not in known:
                raise InputError(f"--readout {path}: it has no parameter {name!r}; it has {', '.join(sorted(known))}")
        grid = tuple(dict(zip(values, choice, strict=True)) for choice in product(*values.values()))
        return cls(path=path, estimator=estimator, grid=grid, classes=classes, balanced=balanced)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every combination to a source and choose one by its score on valid."""
        targets = make_targets(source, self.classes, self.balanced)
        blocks, size = [], 0
        for block in source.blocks("train"):
            size += block[0].nbytes
            if size > MOST_BYTES:
                raise InputError(
                    f"--readout {self.path}: the features of the training rows need more than "
                    f"{MOST_BYTES / 1e9:.0f} GB of memory; use ridge or logistic, which read them in blocks, or fewer "
                    "rows"
                )
            blocks.append(block)
        x, y = (np.concatenate(part) for part in zip(*blocks, strict=True))
        results: list[Result] = []
        readouts: list[Readout] = []
        for settings in self.grid:
            model, converged = self._pipeline(settings, targets, x, y, "+".join(source.columns))
            fitted = EstimatorReadout(model=model, targets=targets, name=self.path)
            readouts.append(linear_form(fitted, x) or fitted)
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            result = Result(
                columns=source.columns,
                readout=f"{self.path}({values})" if values else self.path,
                alpha=None,
                valid_score=score_split(readouts[-1], source, "valid"),
                metric=metric_of(targets),
                converged=converged,
            )
            results.append(result)
        best = max(range(len(results)), key=lambda number: results[number].valid_score)
        return ColumnFit(results=tuple(results), best=best, readout=readouts[best])

    def _pipeline(
        self, settings: dict[str, Any], targets: Targets, x: np.ndarray, y: np.ndarray, columns: str
    ) -> tuple[Any, bool]:
        """Return a fitted scaler and estimator, one per output if there are several, and whether it converged."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        estimator = self.estimator(**settings)
        if targets.outputs > 1:
            estimator = (MultiOutputClassifier if targets.classes else MultiOutputRegressor)(estimator)
        model = make_pipeline(StandardScaler(), estimator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            try:
                model.fit(x, y.ravel() if y.shape[1] == 1 else y)
            except (ValueError, TypeError) as error:
                reason = str(error).replace("\n", " ")
                raise InputError(f"readout {type(estimator).__name__} on {columns}: {reason}") from error
        return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


Fitter = RidgeFitter | LogisticFitter | WeightedFitter | EstimatorFitter
"""Fits one kind of readout to a source under all its settings."""


def _import(path: str) -> Callable[..., Any]:
    from sklearn.base import BaseEstimator

    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--readout {path}: no such readout ({error}); use ridge, logistic, weighted or an import path such as "
            "sklearn.linear_model.LogisticRegression"
        ) from error
    estimates = isinstance(found, type) and issubclass(found, BaseEstimator) and hasattr(found, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules happen to hold.
    foreign = estimates and path.startswith("sklearn.") and not found.__module__.startswith("sklearn.")
    if not estimates or foreign:
        raise InputError(f"--readout {path}: it is no scikit-learn classifier or regressor")
    return found


def _checked(path: str, estimator: Callable[..., Any], classes: int) -> Any:
    """Return an estimator with its default parameters; refuse one that does not suit the task's labels."""
    from sklearn.base import is_classifier, is_regressor

    try:
        found = estimator()
    except TypeError as error:
        raise InputError(f"--readout {path}: it cannot be made from numbers and names alone ({error})") from error
    if not (is_classifier if classes else is_regressor)(found):
        kind, labels, other = (
            ("classifier", f"task has {classes} classes", "LogisticRegression")
            if classes
            else ("regressor", "task's targets are real values", "Ridge")
        )
        raise InputError(
            f"--readout {path}: it is no {kind}, and the {labels}; choose one, such as sklearn.linear_model.{other}"
        )
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def make_fitter(options: FitOptions, classes: int, rows: Mapping[str, int], groups: int | None = None) -> Fitter:
    """Return the fitter of the options for a task with these numbers of rows in each split and of groups."""
    readout, alphas, balanced = options.readout, options.alphas, options.class_weight == "balanced"
    folds, repeats = _folds(options, rows, groups or rows["train"] + rows["valid"])
    if options.one_standard_error and not folds:
        raise InputError("--one-standard-error needs cross-validation of ridge readouts; add --select cv5")
    if balanced and not classes:
        raise InputError("--class-weight balanced: the task has no classes; leave it out")
    if readout == "ridge":
        return RidgeFitter(
            classes=classes,
            alphas=parse_alphas(alphas) if alphas else DEFAULT_ALPHAS,
            folds=folds,
            repeats=repeats,
            refits=options.select == "auto" and not folds,
            balanced=balanced,
            widens=not alphas,
            # One of few folds decides a regression by chance: the larger penalty does less harm on new rows.
            one_standard_error=options.one_standard_error or (not classes and repeats > 1),
        )
    if folds:
        raise InputError(f"--select {options.select}: cross-validation is for ridge; choose {readout} on valid")
    if readout == "logistic":
        if not classes:
            raise InputError("--readout logistic: the task has no classes; use ridge")
        values = parse_alphas(alphas) if alphas else LOGISTIC_ALPHAS
        return LogisticFitter(classes=classes, alphas=values, balanced=balanced, widens=not alphas)
    if readout == "weighted":
        values = parse_alphas(alphas) if alphas else DEFAULT_ALPHAS
        return WeightedFitter(classes=classes, alphas=values, balanced=balanced, widens=not alphas)
    if alphas:
        raise InputError(f"--alphas: {readout} takes its parameters after a colon, as in sklearn.svm.LinearSVC:C=0.1,1")
    return EstimatorFitter.parse(readout, classes, balanced=balanced)


def _folds(options: FitOptions, rows: Mapping[str, int], units: int) -> tuple[int, int]:
    """Return the number of folds, 0 for the validation split, and how often cross-validation is repeated."""
    select = options.select
    if select == "valid":
        return 0, 1
    if select == "auto":
        if str(options.columns).startswith("best:") or options.readout != "ridge":
            return 0, 1
        if options.one_standard_error:
            return min(AUTO_FOLDS, units), repeats_of(rows["train"])
        folds, repeats = default_folds(rows["train"], rows["valid"])
        return min(folds, units), repeats
    number = select.removeprefix("cv")
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose auto, valid, or cvK with K of at least 2, such as cv5")
    return int(number), 1
