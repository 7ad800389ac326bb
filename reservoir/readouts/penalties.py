"""The penalties that readouts try, and the rules by which one is chosen."""

import numpy as np

from reservoir.errors import InputError

DEFAULT_ALPHAS = np.geomspace(1e-2, 1e6, 25)  # of ridge
# Of kernel ridge, relative to the mean kernel of a row with itself. On CIFAR-10 all from 0.0003 to 0.03 were within
# half a point.
KERNEL_ALPHAS = np.geomspace(1e-4, 1, 9)
LOGISTIC_ALPHAS = np.logspace(-1, 5, 10)  # of logistic regression
MAX_ALPHAS = 1000  # the models of all penalties are in memory at once
ALPHA_LIMITS = 1e-6, 1e10  # to which a grid is extended if the penalty at its end is best
# Penalty if none can be chosen. With one row per class of 24 sets of series, all from 0.01 to 1,000 were equally
# accurate (.475), and larger ones less (.454).
FIXED_ALPHA = 100.0


def parse_alphas(text: str) -> np.ndarray:
    """Return the penalties of ``LO:HI:N``: N values from LO to HI in equal ratios."""
    try:
        low, high, number = text.split(":")
        grid = float(low), float(high), int(number)
    except ValueError:
        grid = None
    if grid is None or not _is_grid(*grid):
        raise InputError(
            f"penalties {text!r}: not LO:HI:N with 0 < LO <= HI and N from 1 to {MAX_ALPHAS:,}",
            "write a range such as 1e-2:1e6:25; N is 1 only if LO = HI",
        )
    return np.geomspace(*grid)


def _is_grid(low: float, high: float, number: int) -> bool:
    """Return whether a number of penalties can go from ``low`` to ``high`` in equal ratios."""
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


def best_penalty(
    alphas: np.ndarray, accuracies: np.ndarray, losses: np.ndarray, errors: np.ndarray | None = None
) -> int:
    """Return the index of the most accurate penalty; ties go to the smaller loss, then to the larger penalty.

    With standard errors (A,), return the largest penalty whose accuracy is within one standard error
    of the highest.
    """
    # On few rows, many penalties are equally accurate, and the largest of them is often far too large. `np.lexsort`
    # sorts by its last key first, in ascending order.
    best = int(np.lexsort((alphas, -losses, accuracies))[-1])
    if errors is None:
        return best
    is_within_error = accuracies >= accuracies[best] - errors[best]
    return int(np.argmax(np.where(is_within_error, alphas, -np.inf)))


def prefers_large_penalty(classes: int, repeats: int) -> bool:
    """Return whether the largest penalty within one standard error of the best is chosen, as for few rows of values."""
    # Folds are repeated if rows are few. Then a single fold may decide a regression by chance, in which a larger
    # penalty does less harm.
    return not classes and repeats > 1


def extended_alphas(alphas: np.ndarray, best: int) -> np.ndarray | None:
    """Return the grid extended to 1e-6 or 1e10 if the best penalty is at its end; None if nothing can be added."""
    low, high = float(np.min(alphas)), float(np.max(alphas))
    # New penalties continue the ratio of the grid, or a third of a decade if that is larger.
    ratio = max(10 ** (1 / 3), (high / low) ** (1 / max(1, len(alphas) - 1)))

    def steps_to(limit_ratio: float) -> int:
        """Return how many ratios fit between the end of the grid and its limit."""
        return int(np.log(max(1, limit_ratio)) / np.log(ratio) + 1e-9)

    smaller = larger = np.zeros(0)
    if alphas[best] == low:
        smaller = low / ratio ** np.arange(steps_to(low / ALPHA_LIMITS[0]), 0, -1)
    if alphas[best] == high:
        larger = high * ratio ** np.arange(1, steps_to(ALPHA_LIMITS[1] / high) + 1)
    if not len(smaller) + len(larger):
        return None
    return np.concatenate([smaller, np.sort(alphas), larger])


def fixed_penalty(alphas: np.ndarray) -> np.ndarray:
    """Return the penalty (1,) of a grid that is nearest to `FIXED_ALPHA`, on a log scale."""
    return alphas[[np.abs(np.log(alphas / FIXED_ALPHA)).argmin()]]
