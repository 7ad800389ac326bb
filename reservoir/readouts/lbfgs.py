"""Limited-memory BFGS for many problems at once, so that one pass over the data serves the next step of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Evaluation = tuple[float, np.ndarray]
"""Value and gradient at a point."""

EPSILON = float(np.finfo(np.float64).eps)
ARMIJO = 1e-4
LONGEST_SEARCH = 20


class Minimum(NamedTuple):
    """Where a minimisation ended: the best point (d,), and whether the next step was within the tolerance."""

    point: np.ndarray
    converged: bool


def minimise_together(
    starts: Sequence[np.ndarray],
    evaluate: Callable[[Mapping[int, np.ndarray]], Mapping[int, Evaluation]],
    *,
    tolerance: float,
    evaluations: int,
    rounding: float = EPSILON,
) -> list[Minimum]:
    """Minimise several smooth convex functions, each from its start, evaluating all that are still open at once.

    ``evaluate`` goes from points by problem number to values and gradients by problem number, whose relative error
    ``rounding`` is: smaller increases count as none. A problem is solved where its next step d has
    || d || <= tolerance * || x ||, or promises to lower the value by less than the rounding of the first one; it ends
    unsolved after so many evaluations.
    """
    solvers = [lbfgs(start, tolerance, evaluations, rounding) for start in starts]
    points = {number: next(solver) for number, solver in enumerate(solvers)}
    minima: dict[int, Minimum] = {}
    while points:
        values = evaluate(points)
        for number in list(points):
            try:
                points[number] = solvers[number].send(values[number])
            except StopIteration as stop:
                minima[number] = stop.value
                del points[number]
    return [minima[number] for number in range(len(starts))]


def lbfgs(
    x: np.ndarray, tolerance: float, evaluations: int, rounding: float = EPSILON, memory: int = 10
) -> Generator[np.ndarray, Evaluation, Minimum]:
    """Minimise one smooth convex function: yields points, is sent (value, gradient), returns a `Minimum`.

    Steps are x - H g with H the inverse Hessian built from the last ``memory`` steps on a scaled identity, halved and
    more until the value falls by a 1e-4th of what the slope promises. A strictly convex function needs no curvature
    condition.

    Reference: Nocedal and Wright (2006), Numerical optimization, algorithms 7.4 and 7.5, and equation 3.57.
    """
    value, gradient = yield x
    negligible = EPSILON * abs(value)
    used = 1
    pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=memory)
    while True:
        direction = -inverse_hessian_product(pairs, gradient)
        slope = float(gradient @ direction)
        if np.linalg.norm(direction) <= tolerance * np.linalg.norm(x) or -slope <= negligible:
            return Minimum(x, converged=True)
        step = 1.0
        for _ in range(LONGEST_SEARCH):
            if used == evaluations:
                return Minimum(x, converged=False)
            trial = x + step * direction
            trial_value, trial_gradient = yield trial
            used += 1
            rise = trial_value - value
            if rise <= ARMIJO * step * slope + rounding * abs(value):
                break
            step *= float(np.clip(-slope * step / (2 * (rise - slope * step)), 0.1, 0.5))
        else:
            return Minimum(x, converged=False)
        moved, turned = trial - x, trial_gradient - gradient
        curvature = float(moved @ turned)
        if curvature > 0:
            pairs.append((moved, turned, curvature))
        x, value, gradient = trial, trial_value, trial_gradient


def inverse_hessian_product(pairs: Sequence[tuple[np.ndarray, np.ndarray, float]], gradient: np.ndarray) -> np.ndarray:
    """Return H g from steps s, changes of gradient y and products s'y, oldest first (two-loop recursion)."""
    product = gradient.copy()
    shares = []
    for moved, turned, curvature in reversed(pairs):
        shares.append(float(moved @ product) / curvature)
        product -= shares[-1] * turned
    if pairs:
        _, turned, curvature = pairs[-1]
        product *= curvature / float(turned @ turned)
    for (moved, turned, curvature), share in zip(pairs, reversed(shares), strict=True):
        product += (share - float(turned @ product) / curvature) * moved
    return product
