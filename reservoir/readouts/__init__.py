"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

*Labels*: `Targets` codes them as regression targets; `samples` lays out a column of the cache.
*Ridge*: `accumulate` streams data into `Moments`; `ridge_path` solves every penalty from them, `Kernel` from samples.
*Logistic*: `logistic_sweep` solves every penalty of multinomial logistic regression in the same passes.
*Selection*: `sweep` by a validation split, `cross_sweep` by K folds (`deal_folds`), `forward_selection` over columns,
`held_out` by a kernel matrix alone;
`widened` carries a grid of penalties on, `beside_raw` gives the raw input its half of what counts.
`accuracy_interval`, `mcnemar`, `paired_bootstrap`: how sure all that is.
*Estimators*: `RidgeSweepClassifier` and `RidgeSweepRegressor`, for arrays in memory and in scikit-learn's sense.
*Devices*: inside ``with products_on(TorchArithmetic("cuda"))`` the matrix products of all these run on a GPU.
*Results*: `Sweep` holds every penalty's `LinearPath`; `LinearReadout` predicts; `Tally` counts accuracy.
"""

from typing import TYPE_CHECKING, Any

from reservoir.readouts.confidence import accuracy_interval, mcnemar, paired_bootstrap
from reservoir.readouts.device import Arithmetic, NumpyArithmetic, TorchArithmetic, arithmetic, products_on
from reservoir.readouts.forward import Step, forward_selection
from reservoir.readouts.gather import Again, gather, solve, training_moments
from reservoir.readouts.held_out import HeldOut, held_out, kernel_matrix
from reservoir.readouts.kernel import Kernel
from reservoir.readouts.kfold import add_folds, cross_sweep, deal_folds, fold_moments, partial_moments
from reservoir.readouts.linear import LinearPath, LinearReadout, Scorer
from reservoir.readouts.logistic import LOGISTIC_ALPHAS, logistic_path, logistic_sweep
from reservoir.readouts.moments import Block, Moments, accumulate
from reservoir.readouts.ridge import DEFAULT_ALPHAS, beside_raw, parse_alphas, ridge_path, widened
from reservoir.readouts.sweep import Sweep, Tally, score, sweep
from reservoir.readouts.targets import Targets, balanced_weights, metric_name, samples, there, unsample

if TYPE_CHECKING:
    from reservoir.readouts.estimators import RidgeSweepClassifier, RidgeSweepRegressor

__all__ = [
    "DEFAULT_ALPHAS",
    "LOGISTIC_ALPHAS",
    "Again",
    "Arithmetic",
    "Block",
    "HeldOut",
    "Kernel",
    "LinearPath",
    "LinearReadout",
    "Moments",
    "NumpyArithmetic",
    "RidgeSweepClassifier",
    "RidgeSweepRegressor",
    "Scorer",
    "Step",
    "Sweep",
    "Tally",
    "Targets",
    "TorchArithmetic",
    "accumulate",
    "accuracy_interval",
    "add_folds",
    "arithmetic",
    "balanced_weights",
    "beside_raw",
    "cross_sweep",
    "deal_folds",
    "fold_moments",
    "forward_selection",
    "gather",
    "held_out",
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
    "solve",
    "sweep",
    "there",
    "training_moments",
    "unsample",
    "widened",
]


def __getattr__(name: str) -> Any:
    """Import scikit-learn only where an estimator is asked for."""
    if name in {"RidgeSweepClassifier", "RidgeSweepRegressor"}:
        from reservoir.readouts import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
