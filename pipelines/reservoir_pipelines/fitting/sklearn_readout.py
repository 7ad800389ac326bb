"""A fitted scikit-learn estimator as a readout: coefficients if it is linear, else an archive that can run code."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.readouts.linear import LINKS, LinearReadout, Targets

PROBE_ROWS = 512  # rows on which the coefficients must reproduce the estimator's results


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
        chances, names = self.model.predict_proba(x), self.model.classes_
        outputs = [(chances, names)]
        if isinstance(chances, list):
            outputs = list(zip(chances, names, strict=True))
        probabilities = np.zeros((len(x), len(outputs), classes))
        for number, (of_output, names_of_output) in enumerate(outputs):
            probabilities[:, number, np.asarray(names_of_output).astype(int)] = of_output
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
            return None
        if not targets.classes:
            return readout if _close(readout.predict(x), fitted.predict(x)) else None
        decision = getattr(fitted.model, "decision_function", None)
        same = decision is None or _close(readout.scores(x), decision(x).reshape(len(x), -1))
        # Rounding may decide ties, for example between classes with equal features.
        if not same or np.mean(readout.predict(x) == fitted.predict(x)) < 0.99:
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
    largest = float(np.abs(expected).max(initial=1e-300))
    return bool(np.allclose(values, expected, rtol=1e-6, atol=1e-6 * largest))
