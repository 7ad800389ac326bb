"""Any scikit-learn estimator as a readout: standardised features, a grid over its parameters.

A linear one is stored as coefficients, like the readouts of this project. Any other is stored as a skops archive, which
can run code when it is loaded or used, so `load_estimator` is called only where the user trusts its origin.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from reservoir import InputError
from reservoir.readouts import LinearReadout, Targets
from reservoir.readouts.evaluation import Readout
from reservoir.readouts.linear import LINKS
from reservoir_pipelines.fitting.column_fit import ColumnFit, make_targets, metric_of, score_split
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import Source
from reservoir_pipelines.output import notify

MOST_BYTES = 2 * 10**9  # of float32 features, which an estimator gets all at once
PROBE_ROWS = 512  # on which coefficients must give what their estimator gives


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
        """Return the labels coded as targets, (n, T): what counting right labels needs."""
        return self.targets.encode(self.predict(x))

    @property
    def has_probabilities(self) -> bool:
        """Whether the model gives probabilities, and not labels alone."""
        return hasattr(self.model, "predict_proba")

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes); 1 for the label where the model has none."""
        classes = self.targets.classes
        if not self.has_probabilities:
            return np.eye(classes)[self.predict(x).astype(int)]
        found = self.model.predict_proba(x)
        seen = self.model.classes_
        parts = list(zip(found, seen, strict=True)) if isinstance(found, list) else [(found, seen)]
        out = np.zeros((len(x), len(parts), classes))
        for number, (chances, names) in enumerate(parts):
            out[:, number, np.asarray(names).astype(int)] = chances
        return out


def linear_form(fitted: EstimatorReadout, x: np.ndarray) -> LinearReadout | None:
    """Return a fitted estimator as a linear readout for features as they are in the store; None where it is not linear.

    This depends on no list of classes: coefficients are read from any estimator that has some, and accepted only if
    they reproduce its labels, scores and probabilities on the features ``x`` (n, w).
    """
    scaler, estimator, targets = fitted.model[0], fitted.model[-1], fitted.targets
    x = x[:PROBE_ROWS].astype(np.float64)
    try:
        parts = [(np.atleast_2d(one.coef_), one.intercept_) for one in _members(estimator)]
        rows = np.concatenate([coef for coef, _ in parts]).astype(np.float64)
        offsets = np.concatenate([np.broadcast_to(offset, len(coef)) for coef, offset in parts]).astype(np.float64)
        coef = rows.T / scaler.scale_[:, None]
        readout = LinearReadout(coef=coef, intercept=offsets - scaler.mean_ @ coef, targets=targets)
        return _same_answers(fitted, readout, x) if coef.shape[1] == targets.columns else None
    except (AttributeError, TypeError, ValueError):  # no coefficients, or not those of a linear model
        return None


def _members(estimator: Any) -> Iterator[Any]:
    """Yield the estimators that one of several outputs, or of one class against the rest, consists of, or itself."""
    if not hasattr(estimator, "estimators_"):
        yield estimator
    for one in getattr(estimator, "estimators_", ()):
        yield from _members(one)


def _same_answers(fitted: EstimatorReadout, readout: LinearReadout, x: np.ndarray) -> LinearReadout | None:
    """Return a readout with the link that gives its estimator's probabilities; None where any answer differs."""
    if not readout.targets.classes:
        return readout if _close(readout.predict(x), fitted.predict(x)) else None
    decision = getattr(fitted.model, "decision_function", None)
    if decision is not None and not _close(readout.scores(x), decision(x).reshape(len(x), -1)):
        return None
    # Rounding may decide ties, as between classes that no feature tells apart.
    if np.mean(readout.predict(x) == fitted.predict(x)) < 0.99:
        return None
    if not fitted.has_probabilities:
        return replace(readout, link="none")
    wanted = fitted.probabilities(x)
    links = (replace(readout, link=link) for link in LINKS if link != "none")
    return next((one for one in links if _close(one.probabilities(x), wanted)), None)


def _close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-6, atol=1e-6 * float(np.abs(wanted).max(initial=1e-300))))


def save_estimator(readout: EstimatorReadout) -> bytes:
    """Return a fitted pipeline as the bytes of a skops archive, and print that loading it needs ``--trust``."""
    import skops.io

    try:
        data = skops.io.dumps(readout.model)
    except Exception as error:  # skops raises many kinds for what it cannot describe
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"readout {readout.name}: cannot be saved ({reason}); choose another estimator") from error
    notify(f"readout {readout.name} is not linear: it is saved with skops, and predict loads it only with --trust")
    return data


def load_estimator(data: bytes, name: str, where: str) -> Any:
    """Return the pipeline in a skops archive of the estimator ``name``, which can run code; print what is loaded."""
    import skops.io
    from sklearn.pipeline import Pipeline

    try:
        types = skops.io.get_untrusted_types(data=data)
        notify(f"{where}: loading {name!r} with --trust; it names {', '.join(types) or 'only types that skops trusts'}")
        model = skops.io.loads(data, trusted=types)
    except Exception as error:  # a damaged archive makes skops, NumPy and scikit-learn raise nearly anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"{where}: not readable ({reason}); fit it again") from error
    if not isinstance(model, Pipeline):
        raise InputError(f"{where}: it holds a {type(model).__name__}, not a fitted pipeline; fit it again")
    return model


