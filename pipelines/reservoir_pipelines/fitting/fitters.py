"""The readouts that ``fit`` tries: ridge, logistic, and any scikit-learn estimator."""

import ast
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from reservoir.column import RAW, Columns, names_of
from reservoir.errors import InputError, as_input_error
from reservoir.options import FitOptions
from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.linear import (
    Block,
    LinearReadout,
    Readout,
    RereadableBlocks,
    Tally,
    Targets,
    accuracy_of,
    balanced_weights,
)
from reservoir.readouts.linear_path import Scorer
from reservoir.readouts.logistic import logistic_path, logistic_sweep
from reservoir.readouts.moments import fold_moments, training_moments
from reservoir.readouts.penalties import (
    DEFAULT_ALPHAS,
    LOGISTIC_ALPHAS,
    extended_alphas,
    fixed_penalty,
    parse_alphas,
    prefers_large_penalty,
)
from reservoir.readouts.ridge import gather, head, ridge_path
from reservoir.readouts.sweep import Sweep, cross_sweep, sweep
from reservoir_pipelines.fitting.cost import RidgeSize
from reservoir_pipelines.fitting.entry_source import RawSource
from reservoir_pipelines.fitting.entry_view import KNOWN, KnownSplit
from reservoir_pipelines.fitting.folds import assign_folds, fold_blocks, stage_blocks
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout, linear_form
from reservoir_pipelines.fitting.source import Source, in_memory_if_small
from reservoir_pipelines.fitting.stored_moments import stored_moments
from reservoir_pipelines.output import meter

