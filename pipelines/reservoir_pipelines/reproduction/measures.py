"""What is read of a finished cell: one number by name, from the values that it kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Values = Mapping[str, Any]


def _percent(name: str) -> Callable[[Values], float | None]:
    return lambda values: None if values.get(name) is None else 100 * values[name]


def _plain(name: str) -> Callable[[Values], float | None]:
    return lambda values: values.get(name)


def _per(name: str, count: str) -> Callable[[Values], float | None]:
    return lambda values: values[name] / values[count] if values.get(name) is not None and values.get(count) else None


MEASURES: dict[str, Callable[[Values], float | None]] = {
    "test_score": _percent("test_score"),
    "train_score": _percent("train_score"),
    "raw_score": _percent("raw_score"),
    "converged_step": _plain("converged_step"),
    "step_seconds": _per("train_seconds", "steps"),
    "readout_seconds": _per("fit_seconds", "tried"),
    "cost": _plain("cost"),
    "blocks": _plain("blocks"),
    "width": _plain("width"),
    "heads": _plain("heads"),
    "parameters": _plain("parameters"),
    "trained": _plain("trained"),
    "diagonals": _plain("diagonals"),
    "weight_deviation": _plain("weight_deviation"),
    "bias_deviation": _plain("bias_deviation"),
}
"""Shares of right labels in percent, everything else as it was kept; None where a cell has none such."""

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
