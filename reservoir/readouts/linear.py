"""The linear readout that a sweep ends in: what is saved, and what predicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from reservoir.readouts.moments import Block
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReadout:
    """scores = x coef + intercept.

    Parameters
    ----------
    coef : ndarray of float64, (w, t)
        Weights, for features as they are in the store.
    intercept : ndarray of float64, (t,)
        Scores of x = 0.
    targets : Targets
        How scores code labels.
    temperature : float, default 1
        Divides the scores before the softmax of `probabilities`.
    """

    coef: np.ndarray
    intercept: np.ndarray
    targets: Targets
    temperature: float = 1.0

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (n, t) of features (n, w), in float64."""
        return np.asarray(x, np.float64) @ self.coef + self.intercept

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (n, outputs) of features (n, w): class numbers, or real values for regression."""
        return self.targets.predict(self.scores(x))

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes), of features (n, w); not for regression."""
        return self.targets.probabilities(self.scores(x), self.temperature)

    def calibrate(self, blocks: Iterable[Block]) -> LinearReadout:
        """Return the same readout with the temperature that suits blocks of held-out features and labels best."""
        pairs = [(self.scores(x), y) for x, y in blocks]
        scores, labels = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return replace(self, temperature=self.targets.fit_temperature(scores, labels))

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, float | int]]:
        """Return the arrays (for safetensors) and the numbers (for JSON) of the readout."""
        arrays = {"coef": self.coef, "intercept": self.intercept}
        return arrays, {
            "outputs": self.targets.outputs,
            "classes": self.targets.classes,
            "temperature": self.temperature,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float | int]) -> LinearReadout:
        """Build a readout from what `to_arrays` returned."""
        return cls(
            coef=np.asarray(arrays["coef"], np.float64),
            intercept=np.asarray(arrays["intercept"], np.float64),
            targets=Targets(int(numbers["outputs"]), int(numbers["classes"])),
            temperature=float(numbers["temperature"]),
        )
