"""Any scikit-learn estimator as a readout, with every combination of the parameters that the user names."""

import ast
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Self

import numpy as np

from reservoir.column import names_of
from reservoir.errors import InputError, as_input_error
from reservoir.readouts.linear import Readout, Targets, accuracy_of
from reservoir_pipelines.fitting.column_fit import ColumnFit
from reservoir_pipelines.fitting.fitter import Fitter, targets_of
from reservoir_pipelines.fitting.result import Result
from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout, linear_form
from reservoir_pipelines.fitting.source import Source


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
            whole = EstimatorReadout(model=model, targets=targets, name=self.path)
            readouts.append(linear_form(whole, x) or whole)
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
        kind = getattr(import_module(module), name)
    is_estimator = isinstance(kind, type) and issubclass(kind, BaseEstimator) and hasattr(kind, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules contain.
    if not is_estimator or (path.startswith("sklearn.") and not kind.__module__.startswith("sklearn.")):
        raise InputError(f"--readout {path}: not a scikit-learn classifier or regressor", "name one")
    with as_input_error(f"--readout {path}: cannot be created", "correct its parameters"):
        suits = (is_classifier if classes else is_regressor)(kind().set_params(**settings))
    if not suits:
        needed = "classifier" if classes else "regressor"
        raise InputError(f"--readout {path}: not a {needed}, which the labels need", "name another class")
    return kind


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()