@dataclass(frozen=True, kw_only=True)
class EstimatorFitter:
    """Fits a scikit-learn estimator, given by its import path, with every combination of the given parameters."""

    path: str
    grid: tuple[dict[str, Any], ...]
    classes: int
    balanced: bool = False

    @classmethod
    def parse(cls, text: str, classes: int, *, balanced: bool = False) -> EstimatorFitter:
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
        known = _default(path, classes).get_params()
        for name in values:
            if name not in known:
                raise InputError(f"--readout {path}: it has no parameter {name!r}; it has {', '.join(sorted(known))}")
        grid = tuple(dict(zip(values, choice, strict=True)) for choice in product(*values.values()))
        return cls(path=path, grid=grid, classes=classes, balanced=balanced)

    def cached_moments(self, source: Source) -> None:
        """Return None: an estimator reads the features themselves."""

    def fit(self, source: Source) -> ColumnFit:
        """Fit every combination to a source and choose one by its score on valid."""
        targets = make_targets(source, self.classes, self.balanced)
        x, y = _training_data(source, self.path)
        found: list[tuple[Result, Readout]] = []
        for settings in self.grid:
            model, converged = _fit(_pipeline(self.path, settings, targets), x, y, source)
            fitted = EstimatorReadout(model=model, targets=targets, name=self.path)
            readout = linear_form(fitted, x) or fitted
            values = ", ".join(f"{name}={value}" for name, value in settings.items())
            result = Result(
                columns=source.columns,
                readout=f"{self.path}({values})" if values else self.path,
                alpha=None,
                valid_score=score_split(readout, source, "valid"),
                metric=metric_of(targets),
                converged=converged,
            )
            found.append((result, readout))
        results, readouts = zip(*found, strict=True)
        best = max(range(len(results)), key=lambda number: results[number].valid_score)
        return ColumnFit(results=results, best=best, readout=readouts[best])


def _training_data(source: Source, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the features (n, w) and labels (n, outputs) of all training samples."""
    blocks, size = [], 0
    for block in source.blocks("train"):
        size += block[0].nbytes
        if size > MOST_BYTES:
            raise InputError(
                f"--readout {path}: the features of the training rows need more than {MOST_BYTES / 1e9:.0f} GB of "
                "memory; use ridge or logistic, which read them in blocks, or fewer rows"
            )
        blocks.append(block)
    x, y = zip(*blocks, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _pipeline(path: str, settings: dict[str, Any], targets: Targets) -> Any:
    """Return a scaler followed by an estimator, or by one estimator per output if there are several."""
    from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    estimator = _import(path)(**settings)
    if targets.outputs > 1:
        estimator = (MultiOutputClassifier if targets.classes else MultiOutputRegressor)(estimator)
    return make_pipeline(StandardScaler(), estimator)


def _fit(model: Any, x: np.ndarray, y: np.ndarray, source: Source) -> tuple[Any, bool]:
    """Fit a pipeline; return it and whether it converged."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            model.fit(x, y.ravel() if y.shape[1] == 1 else y)
        except (ValueError, TypeError) as error:
            reason = str(error).replace("\n", " ")
            raise InputError(f"readout {type(model[-1]).__name__} on {'+'.join(source.columns)}: {reason}") from error
    return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _import(path: str) -> Any:
    from sklearn.base import BaseEstimator

    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--readout {path}: no such readout ({error}); use ridge, logistic or an import path such as "
            "sklearn.linear_model.LogisticRegression"
        ) from error
    estimates = isinstance(found, type) and issubclass(found, BaseEstimator) and hasattr(found, "predict")
    # A recipe may name scikit-learn's estimators, but nothing else that its modules happen to hold.
    foreign = estimates and path.startswith("sklearn.") and not found.__module__.startswith("sklearn.")
    if not estimates or foreign:
        raise InputError(f"--readout {path}: it is no scikit-learn classifier or regressor")
    return found


def _default(path: str, classes: int) -> Any:
    """Return an estimator with its default parameters; refuse one that does not suit the task's labels."""
    from sklearn.base import is_classifier, is_regressor

    try:
        found = _import(path)()
    except TypeError as error:
        raise InputError(f"--readout {path}: it cannot be made from numbers and names alone ({error})") from error
    if classes and not is_classifier(found):
        raise InputError(
            f"--readout {path}: it is no classifier, and the task has {classes} classes; choose one, such as "
            "sklearn.linear_model.LogisticRegression"
        )
    if not classes and not is_regressor(found):
        raise InputError(
            f"--readout {path}: it is no regressor, and the task's targets are real values; choose one, such as "
            "sklearn.linear_model.Ridge"
        )
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()
