"""Any scikit-learn estimator as a readout, with every combination of the parameters that the user names.

A fitted estimator becomes coefficients if it is linear, else an archive that can run code.
"""

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Self

import numpy as np

from reservoir.column import names_of
from reservoir.errors import InputError, as_input_error
from reservoir.readouts.linear import LINKS, LinearReadout, Readout, Targets, accuracy_of
from reservoir_pipelines.fitting.fitter import ColumnFit, Fitter, targets_of
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import KnownSource

PROBE_ROWS = 512  # rows on which the coefficients must reproduce the estimator's results


@dataclass(frozen=True, kw_only=True)
class EstimatorFitter(Fitter):
    """A scikit-learn estimator with every combination of the given parameters."""

    kind = "estimator"
    calibrates = False  # estimators keep their own probabilities
    path: str  # the import path of the estimator's class
    estimator: Callable[..., Any]  # the class
    grid: tuple[dict[str, Any], ...]  # the parameters of each setting, by name

    @classmethod
    def parse(cls, text: str, classes: int, *, balanced: bool = False) -> "EstimatorFitter":
        """Return the fitter of ``module.Class:name=value,value;name=value``.

        Raise `InputError` if the class does not suit labels of so many ``classes`` (0: values), or its parameters.
        """
        path, _, settings = text.partition(":")
        # The values of each parameter, by its name.
        values: dict[str, list[Any]] = {}
        for parameter in filter(None, settings.split(";")):
            name, _, choices = parameter.partition("=")
            values[name.strip()] = [_literal(choice) for choice in choices.split(",")]
        if balanced:
            values["class_weight"] = ["balanced"]
        # All combinations of the values; a single one without parameters if none are named.
        grid = tuple(
            dict(zip(values, combination, strict=True)) for combination in product(*values.values())
        )
        estimator = _estimator(path, classes, grid[0])
        return cls(path=path, estimator=estimator, grid=grid, classes=classes, balanced=balanced)

    @property
    def settings(self) -> int:
        """The number of combinations of parameters."""
        return len(self.grid)

    def without_wider_grid(self) -> Self:
        """Return this fitter, which tries no further parameters."""
        return self

    def with_fixed_penalty(self) -> Self:
        """Return this fitter, which has no penalties."""
        return self

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the parameters of a fit."""
        return replace(self, grid=(self.grid[fit.best],))

    def fit(self, source: KnownSource) -> ColumnFit:
        """Fit every combination to train and choose one by its score on valid."""
        targets = targets_of(source, self.classes, balanced=self.balanced)
        x, y = map(np.concatenate, zip(*source.blocks("train"), strict=True))
        results: list[Result] = []
        readouts: list[Readout] = []
        problem = f"--readout {self.path}: cannot be fitted to {source.name}"
        for settings in self.grid:
            with as_input_error(problem, "correct its parameters"):
                model, converged = self._pipeline(settings, targets, x, y)
            # Coefficients are saved without code, so a linear estimator becomes a linear readout.
            estimator_readout = EstimatorReadout(model=model, targets=targets, name=self.path)
            readout = linear_form(estimator_readout, x) or estimator_readout
            readouts.append(readout)
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            results.append(
                Result(
                    columns=names_of(source.columns),
                    readout=f"{self.path}({values})" if values else self.path,
                    alpha=None,  # estimators have parameters instead of a penalty
                    metric=targets.metric,
                    valid_score=accuracy_of(readout, source.blocks("valid")),
                    converged=converged,
                )
            )
        best = max(range(len(results)), key=lambda index: results[index].valid_score)
        return ColumnFit(
            columns=source.columns,
            results=tuple(results),
            best=best,
            solve=partial(readouts.__getitem__, best),
        )

    def _pipeline(
        self, settings: dict[str, Any], targets: Targets, x: np.ndarray, y: np.ndarray
    ) -> tuple[Any, bool]:
        """Return a fitted pipeline of scaler and estimator for x (n, w) and y (n, outputs), and whether it converged.

        If there are several outputs, the estimator holds one for each.
        """
        # These imports take as long as a small fit by ridge, which does not need them.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        estimator = self.estimator(**settings)
        if targets.outputs > 1:
            wrapper = MultiOutputClassifier if targets.classes else MultiOutputRegressor
            estimator = wrapper(estimator)
        pipeline = make_pipeline(StandardScaler(), estimator)
        # An estimator says by a warning that it has not converged; warnings of all kinds are recorded, not printed.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            # The labels of a single output are (n,) in scikit-learn.
            pipeline.fit(x, y.ravel() if y.shape[1] == 1 else y)
        has_converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        return pipeline, has_converged


def _estimator(path: str, classes: int, settings: dict[str, Any]) -> Callable[..., Any]:
    """Return the class of an import path; raise `InputError` if it does not suit the labels or the parameters.

    ``classes`` is the number of classes of the labels, 0 for values.
    """
    from sklearn.base import BaseEstimator, is_classifier, is_regressor

    module, _, name = path.rpartition(".")
    remedy = "use ridge, logistic or a path such as sklearn.svm.LinearSVC"
    with as_input_error(f"--readout {path}: no such readout", remedy):
        kind = getattr(import_module(module), name)
    is_estimator = isinstance(kind, type) and issubclass(kind, BaseEstimator) and hasattr(kind, "predict")
    # A recipe may name scikit-learn's estimators, but nothing that its modules have imported from elsewhere.
    if not is_estimator or (path.startswith("sklearn.") and not kind.__module__.startswith("sklearn.")):
        raise InputError(f"--readout {path}: not a scikit-learn classifier or regressor", "name one")
    # Only an instance tells its kind, and `set_params` refuses unknown parameters.
    has_suitable_kind = is_classifier if classes else is_regressor
    with as_input_error(f"--readout {path}: cannot be created", "correct its parameters"):
        is_suitable = has_suitable_kind(kind().set_params(**settings))
    if not is_suitable:
        needed = "classifier" if classes else "regressor"
        raise InputError(f"--readout {path}: not a {needed}, which the labels need", "name another class")
    return kind


def _literal(text: str) -> Any:
    """Return the value of a Python literal such as ``0.1`` or ``None``; other text is itself the value."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


