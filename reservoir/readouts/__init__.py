"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

*Labels*: `Targets` codes them as regression targets; `samples` reshapes a cached column and its labels to samples.
*Ridge*: `accumulate` streams data into `Moments`, from which `ridge_path` solves every penalty; `KernelMatrix` solves
them for fewer samples than features.
*Logistic*: `logistic_sweep` solves every penalty of multinomial logistic regression in the same passes.
*Selection*: `sweep` by a validation split, `cross_sweep` by K folds (`draw_folds`), `forward_selection` over columns,
`score_by_kernel` from a kernel matrix alone; `extended_alphas` extends a grid of penalties, and `balance_raw` weighs
the raw input against other columns.
*Uncertainty*: `accuracy_interval`, `mcnemar`, `paired_bootstrap`.
*Estimators*: `RidgeSweepClassifier` and `RidgeSweepRegressor`, scikit-learn estimators for arrays in memory.
*Devices*: inside ``with products_on(TorchArithmetic("cuda"))`` their matrix products run on a GPU.
*Results*: `Sweep` holds every penalty's `LinearPath`; `LinearReadout` predicts; `Tally` counts accuracy.
"""

from typing import TYPE_CHECKING, Any

from reservoir.readouts.confidence import accuracy_interval, mcnemar, paired_bootstrap
from reservoir.readouts.device import Arithmetic, NumpyArithmetic, TorchArithmetic, arithmetic, products_on
from reservoir.readouts.forward import SelectionStep, forward_selection
from reservoir.readouts.gather import RereadableBlocks, gather, solve, training_moments
from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.kernel_scores import HeldOutScore, kernel_matrix, score_by_kernel
from reservoir.readouts.kfold import add_folds, cross_sweep, draw_folds, fold_moments, partial_moments
from reservoir.readouts.linear import LinearPath, LinearReadout, Scorer
from reservoir.readouts.logistic import LOGISTIC_ALPHAS, logistic_path, logistic_sweep
from reservoir.readouts.moments import Block, Moments, accumulate
from reservoir.readouts.ridge import DEFAULT_ALPHAS, balance_raw, extended_alphas, parse_alphas, ridge_path
from reservoir.readouts.sweep import Sweep, Tally, score, sweep
from reservoir.readouts.targets import Targets, balanced_weights, has_labels, metric_name, samples, unsample

if TYPE_CHECKING:
    from reservoir.readouts.estimators import RidgeSweepClassifier, RidgeSweepRegressor

__all__ = [
    "DEFAULT_ALPHAS",
    "LOGISTIC_ALPHAS",
    "Arithmetic",
    "Block",
    "HeldOutScore",
    "KernelMatrix",
    "LinearPath",
    "LinearReadout",
    "Moments",
    "NumpyArithmetic",
    "RereadableBlocks",
    "RidgeSweepClassifier",
    "RidgeSweepRegressor",
    "Scorer",
    "SelectionStep",
    "Sweep",
    "Tally",
    "Targets",
    "TorchArithmetic",
    "accumulate",
    "accuracy_interval",
    "add_folds",
    "arithmetic",
    "balance_raw",
    "balanced_weights",
    "cross_sweep",
    "draw_folds",
    "extended_alphas",
    "fold_moments",
    "forward_selection",
    "gather",
    "has_labels",
    "kernel_matrix",
    "logistic_path",
    "logistic_sweep",
    "mcnemar",
    "metric_name",
    "paired_bootstrap",
    "parse_alphas",
    "partial_moments",
    "products_on",
    "ridge_path",
    "samples",
    "score",
    "score_by_kernel",
    "solve",
    "sweep",
    "training_moments",
    "unsample",
]


def __getattr__(name: str) -> Any:
    """Import scikit-learn only when one of the estimators is used."""
    if name in {"RidgeSweepClassifier", "RidgeSweepRegressor"}:
        from reservoir.readouts import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
