"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

*Labels*: `Targets` codes them as regression targets; `samples` lays out a column of the cache.
*Ridge*: `accumulate` streams data into `Moments`; `ridge_path` and `kernel_path` solve every penalty; `sweep` chooses.
*Results*: `LinearReadout` predicts; `Tally` counts accuracy.
"""

from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.moments import Accumulator, Moments, accumulate, leave_one_out
from reservoir.readouts.ridge import DEFAULT_ALPHAS, RidgePath, Scorer, kernel_path, parse_alphas, ridge_path
from reservoir.readouts.scoring import Tally, accuracy, best_penalty
from reservoir.readouts.sweep import Sweep, fit_path, score, sweep
from reservoir.readouts.targets import Targets, samples, unsample

__all__ = [
    "DEFAULT_ALPHAS",
    "Accumulator",
    "LinearReadout",
    "Moments",
    "RidgePath",
    "Scorer",
    "Sweep",
    "Tally",
    "Targets",
    "accumulate",
    "accuracy",
    "best_penalty",
    "fit_path",
    "kernel_path",
    "leave_one_out",
    "parse_alphas",
    "ridge_path",
    "samples",
    "score",
    "sweep",
    "unsample",
]