@dataclass(frozen=True, kw_only=True)
class EstimatorReadout:
    """A fitted pipeline of standardisation and estimator; it is shown as it is if `linear_form` finds none."""

    model: Any  # the pipeline
    targets: Targets
    name: str  # the import path of the estimator's class

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (n, outputs) of features (n, w)."""
        return np.asarray(self.model.predict(x)).reshape(len(x), self.targets.outputs)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted labels coded as targets, (n, T)."""
        return self.targets.coded(self.predict(x))

    @property
    def has_probabilities(self) -> bool:
        """Whether the model gives probabilities in addition to labels."""
        return hasattr(self.model, "predict_proba")

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes); 1 for the label if the model has none."""
        classes = self.targets.classes
        if not self.has_probabilities:
            return np.eye(classes)[self.predict(x).astype(int)]
        # scikit-learn returns the probabilities (n, classes of the training rows) and these classes or, of several
        # outputs, a list of each.
        of_model, classes_of_model = self.model.predict_proba(x), self.model.classes_
        has_several_outputs = isinstance(of_model, list)
        if not has_several_outputs:
            of_model, classes_of_model = [of_model], [classes_of_model]
        # A class that no training row has gets the probability 0.
        probabilities = np.zeros((len(x), len(of_model), classes))
        for output, (of_output, classes_of_output) in enumerate(
            zip(of_model, classes_of_model, strict=True)
        ):
            probabilities[:, output, np.asarray(classes_of_output).astype(int)] = of_output
        return probabilities


def linear_form(fitted: EstimatorReadout, x: np.ndarray) -> LinearReadout | None:
    """Return the linear readout that has the same results as an estimator; None if the estimator is not linear.

    The results are compared on the first rows of ``x`` (n, w), because coefficients need not mean the same in all
    estimators.
    """
    x = x[:PROBE_ROWS].astype(np.float64)
    try:
        readout = _with_coefficients_of(fitted)
        if readout is None or not _has_same_results(readout, fitted, x):
            return None
        return _with_link_of(fitted, readout, x) if fitted.targets.classes else readout
    except (AttributeError, TypeError, ValueError):
        return None  # the estimator has no coefficients, or those of another kind of model


def _with_coefficients_of(fitted: EstimatorReadout) -> LinearReadout | None:
    """Return a linear readout of an estimator's coefficients, for features that are not standardised.

    None if they are not as many as the targets, such as one score for each pair of classes. Raise `AttributeError`,
    `TypeError` or `ValueError` if the estimator has no coefficients, or others than a linear model.
    """
    scaler, estimator = fitted.model[0], fitted.model[-1]
    # Each member has the coefficients (t, w) and offsets (t,), or a single one, of some targets.
    members = [(np.atleast_2d(member.coef_), member.intercept_) for member in _members(estimator)]
    offsets = np.concatenate([np.broadcast_to(offset, len(coef)) for coef, offset in members])
    offsets = offsets.astype(np.float64)
    # With features z = (x - mean) / scale: z w + offset = x (w / scale) + (offset - mean (w / scale)).
    weights = np.concatenate([coef for coef, _ in members]).astype(np.float64)
    coef = weights.T / scaler.scale_[:, None]
    readout = LinearReadout(coef=coef, intercept=offsets - scaler.mean_ @ coef, targets=fitted.targets)
    return readout if coef.shape[1] == fitted.targets.columns else None


def _has_same_results(readout: LinearReadout, fitted: EstimatorReadout, x: np.ndarray) -> bool:
    """Return whether a readout has the values of an estimator, or its scores and labels of classes, on ``x`` (n, w)."""
    if not fitted.targets.classes:
        return _close(readout.predict(x), fitted.predict(x))
    decision_function = getattr(fitted.model, "decision_function", None)
    has_same_scores = decision_function is None or _close(
        readout.scores(x), decision_function(x).reshape(len(x), -1)
    )
    # Rounding may decide ties, for example between classes with equal features, so a few labels may differ.
    return has_same_scores and bool(np.mean(readout.predict(x) == fitted.predict(x)) >= 0.99)


def _with_link_of(fitted: EstimatorReadout, readout: LinearReadout, x: np.ndarray) -> LinearReadout | None:
    """Return a readout with the link from scores to probabilities that gives those of an estimator on ``x`` (n, w).

    The link is ``none`` if the estimator has no probabilities. None if no link gives them.
    """
    if not fitted.has_probabilities:
        return replace(readout, link="none")
    expected = fitted.probabilities(x)
    for link in LINKS:
        linked = replace(readout, link=link)
        if link != "none" and _close(linked.probabilities(x), expected):
            return linked
    return None


def _members(estimator: Any) -> Iterator[Any]:
    """Yield the single estimators in an estimator, which may have one for each output and for each class.

    An estimator that has no others in ``estimators_`` is a single one.
    """
    if not hasattr(estimator, "estimators_"):
        yield estimator
        return
    for member in estimator.estimators_:
        yield from _members(member)


def _close(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values differ from the expected ones by rounding alone."""
    largest = float(np.abs(expected).max(initial=1e-300))
    return bool(np.allclose(values, expected, rtol=1e-6, atol=1e-6 * largest))
