"""The readouts that ``fit`` tries: ridge, logistic, and any scikit-learn estimator, each with all of its settings."""

import ast
import itertools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, ClassVar

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import FitOptions
from reservoir.plan import RAW
from reservoir.readouts.evaluation import Evaluation, balanced_interval, evaluate
from reservoir.readouts.linear import LinearReadout, Readout, RereadableBlocks, Tally, Targets, accuracy_of
from reservoir.readouts.logistic import LOGISTIC_ALPHAS, logistic_path, logistic_sweep
from reservoir.readouts.ridge import (
    DEFAULT_ALPHAS,
    KernelMatrix,
    LinearPath,
    Scorer,
    fold_moments,
    ridge_path,
    score,
    training_moments,
)
from reservoir.readouts.sweep import (
    Sweep,
    cross_sweep,
    extended_alphas,
    gather,
    parse_alphas,
    solve,
    sweep,
)
from reservoir.readouts.weighted import learn_layers, weighted_sweep
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.results import CurvePoint, Result
from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout, linear_form
from reservoir_pipelines.fitting.sources import (
    KNOWN,
    Source,
    assign_folds,
    fold_blocks,
    in_memory_if_small,
    stage_blocks,
    stored_moments,
)
from reservoir_pipelines.output import meter, notify

CURVE_DRAWS = 5  # random draws of the rows of a learning curve
MAX_BYTES = 2 * 10**9  # largest size of the float32 features that an estimator gets at once


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The scores of every setting of one readout on one source, and the index of the best setting.

    ``solve`` returns the model of the best setting; it is None after `add_fit` found another fit to be better.
    """

    results: tuple[Result, ...]
    best: int
    solve: Callable[[], Readout] | None
    layer_weights: Mapping[str, float] = field(default_factory=dict)  # by column, for a weighted sum

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def readout(self) -> Readout:
        """The model of the best setting, solved anew each time."""
        assert self.solve is not None, "only the best fit keeps its model"
        return self.solve()

    @property
    def at_edge(self) -> bool:
        """Whether the best penalty is an end of the grid, and no other penalty has the same score."""
        alphas = [result.alpha for result in self.results if result.alpha is not None]
        others = [result.valid_score for result in self.results if result is not self.result]
        if not alphas or not others or self.result.alpha not in (min(alphas), max(alphas)):
            return False
        return self.result.valid_score > max(others)


def column_fit(readout: str, columns: tuple[str, ...], swept: Sweep) -> ColumnFit:
    """Return the fit of concatenated columns by a kind of ``readout``, from its sweep over penalties."""
    settings = zip(swept.path.alphas, swept.accuracy, swept.loss, swept.path.converged, strict=True)
    results = tuple(
        Result(
            columns=columns,
            readout=readout,
            metric=swept.tally.targets.metric,
            alpha=float(alpha),
            valid_score=float(score),
            valid_loss=float(loss),
            converged=bool(converged),
        )
        for alpha, score, loss, converged in settings
    )
    return ColumnFit(results=results, best=swept.best, solve=swept.readout)


def add_fit(fits: list[ColumnFit], new: ColumnFit) -> None:
    """Append a fit; only the best fit and the fit of the raw input, a baseline, keep their models."""
    # Solving takes time, and a model that is not solved yet holds the features or their moments in memory.
    fits.append(new)
    best = max(fits, key=lambda fit: fit.result.merit)
    fits[:] = [fit if fit is best or fit.result.columns == (RAW,) else replace(fit, solve=None) for fit in fits]


def fit_penalties(
    readout: str, columns: tuple[str, ...], swept: Callable[[np.ndarray], Sweep], alphas: np.ndarray, *, widens: bool
) -> ColumnFit:
    """Return the fit of a grid of penalties; with ``widens``, use a wider grid if an end scores best."""
    found = column_fit(readout, columns, swept(alphas))
    wider = extended_alphas(alphas, found.best) if widens and found.at_edge else None
    return found if wider is None else column_fit(readout, columns, swept(wider))


@dataclass(frozen=True, kw_only=True)
class PenaltyFitter:
    """Readouts of every penalty, one of which is chosen on valid, or by cross-validation over train and valid."""

    kind: ClassVar[str]
    classes: int
    alphas: np.ndarray
    balanced: bool = False
    widens: bool = True  # try further penalties if an end of ``alphas`` scores best
    folds: int = 0  # 0 for a choice on valid

    def best_of(self, source: Source, swept: Callable[[np.ndarray], Sweep]) -> ColumnFit:
        """Return the fit of all penalties to a source; ``swept`` scores a grid of penalties."""
        return fit_penalties(self.kind, source.columns, swept, self.alphas, widens=self.widens)


@dataclass(frozen=True, kw_only=True)
class RidgeFitter(PenaltyFitter):
    """Exact ridge readouts; with ``refits``, a readout that was chosen on valid is fitted again to train and valid."""

    kind = "ridge"
    repeats: int = 1
    refits: bool = False
    one_standard_error: bool = False
    # The kernel matrix of the last fit, by columns. A fit with more columns adds only that of the new ones.
    _kernels: dict[tuple[str, ...], KernelMatrix] = field(init=False, repr=False, compare=False, default_factory=dict)

    def targets(self, source: Source) -> Targets:
        """Return the coding of a source's labels; class weights count all rows to which the final readout is fitted."""
        return source.targets(self.classes, self.balanced, KNOWN if self.folds or self.refits else ("train",))

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        targets, emphasis = self.targets(source), source.emphasis
        if not self.folds:
            train, valid = source.stream("train"), source.stream("valid")
            moments = stored_moments(source, targets, train) or [None]
            swept = partial(sweep, train, valid, targets, moments=moments[0], emphasis=emphasis)
            return self.best_of(source, swept)
        numbers = assign_folds(source, self.folds, self.classes, self.repeats)
        stream = RereadableBlocks(fold_blocks, (source, numbers))
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, stream, self.folds) if self.repeats == 1 else None
        blocks = in_memory_if_small(stream)

        def cross(alphas: np.ndarray) -> Sweep:
            found = cross_sweep(
                blocks,
                targets,
                alphas,
                folds=self.folds,
                repeats=self.repeats,
                one_standard_error=self.one_standard_error,
                moments=moments,
                emphasis=emphasis,
                known=next((one for of, one in self._kernels.items() if source.columns[: len(of)] == of), None),
            )
            if found.kernel and emphasis is None:
                self._kernels.clear()
                self._kernels[source.columns] = found.kernel
            return found

        return self.best_of(source, cross)

    def fit_train(self, source: Source, alphas: np.ndarray) -> LinearPath:
        """Fit the penalties ``alphas`` to the training rows alone, after cross-validation; return the solutions."""
        targets, labels = self.targets(source), source.labels("train")
        if kernel := self._kernels.get(source.columns):  # it covers train and valid, so no features are read
            return kernel.first(len(labels)).path(targets.encode(labels), alphas)
        return solve(gather(source.stream("train"), targets), alphas, source.emphasis)

    def refit(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout that was chosen on valid, fitted again to train and valid, with the same temperature."""
        alphas, emphasis = np.array([alpha]), source.emphasis
        if moments := stored_moments(source, self.targets(source), source.stream("train")):
            both = moments[0] + training_moments(source.blocks("valid"), chosen.targets)
            path = ridge_path(both, alphas, emphasis=emphasis)
        else:
            blocks = itertools.chain.from_iterable(map(source.blocks, KNOWN))
            path = solve(gather(blocks, chosen.targets), alphas, emphasis)
        return path.readout(0, chosen.targets, chosen.temperature)

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> tuple[CurvePoint, ...]:
        """Return the scores for each number of training rows over `CURVE_DRAWS` nested, stratified draws."""
        targets, emphasis = self.targets(source), source.emphasis
        scores: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
        with meter("learning curve", CURVE_DRAWS, unit="draws") as bar:
            for draw in range(CURVE_DRAWS):
                blocks = stage_blocks(source, np.asarray(sizes), self.classes, draw)
                # One pass gives the moments of the rows that each size adds; running sums are the moments of a size.
                stages = fold_moments(blocks, targets, len(sizes))
                for size, moments in zip(sizes, itertools.accumulate(stages, operator.add), strict=True):
                    path = ridge_path(moments, self.alphas, emphasis=emphasis)
                    swept = Sweep(path, score(path, source.blocks("valid"), targets))
                    test = accuracy_of(swept.readout(), source.blocks("test"))
                    scores[size].append((float(swept.accuracy[swept.best]), test))
                bar.advance(1)
        return tuple(CurvePoint.of(size, found) for size, found in scores.items())


@dataclass(frozen=True, kw_only=True)
class LogisticFitter(PenaltyFitter):
    """Multinomial logistic readouts of every penalty, 1 / C of scikit-learn."""

    kind = "logistic"

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        if self.folds:
            return self._fit_folds(source)
        targets = source.targets(self.classes, self.balanced)
        train, valid = source.stream("train"), source.stream("valid")
        moments = stored_moments(source, targets, train)  # the solver is fast in their principal axes
        swept = partial(logistic_sweep, train, valid, targets, moments=moments[0] if moments else None)
        return self.best_of(source, swept)

    def _fit_folds(self, source: Source) -> ColumnFit:
        """Choose by cross-validation over train and valid, with all samples in memory."""
        targets = source.targets(self.classes, self.balanced, KNOWN)
        numbers = assign_folds(source, self.folds, self.classes)
        x, y, fold = map(np.concatenate, zip(*fold_blocks(source, numbers[:, 0]), strict=True))
        tally = Tally(targets)
        for k in range(self.folds):
            held, rest = fold == k, [(x[fold != k], y[fold != k])]
            path = logistic_path(rest, targets, self.alphas, gather(rest, targets))
            tally.update(Scorer(path, targets)(x[held]), y[held])
        path = logistic_path([(x, y)], targets, self.alphas, gather([(x, y)], targets))
        return column_fit("logistic", source.columns, Sweep(path, tally))


@dataclass(frozen=True, kw_only=True)
class WeightedFitter(PenaltyFitter):
    """Ridge readouts of a sum of layers with learned weights, chosen on valid; see `reservoir.readouts.weighted`."""

    kind = "weighted"

    def fit(self, source: Source) -> ColumnFit:
        """Learn the weights of several columns, fit every penalty and choose one."""
        targets = source.targets(self.classes, self.balanced)
        train, valid = source.stream("train"), source.stream("valid")
        samples = len(source.labels("train"))
        layers = learn_layers(train, valid, targets, self.alphas, layers=len(source.columns), samples=samples)
        weights = dict(zip(source.columns, layers.weights.tolist(), strict=True))
        notify("layer weights: " + ", ".join(f"{column} {weight:.2f}" for column, weight in weights.items()))
        swept = partial(weighted_sweep, train, valid, targets, layers)
        return replace(self.best_of(source, swept), layer_weights=weights)


@dataclass(frozen=True, kw_only=True)
class EstimatorFitter:
    """A scikit-learn estimator, given by its import path, with every combination of the given parameters."""

    path: str
    estimator: Callable[..., Any]
    grid: tuple[dict[str, Any], ...]
    classes: int
    balanced: bool
    folds = 0

    @classmethod
    def parse(cls, text: str, classes: int, *, balanced: bool = False) -> "EstimatorFitter":
        """Return the fitter of ``module.Class:name=value,value;name=value``."""
        path, _, settings = text.partition(":")
        values: dict[str, list[Any]] = {}
        for part in filter(None, settings.split(";")):
            name, equals, choices = part.partition("=")
            if not equals or not choices:
                raise InputError(f"--readout {text}: a parameter has no value; write name=value,value;name=value")
            values[name.strip()] = [_literal(choice) for choice in choices.split(",")]
        if balanced:
            values["class_weight"] = ["balanced"]
        estimator = _import(path)
        known = _checked(path, estimator, classes).get_params()
        for name in values:
            if name not in known:
                problem = f"--readout {path}: no parameter {name!r}"
                raise InputError(f"{problem}; the parameters are {', '.join(sorted(known))}")
        grid = tuple(dict(zip(values, choice, strict=True)) for choice in product(*values.values()))
        return cls(path=path, estimator=estimator, grid=grid, classes=classes, balanced=balanced)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every combination to a source and choose one by its score on valid."""
        targets = source.targets(self.classes, self.balanced)
        blocks, size = [], 0
        for block in source.blocks("train"):
            size += block[0].nbytes
            if size > MAX_BYTES:
                problem = (
                    f"--readout {self.path}: the features of the training rows need more than {MAX_BYTES / 1e9:.0f} GB"
                )
                raise InputError(f"{problem}; use ridge or logistic, which read them in blocks, or fewer rows")
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
                valid_score=accuracy_of(readouts[-1], source.blocks("valid")),
                metric=targets.metric,
                converged=converged,
            )
            results.append(result)
        best = max(range(len(results)), key=lambda number: results[number].valid_score)
        return ColumnFit(results=tuple(results), best=best, solve=partial(readouts.__getitem__, best))

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
"""Type of the objects that fit one kind of readout to a source under all its settings."""

