"""What is read of a finished cell: one number by name, from the values that it kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS = {
    "test_score": "test accuracy in percent",
    "train_score": "training accuracy in percent, over the last tenth of the steps",
    "raw_score": "test accuracy of the raw input in percent",
    "converged_step": "steps until the validation score stays within a point of its last value",
    "step_seconds": "seconds of a step",
    "readout_seconds": "seconds of one more readout",
    "cost": "seconds",
    "diagonals": "mean weight on the diagonals over that off them",
    "weight_deviation": "standard deviation of the weights",
    "bias_deviation": "standard deviation of the biases",
}
MEASURES = (*WORDS, "blocks", "width", "heads", "parameters", "trained")
RATIOS = {"step_seconds": ("train_seconds", "steps"), "readout_seconds": ("fit_seconds", "tried")}


def measured(name: str, values: Mapping[str, Any]) -> float | None:
    """Return shares of right labels in percent, all else as it was kept; None where a cell has none such."""
    if name in RATIOS:
        seconds, number = map(values.get, RATIOS[name])
        return seconds / number if seconds is not None and number else None
    value = values.get(name)
    return 100 * value if name.endswith("_score") and value is not None else value