CURVE_DRAWS = 5  # random draws of the rows of a learning curve


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The scores of every setting of one readout on one source, and the index of the best setting."""

    columns: Columns
    results: tuple[Result, ...]
    best: int
    solve: Callable[[], Readout] | None  # returns the best model; None after `add_fit` found a better fit
    # Returns what each held-out sample adds to the best score, (n,): those of train and valid for folds, else of valid.
    sample_scores: Callable[[], np.ndarray] | None = None
    # As in `Sweep`: held-out scores of cross-validation, kept as long as the model.
    held_out: Callable[[], tuple[np.ndarray, ...]] | None = None

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def readout(self) -> Readout:
        """The model of the best setting, solved anew each time."""
        assert self.solve is not None, "only the best fit keeps its model"
        return self.solve()


def column_fit(readout: str, columns: Columns, swept: Sweep) -> ColumnFit:
    """Return the fit of concatenated columns by a kind of ``readout``, from its sweep over penalties."""
    settings = zip(swept.path.alphas, swept.accuracy, swept.loss, swept.path.converged, strict=True)
    results = tuple(
        Result(
            columns=names_of(columns),
            readout=readout,
            metric=swept.tally.targets.metric,
            alpha=float(alpha),
            valid_score=float(score),
            valid_loss=float(loss),
            converged=bool(converged),
        )
        for alpha, score, loss, converged in settings
    )
    sample_scores = None if swept.sample_scores is None else partial(np.asarray, swept.sample_scores)
    return ColumnFit(
        columns=columns,
        results=results,
        best=swept.best,
        solve=swept.readout,
        sample_scores=sample_scores,
        held_out=swept.held_out,
    )


def add_fit(fits: list[ColumnFit], new: ColumnFit) -> None:
    """Append a fit; only the first, the best and that of the raw input keep their models."""
    # Solving takes time, and a model that is not solved yet holds the features or their moments in memory.
    fits.append(new)
    best = max(fits, key=lambda fit: fit.result.merit)
    fits[1:] = [
        fit
        if fit is best or fit.columns == (RAW,)
        else replace(fit, solve=None, sample_scores=None, held_out=None)
        for fit in fits[1:]
    ]


def fit_penalties(
    readout: str,
    columns: Columns,
    swept: Callable[[np.ndarray], Sweep],
    alphas: np.ndarray,
    *,
    widens: bool,
) -> ColumnFit:
    """Return the fit of a grid of penalties; with ``widens``, use a wider grid if an end scores best."""
    found = column_fit(readout, columns, swept(alphas))
    others = [result.valid_score for result in found.results if result is not found.result]
    leads = found.result.valid_score > max(others, default=math.inf)
    wider = extended_alphas(alphas, found.best) if widens and leads else None
    return found if wider is None else column_fit(readout, columns, swept(wider))


def targets_of(
    source: Source, classes: int, *, balanced: bool = False, splits: Sequence[KnownSplit] = ("train",)
) -> Targets:
    """Return the coding of a source's labels; if ``balanced``, with class weights counted over some splits."""
    labels = np.concatenate([source.labels(split) for split in splits])
    if not balanced:
        return Targets(labels.shape[1], classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(labels.shape[1], classes, balanced_weights(counts))


class CurveReadout(NamedTuple):
    """A readout of a learning curve, fitted to some of the training rows and chosen on valid."""

    rows: int
    valid_score: float
    readout: LinearReadout


@dataclass(frozen=True, kw_only=True)
class Fitter(ABC):
    """A kind of readout with its settings: it fits all settings to a source, and chooses one without test rows."""

    kind: ClassVar[str]
    calibrates: ClassVar[bool] = (
        True  # whether probabilities of a readout chosen on valid are calibrated there
    )
    has_curve: ClassVar[bool] = False  # whether `learning_curve` is defined
    classes: int
    balanced: bool = False
    folds: int = 0  # of cross-validation over train and valid; 0 for a choice on valid
    repeats: int = 1  # of the folds
    refits: bool = False  # whether `refit` fits a readout that was chosen on valid again to train and valid

    @property
    @abstractmethod
    def settings(self) -> int:
        """The number of settings that are tried."""

    @abstractmethod
    def fit(self, source: Source) -> ColumnFit:
        """Fit every setting to a source and choose one."""

    def refit(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the final readout: the chosen one, fitted to all rows that may be used; ``alpha`` is its penalty."""
        return chosen

    def holdout(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the chosen readout as fitted without the rows of valid."""
        return chosen

    @abstractmethod
    def without_wider_grid(self) -> "Fitter":
        """Return a fitter that tries no further settings than its own, for a race."""

    @abstractmethod
    def without_choice(self) -> "Fitter":
        """Return a fitter with one fixed penalty if it has penalties, for data whose folds cannot choose one."""

    @abstractmethod
    def with_setting_of(self, fit: ColumnFit) -> "Fitter":
        """Return a fitter that tries only the setting that a fit of this fitter has chosen."""

    def as_ridge(self, *, chooses: bool) -> "RidgeFitter":
        """Return the ridge fitter of a baseline; without ``chooses``, a single penalty stays as it is."""
        return RidgeFitter(classes=self.classes, alphas=DEFAULT_ALPHAS, balanced=self.balanced)

    def as_logistic(self, alphas: np.ndarray) -> "LogisticFitter":
        """Return the logistic fitter of a baseline, with the same folds and rows, and with penalties ``alphas``."""
        return LogisticFitter(
            classes=self.classes,
            alphas=alphas,
            balanced=self.balanced,
            folds=self.folds,
            repeats=self.repeats,
            refits=self.refits,
        )

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return readouts fitted to each number of training rows."""
        raise NotImplementedError(f"{self.kind} readouts have no learning curve")


@dataclass(frozen=True, kw_only=True)
class PenaltyFitter(Fitter):
    """Linear readouts of every penalty."""

    alphas: np.ndarray
    widens: bool = True  # try further penalties if an end of ``alphas`` scores best

    @property
    def settings(self) -> int:
        """The number of penalties."""
        return len(self.alphas)

    def refit(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout that was chosen on valid, fitted again to train and valid if the fitter ``refits``."""
        if not self.refits:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_all(source, chosen, float(alpha or 1))

    def holdout(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the chosen readout; one that cross-validation chose is fitted to train alone."""
        if not self.folds:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_train(source, chosen, float(alpha or 1))

    @abstractmethod
    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout with the targets and the temperature of another, fitted to train and valid."""

    @abstractmethod
    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout with the targets and the temperature of another, fitted to train."""

    def without_wider_grid(self) -> Self:
        """Return a fitter that tries only its own penalties."""
        return replace(self, widens=False)

    def without_choice(self) -> Self:
        """Return a fitter with the one penalty that is nearest to `FIXED_ALPHA`."""
        return replace(self, alphas=fixed_penalty(self.alphas), widens=False)

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the penalty of a fit."""
        return replace(self, alphas=np.array([fit.result.alpha]), widens=False)

    def best_of(self, source: Source, swept: Callable[[np.ndarray], Sweep]) -> ColumnFit:
        """Return the fit of all penalties to a source; ``swept`` scores a grid of penalties."""
        return fit_penalties(self.kind, source.columns, swept, self.alphas, widens=self.widens)


@dataclass(frozen=True, kw_only=True)
class RidgeFitter(PenaltyFitter):
    """Exact ridge readouts."""

    kind = "ridge"
    has_curve = True
    coding: Targets | None = None  # of the labels, if it is decided before the fit
    # The kernel matrix of the last fit, by columns. A fit with more columns adds only that of the new ones.
    _kernels: dict[Columns, KernelMatrix] = field(init=False, default_factory=dict)

    def targets(self, source: Source) -> Targets:
        """Return the coding of a source's labels; class weights count all rows to which the final readout is fitted."""
        if self.coding is not None:
            return self.coding
        splits = KNOWN if self.folds or self.refits else ("train",)
        return targets_of(source, self.classes, balanced=self.balanced, splits=splits)

    def as_ridge(self, *, chooses: bool) -> "RidgeFitter":
        """Return this fitter, but with the default penalties if a single one was chosen for the columns."""
        if len(self.alphas) == 1 and chooses:
            return replace(self, alphas=DEFAULT_ALPHAS, widens=True)
        return self

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        targets, feature_weights = self.targets(source), source.feature_weights
        if not self.folds:
            train, valid = source.stream("train"), source.stream("valid")
            moments = stored_moments(source, targets, train) or [None]
            swept = partial(
                sweep, train, valid, targets, moments=moments[0], feature_weights=feature_weights
            )
            return self.best_of(source, swept)
        numbers = assign_folds(source, self.folds, self.classes, self.repeats)
        stream = RereadableBlocks(fold_blocks, (source, numbers))
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, stream, numbers) if self.repeats == 1 else None
        blocks = in_memory_if_small(stream)

        def cross(alphas: np.ndarray) -> Sweep:
            found = cross_sweep(
                blocks,
                targets,
                alphas,
                folds=self.folds,
                repeats=self.repeats,
                one_standard_error=prefers_large_penalty(self.classes, self.repeats),
                moments=moments,
                feature_weights=feature_weights,
                of_first_features=next(
                    (one for of, one in self._kernels.items() if source.columns[: len(of)] == of), None
                ),
            )
            if found.kernel and feature_weights is None:
                self._kernels.clear()
                self._kernels[source.columns] = found.kernel
            return found

        return self.best_of(source, cross)

    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train, with the temperature of another."""
        targets, labels = self.targets(source), source.labels("train")
        # it covers train and valid, so no features are read
        if kernel := self._kernels.get(source.columns):
            path = kernel.of_first_rows(len(labels)).path(targets.encode(labels), np.array([alpha]))
        else:
            path = ridge_path(
                gather(source.stream("train"), targets), np.array([alpha]), source.feature_weights
            )
        return path.readout(0, targets, chosen.temperature)

    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with the targets and temperature of another."""
        if moments := stored_moments(source, self.targets(source), source.stream("train")):
            training = moments[0] + training_moments(source.blocks("valid"), chosen.targets)
        else:
            training = gather(_all_blocks(source), chosen.targets)
        path = ridge_path(training, np.array([alpha]), source.feature_weights)
        return path.readout(0, chosen.targets, chosen.temperature)

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return a readout for each number of training rows of each of `CURVE_DRAWS` nested, stratified draws."""
        targets = self.targets(source)
        readouts: list[CurveReadout] = []
        with meter("learning curve", CURVE_DRAWS * len(sizes), unit="fits") as bar:
            for draw in range(CURVE_DRAWS):
                few, blocks = head(stage_blocks(source, np.asarray(sizes), self.classes, draw))
                if few is None:
                    # One pass gives the moments of the rows that each size adds; running sums are those of a size.
                    sums = itertools.accumulate(fold_moments(blocks, targets, len(sizes)))
                    trainings = (((), moments) for moments in sums)
                else:  # with fewer samples than features, moments would take hours
                    x, y, stage = few
                    kept = [stage <= last for last in range(len(sizes))]
                    trainings = (([(x[rows], y[rows])], None) for rows in kept)
                for size, (train, moments) in zip(sizes, trainings, strict=True):
                    valid = source.blocks("valid")
                    swept = sweep(
                        train,
                        valid,
                        targets,
                        self.alphas,
                        moments=moments,
                        feature_weights=source.feature_weights,
                    )
                    score = float(swept.accuracy[swept.best])
                    readouts.append(CurveReadout(size, score, swept.readout()))
                    bar.advance(1)
        return readouts


@dataclass(frozen=True, kw_only=True)
class LogisticFitter(PenaltyFitter):
    """Multinomial logistic readouts of every penalty, 1 / C of scikit-learn."""

    kind = "logistic"

    def as_logistic(self, alphas: np.ndarray) -> "LogisticFitter":
        """Return the logistic fitter of a baseline, with this fitter's penalties if it has several."""
        return super().as_logistic(self.alphas if len(self.alphas) > 1 else alphas)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        if self.folds:
            return self._fit_folds(source)
        targets = targets_of(source, self.classes, balanced=self.balanced)
        train, valid = source.stream("train"), source.stream("valid")
        moments = stored_moments(source, targets, train)  # the solver is fast in their principal axes
        swept = partial(logistic_sweep, train, valid, targets, moments=moments[0] if moments else None)
        return self.best_of(source, swept)

    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train, with the temperature of another."""
        train, targets = source.stream("train"), chosen.targets
        path = logistic_path(train, targets, np.array([alpha]), gather(train, targets))
        return path.readout(0, targets, chosen.temperature)

    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with the targets and temperature of another."""
        both = RereadableBlocks(_all_blocks, (source,))
        path = logistic_path(both, chosen.targets, np.array([alpha]), gather(both, chosen.targets))
        return path.readout(0, chosen.targets, chosen.temperature)

    def _fit_folds(self, source: Source) -> ColumnFit:
        """Choose by cross-validation over train and valid, with all fitted samples in memory.

        If the source has only some of the rows, readouts are fitted to these, and score all rows.
        """
        whole, fitted = source, slice(None)
        if isinstance(source, RawSource) and source.some:
            whole = replace(source, some=None)
            fitted = fitted_samples(source, whole)
        targets = targets_of(source, self.classes, balanced=self.balanced, splits=KNOWN)
        numbers = assign_folds(whole, self.folds, self.classes, self.repeats)
        x, y = map(np.concatenate, zip(*_all_blocks(source), strict=True))
        tally, sample_scores, first = Tally(targets), list[np.ndarray](), list[np.ndarray]()
        labels = np.concatenate([whole.labels(split) for split in KNOWN])
        for fold in numbers.T:
            paths = []
            for k in range(self.folds):
                rest = fold[fitted] != k
                train = [(x[rest], y[rest])]
                paths.append(Scorer(logistic_path(train, targets, self.alphas, gather(train, targets))))
            scores = _scores_by_fold(paths, whole, fold, len(self.alphas), targets.columns)
            tally.update(scores, labels)
            sample_scores.append(np.stack([targets.sample_scores(one, labels) for one in scores]))
            first = first or [*scores]
        path = logistic_path([(x, y)], targets, self.alphas, gather([(x, y)], targets))
        found = Sweep(path, tally)
        held_out = first[found.best], labels
        found.held_out = lambda: held_out
        found.sample_scores = np.mean([part[found.best] for part in sample_scores], axis=0)
        return column_fit("logistic", source.columns, found)


def _all_blocks(source: Source) -> Iterator[Block]:
    """Yield the samples of train, then of valid."""
    return itertools.chain.from_iterable(map(source.blocks, KNOWN))


def fitted_samples(source: RawSource[KnownSplit], whole: RawSource[KnownSplit]) -> np.ndarray:
    """Return the numbers of a source's samples of train and valid among those of all rows, (n,)."""
    rows, start = [], 0
    for split in KNOWN:
        ends = np.cumsum(whole.counts(split))
        numbers = np.split(start + np.arange(ends[-1]), ends[:-1])
        rows += [numbers[row] for row in np.arange(len(ends))[source.selected_rows(split)]]
        start += int(ends[-1])
    return np.concatenate(rows)


def _scores_by_fold(
    paths: Sequence[Scorer], source: Source, fold: np.ndarray, alphas: int, columns: int
) -> np.ndarray:
    """Return the scores (alphas, n, columns) of all samples, each by the path that was not fitted to its fold."""
    scores = np.empty((alphas, len(fold), columns), np.float32)
    start = 0
    for x, _ in _all_blocks(source):
        for k in np.unique(fold[start : start + len(x)]).tolist():
            held = np.flatnonzero(fold[start : start + len(x)] == k)
            scores[:, start + held] = paths[k](x[held])
        start += len(x)
    return scores


@dataclass(frozen=True, kw_only=True)
class EstimatorFitter(Fitter):
    """A scikit-learn estimator with every combination of the given parameters."""

    kind = "estimator"
    calibrates = False  # estimators keep their own probabilities
    path: str
    estimator: Callable[..., Any]
    grid: tuple[dict[str, Any], ...]

    @classmethod
    def parse(cls, text: str, classes: int, *, balanced: bool = False) -> "EstimatorFitter":
        """Return the fitter of ``module.Class:name=value,value;name=value``."""
        path, _, settings = text.partition(":")
        values: dict[str, list[Any]] = {}
        for part in filter(None, settings.split(";")):
            name, _, choices = part.partition("=")
            values[name.strip()] = [_literal(choice) for choice in choices.split(",")]
        if balanced:
            values["class_weight"] = ["balanced"]
        grid = tuple(dict(zip(values, choice, strict=True)) for choice in product(*values.values()))
        estimator = _estimator(path, classes, grid[0])
        return cls(path=path, estimator=estimator, grid=grid, classes=classes, balanced=balanced)

    @property
    def settings(self) -> int:
        """The number of combinations of parameters."""
        return len(self.grid)

    def without_wider_grid(self) -> Self:
        """Return this fitter, which tries no further parameters."""
        return self

    def without_choice(self) -> Self:
        """Return this fitter, which has no penalties."""
        return self

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the parameters of a fit."""
        return replace(self, grid=(self.grid[fit.best],))

    def fit(self, source: Source) -> ColumnFit:
        """Fit every combination to a source and choose one by its score on valid."""
        targets = targets_of(source, self.classes, balanced=self.balanced)
        x, y = (np.concatenate(part) for part in zip(*source.blocks("train"), strict=True))
        results: list[Result] = []
        readouts: list[Readout] = []
        problem = f"--readout {self.path}: cannot be fitted to {source.name}"
        for settings in self.grid:
            with as_input_error(problem, "correct its parameters"):
                model, converged = self._pipeline(settings, targets, x, y)
            fitted = EstimatorReadout(model=model, targets=targets, name=self.path)
            readouts.append(linear_form(fitted, x) or fitted)
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            name = f"{self.path}({values})" if values else self.path
            score = accuracy_of(readouts[-1], source.blocks("valid"))
            kind = {
                "columns": names_of(source.columns),
                "readout": name,
                "alpha": None,
                "metric": targets.metric,
            }
            results.append(Result(**kind, valid_score=score, converged=converged))
        best = max(range(len(results)), key=lambda number: results[number].valid_score)
        return ColumnFit(
            columns=source.columns,
            results=tuple(results),
            best=best,
            solve=partial(readouts.__getitem__, best),
        )

    def _pipeline(
        self, settings: dict[str, Any], targets: Targets, x: np.ndarray, y: np.ndarray
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
            model.fit(x, y.ravel() if y.shape[1] == 1 else y)
        return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _estimator(path: str, classes: int, settings: dict[str, Any]) -> Callable[..., Any]:
    """Return the class of an import path; refuse one that does not suit the labels or the parameters."""
    from sklearn.base import BaseEstimator, is_classifier, is_regressor

    module, _, name = path.rpartition(".")
    remedy = "use ridge, logistic or a path such as sklearn.svm.LinearSVC"
    with as_input_error(f"--readout {path}: no such readout", remedy):
        found = getattr(import_module(module), name)
    allowed = isinstance(found, type) and issubclass(found, BaseEstimator) and hasattr(found, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules contain.
    if not allowed or (path.startswith("sklearn.") and not found.__module__.startswith("sklearn.")):
        raise InputError(f"--readout {path}: not a scikit-learn classifier or regressor", "name one")
    with as_input_error(f"--readout {path}: cannot be created", "correct its parameters"):
        suits = (is_classifier if classes else is_regressor)(found().set_params(**settings))
    if not suits:
        kind = "classifier" if classes else "regressor"
        raise InputError(f"--readout {path}: not a {kind}, which the labels need", "name another class")
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def make_fitter(options: FitOptions, classes: int, folds: int = 0, repeats: int = 1) -> Fitter:
    """Return the fitter for the options, the number of classes, and the folds that `choose_folds` returned."""
    readout, balanced = options.readout, options.class_weight == "balanced"
    if not classes and (balanced or readout == "logistic"):
        flag = "--class-weight balanced" if balanced else "--readout logistic"
        raise InputError(f"{flag}: the task has no classes", "remove the flag")
    if folds and readout != "ridge":
        raise InputError(
            f"--select {options.select}: cross-validation is only for ridge", "pass --select valid"
        )
    if readout not in ("ridge", "logistic"):
        if options.alphas:
            problem = f"--alphas: {readout} takes its parameters after a colon"
            raise InputError(f"{problem}, as in sklearn.svm.LinearSVC:C=0.1,1")
        return EstimatorFitter.parse(readout, classes, balanced=balanced)
    default = LOGISTIC_ALPHAS if readout == "logistic" else DEFAULT_ALPHAS
    alphas = parse_alphas(options.alphas) if options.alphas else default
    shared: dict[str, Any] = {
        "classes": classes,
        "alphas": alphas,
        "balanced": balanced,
        "widens": not options.alphas,
    }
    if readout == "logistic":
        return LogisticFitter(**shared)
    return RidgeFitter(
        **shared,
        folds=folds,
        repeats=repeats,
        refits=options.select == "auto" and not folds,
    )


class Choice(NamedTuple):
    """A chosen readout: the best setting of a fit, its source, and the fitter that fitted it."""

    fit: ColumnFit
    source: Source
    fitter: Fitter

    @property
    def refit_work(self) -> float:
        """Estimated multiplications of a fit of a single penalty without folds."""
        return replace(size_of(self.source, self.fitter), penalties=1, folds=0).work


def fit_source(fitter: Fitter, source: Source) -> ColumnFit:
    """Return the fit of a source, with the sample_scores of its held-out samples."""
    found = fitter.fit(source)
    return (
        found
        if found.sample_scores
        else replace(found, sample_scores=partial(_valid_sample_scores, found, source))
    )


def _valid_sample_scores(fit: ColumnFit, source: Source) -> np.ndarray:
    readout = fit.readout
    pairs = [(readout.scores(x), y) for x, y in source.blocks("valid")]
    return readout.targets.sample_scores(*map(np.concatenate, zip(*pairs, strict=True)))


def size_of(source: Source, fitter: Fitter) -> RidgeSize:
    """Return the sizes that decide the cost of a fit; for other readouts than ridge, those of a ridge readout."""
    samples = {split: len(source.labels(split)) for split in KNOWN}
    return RidgeSize(
        samples=sum(samples.values()) if fitter.folds else samples["train"],
        held_out=samples["valid"],
        width=source.width(),
        targets=source.labels("train").shape[1] * (fitter.classes if fitter.classes > 2 else 1),
        penalties=fitter.settings,
        folds=fitter.folds,
        repeats=fitter.repeats,
    )
