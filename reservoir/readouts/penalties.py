"""The penalties that readouts try, and the rules by which one is chosen."""

from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError

DEFAULT_ALPHAS = np.geomspace(1e-2, 1e6, 25)  # of ridge
# Of kernel ridge, as multiples of the mean kernel of a row with itself. On CIFAR-10 all from 0.0003 to 0.03 were within
# half a point.
KERNEL_ALPHAS = np.geomspace(1e-4, 1, 9)
LOGISTIC_ALPHAS = np.logspace(-1, 5, 10)  # of logistic regression
MAX_ALPHAS = 1000  # longest grid: the models of all penalties are in memory at once
ALPHA_LIMITS = 1e-6, 1e10  # to which a grid is extended if the penalty at its end is best
# The penalty if no held-out samples can choose one. With one row per class of 24 sets of series, all from 0.01 to
# 1,000 were equally accurate (.475), and larger ones less (.454).
FIXED_ALPHA = 100.0


def parse_alphas(text: str) -> np.ndarray:
    """Return the penalties of ``LO:HI:N``: N values from LO to HI in equal ratios."""
    try:
        low, high, number = text.split(":")
        grid = float(low), float(high), int(number)
    except ValueError:  # not three fields, or not numbers
        grid = None
    if grid is None or not _is_grid(*grid):
        raise InputError(
            f"penalties {text!r}: not LO:HI:N with 0 < LO <= HI and N from 1 to {MAX_ALPHAS:,}",
            "write a range such as 1e-2:1e6:25; N is 1 only if LO = HI",
        )
    return np.geomspace(*grid)


def _is_grid(low: float, high: float, number: int) -> bool:
    """Return whether ``number`` penalties can go from ``low`` to ``high`` in equal ratios."""
    if number == 1 and low != high:
        return False
    return 0 < low <= high < np.inf and 1 <= number <= MAX_ALPHAS


def check_penalties(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties; raise `InputError` if one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(
            f"readout: the penalties are {alphas.tolist()}", "give one or more, all positive numbers"
        )
    return alphas


class OutputScores(NamedTuple):
    """The accuracy of each output under each penalty, and its standard errors, both (A, outputs); see `Tally`."""

    accuracies: np.ndarray
    errors: np.ndarray


def best_penalty(
    alphas: np.ndarray, accuracies: np.ndarray, losses: np.ndarray, outputs: OutputScores | None = None
) -> int:
    """Return the index of the most accurate penalty; ties go to the smaller loss, then to the larger penalty.

    With the scores of ``outputs``, return that of the largest penalty under which each output is within one standard
    error of its score under the most accurate penalty. The error of a mean over outputs would not do: that of a single
    output with very large values would let every penalty pass.
    """
    # The loss decides ties, because on few rows many penalties are equally accurate, and the largest of them is often
    # far too large. `np.lexsort` sorts in ascending order, by its last key first.
    best = int(np.lexsort((alphas, -losses, accuracies))[-1])
    if outputs is None:
        return best
    is_within_error = (outputs.accuracies >= outputs.accuracies[best] - outputs.errors[best]).all(axis=1)
    return int(np.argmax(np.where(is_within_error, alphas, -np.inf)))


def prefers_large_penalty(classes: int, repeats: int) -> bool:
    """Return whether the largest penalty within one standard error of the best is chosen: for few rows of real values.

    ``classes`` is 0 for real values, and ``repeats`` is how often cross-validation is repeated.
    """
    # Folds are repeated if rows are few. Then a single fold may decide a regression by chance, and a penalty that is
    # too large does less harm than one that is too small.
    has_real_values, has_few_rows = not classes, repeats > 1
    return has_real_values and has_few_rows


def extended_alphas(alphas: np.ndarray, best: int) -> np.ndarray | None:
    """Return the grid extended to 1e-6 or 1e10 if the best penalty is at its end; None if nothing can be added.

    ``best`` is the index of the best penalty. The new penalties of one end, or of both for a single penalty, are added
    all at once, and the grid is sorted.
    """
    low, high = float(np.min(alphas)), float(np.max(alphas))
    # New penalties continue the ratio of the grid, or a third of a decade if that is larger.
    ratio = max(10 ** (1 / 3), (high / low) ** (1 / max(1, len(alphas) - 1)))

    def steps_within(total_ratio: float) -> int:
        """Return how many steps of the ratio fit into the one between an end of the grid and its limit."""
        # The end may be beyond its limit. The small number keeps whole numbers from being rounded down.
        return int(np.log(max(1, total_ratio)) / np.log(ratio) + 1e-9)

    smaller = larger = np.zeros(0)
    if alphas[best] == low:
        smaller = low / ratio ** np.arange(steps_within(low / ALPHA_LIMITS[0]), 0, -1)
    if alphas[best] == high:
        larger = high * ratio ** np.arange(1, steps_within(ALPHA_LIMITS[1] / high) + 1)
    if not len(smaller) and not len(larger):
        return None
    return np.concatenate([smaller, np.sort(alphas), larger])


def fixed_penalty(alphas: np.ndarray) -> np.ndarray:
    """Return the penalty (1,) of a grid that is nearest to `FIXED_ALPHA`, on a log scale."""
    nearest = np.abs(np.log(alphas / FIXED_ALPHA)).argmin()
    return alphas[[nearest]]