Fitted = tuple[ColumnFit, Source, Fitter]
"""The fit of a source, the source, and the fitter that made the fit."""


def _import(path: str) -> Callable[..., Any]:
    from sklearn.base import BaseEstimator

    module, _, name = path.rpartition(".")
    remedy = "use ridge, logistic, weighted or an import path such as sklearn.linear_model.LogisticRegression"
    with as_input_error(f"--readout {path}: no such readout", remedy):
        found = getattr(import_module(module), name)
    estimates = isinstance(found, type) and issubclass(found, BaseEstimator) and hasattr(found, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules contain.
    foreign = estimates and path.startswith("sklearn.") and not found.__module__.startswith("sklearn.")
    if not estimates or foreign:
        raise InputError(f"--readout {path}: not a scikit-learn classifier or regressor; name another class")
    return found


def _checked(path: str, estimator: Callable[..., Any], classes: int) -> Any:
    """Return an estimator with its default parameters; raise `InputError` if it does not suit the task's labels."""
    from sklearn.base import is_classifier, is_regressor

    with as_input_error(f"--readout {path}: cannot be created with its defaults", "name another class"):
        found = estimator()
    if not (is_classifier if classes else is_regressor)(found):
        kind, labels, other = (
            ("classifier", f"task has {classes} classes", "LogisticRegression")
            if classes
            else ("regressor", "task's targets are real values", "Ridge")
        )
        problem = f"--readout {path}: it is not a {kind}, and the {labels}"
        raise InputError(f"{problem}; choose one, such as sklearn.linear_model.{other}")
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def make_fitter(options: FitOptions, classes: int, folds: int = 0, repeats: int = 1) -> Fitter:
    """Return the fitter for the options, the number of classes, and the folds that `choose_folds` returned."""
    readout, alphas, balanced = options.readout, options.alphas, options.class_weight == "balanced"
    if balanced and not classes:
        raise InputError("--class-weight balanced: the task has no classes; remove the flag")
    if folds and readout != "ridge":
        raise InputError(f"--select {options.select}: cross-validation is only for ridge; pass --select valid")
    if readout == "logistic" and not classes:
        raise InputError("--readout logistic: the task has no classes; use ridge")
    if readout in ("ridge", "logistic", "weighted"):
        default = LOGISTIC_ALPHAS if readout == "logistic" else DEFAULT_ALPHAS
        values = parse_alphas(alphas) if alphas else default
        shared: dict[str, Any] = {"classes": classes, "alphas": values, "balanced": balanced, "widens": not alphas}
        if readout != "ridge":
            return (LogisticFitter if readout == "logistic" else WeightedFitter)(**shared)
        return RidgeFitter(
            **shared,
            folds=folds,
            repeats=repeats,
            refits=options.select == "auto" and not folds,
            # With few rows a single fold may decide a regression by chance; a larger penalty does less harm.
            one_standard_error=not classes and repeats > 1,
        )
    if alphas:
        raise InputError(f"--alphas: {readout} takes its parameters after a colon, as in sklearn.svm.LinearSVC:C=0.1,1")
    return EstimatorFitter.parse(readout, classes, balanced=balanced)


@dataclass(frozen=True, kw_only=True)
class FinalReadout:
    """A chosen readout, fitted to all rows that may be used, with its score on test."""

    result: Result
    readout: Readout
    evaluation: Evaluation
    at_edge: bool
    held_out: Callable[[], np.ndarray]


def finish(best: ColumnFit, source: Source, fitter: Fitter, task: Task) -> FinalReadout:
    """Calibrate a chosen readout on valid, fit it to train and valid, and score it on test."""
    readout = best.readout
    held_out = partial(held_out_scores, readout, source, fitter, best.result.alpha)
    if isinstance(readout, LinearReadout):
        # Cross-validation has calibrated its readout, and scikit-learn's estimators keep their own probabilities.
        if task.classes and not isinstance(fitter, EstimatorFitter) and not fitter.folds:
            readout = readout.calibrate(source.blocks("valid"))
            held_out = partial(held_out_scores, readout, source, fitter, best.result.alpha)
        if isinstance(fitter, RidgeFitter) and fitter.refits:
            readout = fitter.refit(source, readout, float(best.result.alpha or 1))
    names = [str(task.label(number)) for number in range(task.classes)]
    kept = source.store.entry.made_with.get("kept", {}).get("test", 1.0)
    found = evaluate(readout, source.blocks("test"), names, source.counts("test"), source.store["test"].groups)
    found = found.with_baseline(task.floor, kept)
    metric = best.result.metric
    interval = balanced_interval(found) if metric == "balanced_accuracy" else found.interval
    result = replace(best.result, test_score=found.scores[metric], test_interval=interval)
    return FinalReadout(result=result, readout=readout, evaluation=found, at_edge=best.at_edge, held_out=held_out)


def held_out_scores(readout: Readout, source: Source, fitter: Fitter, alpha: float | None) -> np.ndarray:
    """Return the nonconformity score of every validation row, ascending, (n,).

    The score is one minus the probability of the row's class, or the distance from the true value (split conformal
    prediction, Vovk et al. 2005). The array is empty if rows have several labels or the readout has no probabilities.
    """
    targets = readout.targets
    if source.tokens() > 1 or targets.outputs > 1 or (targets.classes and not readout.has_probabilities):
        return np.zeros(0)
    if fitter.folds:  # the readout was fitted to train and valid
        alphas = np.array([alpha])
        if isinstance(fitter, RidgeFitter):
            path = fitter.fit_train(source, alphas)
        else:
            train = source.stream("train")
            path = logistic_path(train, targets, alphas, gather(train, targets))
        readout = path.readout(0, targets, getattr(readout, "temperature", 1.0))
    found = []
    for x, y in source.blocks("valid"):
        if targets.classes:
            # Rounded as predict does, so that equal probabilities compare equal.
            chances = np.round(readout.probabilities(x)[:, 0], 6)
            found.append(1 - chances[np.arange(len(x)), y[:, 0].astype(int)])
        else:
            found.append(np.abs(readout.predict(x) - y)[:, 0])
    return np.sort(np.concatenate(found).astype(np.float64))
