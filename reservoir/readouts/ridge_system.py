"""One ridge regression (A + alpha I) W = b in either form, and two ways to score rows under all of its penalties."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reservoir.readouts.linear import Targets
from reservoir.readouts.linear_path import LinearPath, Scorer
from reservoir.readouts.moments import Moments
from reservoir.readouts.penalties import check_penalties
from reservoir.readouts.tridiagonal import Reduction, solve_penalties

FoldScorer = Callable[[np.ndarray, slice], np.ndarray]  # samples, some penalties -> scores (A, m, t)


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The ridge regression (A + alpha I) W = b; scores of features x (m, n) are ((x - mean) * scale) W + offset."""

    matrix: np.ndarray  # A (n, n), positive semidefinite and of float64; overwritten when it is solved
    b: np.ndarray  # (n, t)
    mean: np.ndarray
    scale: np.ndarray
    offset: np.ndarray  # (t,)

    def path(self, alphas: np.ndarray) -> LinearPath:
        """Return the solutions of every penalty."""
        weights = solve_penalties(self.matrix, self.b, check_penalties(alphas))
        return LinearPath(alphas, weights, self.offset, self.mean, self.scale)

    def scorer(self, alphas: np.ndarray, rows: float, targets: Targets | None = None) -> FoldScorer:
        """Return a function like a `Scorer` of the path, which will score this number of ``rows``."""
        has_samples = self.b.any(axis=0)  # the scores of a class without samples are its offset
        solutions = len(alphas) * has_samples.sum()
        if min(len(self.b), len(alphas)) == 1 or rows >= solutions:
            return Scorer(self.path(alphas), targets)
        # With A = Q T Q', scores are z W = (z Q) (T + alpha I)^-1 Q' b. It takes less time to rotate the
        # rows z, once, than the solutions of all penalties, because there are fewer rows.
        reduction = Reduction(self.matrix, self.b[:, has_samples])
        weights = reduction.solve(check_penalties(alphas)).transpose(1, 0, 2)
        ones = np.ones_like(self.scale)
        rotated_path = LinearPath(alphas, weights, self.offset[has_samples], 0 * ones, ones)
        scorer = Scorer(rotated_path, targets)

        def scores(x: np.ndarray, chosen: slice) -> np.ndarray:
            rotated = reduction.rotate(((x - self.mean) * self.scale).T).T
            of_classes = scorer(rotated.astype(np.result_type(x.dtype, np.float32)), chosen)
            all_scores = np.full((*of_classes.shape[:2], len(self.offset)), self.offset, of_classes.dtype)
            all_scores[:, :, has_samples] = of_classes
            return all_scores

        return scores


def primal_system(moments: Moments, scale: np.ndarray) -> RidgeSystem:
    """Return the ridge regression of moments, A = Z'Z and b = Z'Y, for features that are multiplied by ``scale``."""
    xx = moments.xx * scale[:, None]
    xx *= scale
    return RidgeSystem(xx, moments.xy * scale[:, None], moments.mean, scale, moments.y_mean)


def dual_system(products: np.ndarray, weights: np.ndarray, y: np.ndarray) -> RidgeSystem:
    """Return the ridge regression of products ZZ' (n, n), A = ZZ' and b = Y, whose solutions are weights of samples.

    The solutions (n, t) apply to the products of a row with each sample. ``weights`` (n,) and targets
    ``y`` (n, t) belong to the samples; the products are centred here, by their weighted means.
    """
    y = y.astype(np.float64)
    share = weights / weights.sum()
    roots = np.sqrt(weights)[:, None]
    # The weighted mean of the targets; relative to the first, so that a constant target is exactly 0 when centred.
    offset = y[0] + share @ (y - y[0])
    # Products of centred samples: (z_i - m)'(z_j - m) = z_i'z_j - z_i'm - m'z_j + m'm, with m = sum share_j z_j.
    with_mean = products @ share
    centred = products - with_mean[:, None] - (with_mean - share @ with_mean)
    # A sample of weight p counts as sqrt(p) times the sample, on both sides.
    centred *= roots
    centred *= roots.T
    return RidgeSystem(centred, (y - offset) * roots, np.zeros(len(y)), roots[:, 0], offset)
