"""Standardisation of real targets for training, and its inverse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.tasks.task import Split


@dataclass(frozen=True)
class TargetScale:
    """Mean and deviation (outputs,) of each output over the training rows; the deviation of a constant output is 1.

    Regression is trained on ``(y - mean) / deviation``, so that neither the learning rate nor the divergence bound
    depends on the unit of the targets.
    """

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray) -> TargetScale:
        """Measure the targets (rows, readout_tokens, outputs) of the training rows."""
        flat = y.reshape(-1, y.shape[-1]).astype(np.float64)
        deviation = flat.std(axis=0)
        return cls(flat.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TargetScale:
        """Build what `to_json` returned."""
        return cls(np.array(values["mean"]), np.array(values["deviation"]))

    def to_json(self) -> dict[str, list[float]]:
        """Return mean and deviation as JSON values."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    def apply(self, split: Split) -> Split:
        """Return a split whose targets are standardised."""
        return replace(split, y=((split.y - self.mean) / self.deviation).astype(np.float32))

    def restore(self, y: np.ndarray) -> np.ndarray:
        """Return standardised targets (rows, readout_tokens, outputs) in the unit of the data."""
        return y * self.deviation + self.mean

    def undo(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return output weights (width, outputs) and intercept (outputs,) that predict in the unit of the data."""
        return coef * self.deviation, intercept * self.deviation + self.mean
