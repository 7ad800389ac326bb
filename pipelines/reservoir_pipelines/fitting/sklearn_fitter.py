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
from reservoir_pipelines.fitting.source import Source

PROBE_ROWS = 512  # rows on which the coefficients must reproduce the estimator's results


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
        # The values of each parameter, and all their combinations.
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

    def with_fixed_penalty(self) -> Self:
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
            # Coefficients are saved without code, so a linear estimator becomes a linear readout.
            fitted = EstimatorReadout(model=model, targets=targets, name=self.path)
            readouts.append(linear_form(fitted, x) or fitted)
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            name = f"{self.path}({values})" if values else self.path
            score = accuracy_of(readouts[-1], source.blocks("valid"))
            results.append(
                Result(
                    columns=names_of(source.columns),
                    readout=name,
                    alpha=None,
                    metric=targets.metric,
                    valid_score=score,
                    converged=converged,
                )
            )
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
            wrapper = MultiOutputClassifier if targets.classes else MultiOutputRegressor
            estimator = wrapper(estimator)
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
        kind = getattr(import_module(module), name)
    is_estimator = isinstance(kind, type) and issubclass(kind, BaseEstimator) and hasattr(kind, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules contain.
    if not is_estimator or (path.startswith("sklearn.") and not kind.__module__.startswith("sklearn.")):
        raise InputError(f"--readout {path}: not a scikit-learn classifier or regressor", "name one")
    suits_labels = is_classifier if classes else is_regressor
    with as_input_error(f"--readout {path}: cannot be created", "correct its parameters"):
        is_suitable = suits_labels(kind().set_params(**settings))
    if not is_suitable:
        needed = "classifier" if classes else "regressor"
        raise InputError(f"--readout {path}: not a {needed}, which the labels need", "name another class")
    return kind


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


@dataclass(frozen=True, kw_only=True)
class EstimatorReadout:
    """A fitted pipeline of standardisation and estimator that is not linear; ``name`` is its import path."""

    model: Any
    targets: Targets
    name: str

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
        # With several outputs, both are lists. A class that no training row has gets the probability 0.
        of_model, classes_of_model = self.model.predict_proba(x), self.model.classes_
        outputs = [(of_model, classes_of_model)]
        if isinstance(of_model, list):
            outputs = list(zip(of_model, classes_of_model, strict=True))
        probabilities = np.zeros((len(x), len(outputs), classes))
        for number, (of_output, classes_of_output) in enumerate(outputs):
            probabilities[:, number, np.asarray(classes_of_output).astype(int)] = of_output
        return probabilities


def linear_form(fitted: EstimatorReadout, x: np.ndarray) -> LinearReadout | None:
    """Return the linear readout whose coefficients reproduce the results on ``x`` (n, w); None if none do."""
    scaler, estimator = fitted.model[0], fitted.model[-1]
    targets = fitted.targets
    x = x[:PROBE_ROWS].astype(np.float64)
    try:
        # The coefficients of all outputs and classes, for features that are not standardised.
        parts = [(np.atleast_2d(member.coef_), member.intercept_) for member in _members(estimator)]
        offsets = np.concatenate([np.broadcast_to(offset, len(coef)) for coef, offset in parts])
        offsets = offsets.astype(np.float64)
        coef = np.concatenate([coef for coef, _ in parts]).astype(np.float64).T / scaler.scale_[:, None]
        readout = LinearReadout(coef=coef, intercept=offsets - scaler.mean_ @ coef, targets=targets)
        if coef.shape[1] != targets.columns:
            return None  # such as one score for each pair of classes
        if not targets.classes:
            return readout if _close(readout.predict(x), fitted.predict(x)) else None
        decision = getattr(fitted.model, "decision_function", None)
        same_scores = decision is None or _close(readout.scores(x), decision(x).reshape(len(x), -1))
        # Rounding may decide ties, for example between classes with equal features.
        if not same_scores or np.mean(readout.predict(x) == fitted.predict(x)) < 0.99:
            return None
        if not fitted.has_probabilities:
            return replace(readout, link="none")
        # The link from scores to probabilities that reproduces those of the estimator.
        expected = fitted.probabilities(x)
        linked = (replace(readout, link=link) for link in LINKS if link != "none")
        return next((form for form in linked if _close(form.probabilities(x), expected)), None)
    except (AttributeError, TypeError, ValueError):
        return None  # without coefficients, or with those of another kind of model


def _members(estimator: Any) -> Iterator[Any]:
    """Yield the estimator, or its parts if it has one for each output or for each class against the rest."""
    if not hasattr(estimator, "estimators_"):
        yield estimator
    for member in getattr(estimator, "estimators_", ()):
        yield from _members(member)


def _close(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values differ from the expected ones by rounding alone."""
    largest = float(np.abs(expected).max(initial=1e-300))
    return bool(np.allclose(values, expected, rtol=1e-6, atol=1e-6 * largest))
