"""Multinomial logistic readouts for all penalties, fitted in shared passes over the features.

For standardised features z_i, weights p_i and a penalty alpha (scikit-learn's 1 / C), the readout of
an output solves

    min over W, b   sum_i p_i ( log sum_c exp(b_c + W_c' z_i) - (b + W' z_i)_{y_i} )
                    + alpha / 2 || W ||^2 .

At W = 0 and equal class probabilities the Hessian in W is k Z'PZ + alpha I, with P = diag(p) and k =
1 / classes (1 / 4 for two classes, which have one column). Let Z'PZ have eigenvectors V and
eigenvalues l. In the unknowns U of W = V (k l + alpha)^-1/2 U the Hessian is the identity, and L-BFGS
needs tens of passes instead of hundreds.

Samples that are fewer than the features lie in the plane of their principal axes. Their coordinates
Z V there are fewer, and take the place of the features in all passes.

Reference: Boehning (1992), Multinomial logistic regression algorithm (the bound k Z'PZ on the
Hessian).
"""

from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, LinearPath, Targets, score_path
from reservoir.readouts.moments import PRODUCT_ROWS, Moments, inverse
from reservoir.readouts.penalties import LOGISTIC_ALPHAS, check_penalties
from reservoir.readouts.products import LARGE_MATRIX, arithmetic, blas_threads, report_work
from reservoir.readouts.ridge import FewSamples, KernelMatrix, TrainingData, gather
from reservoir.readouts.sweep import Sweep

ValueAndGradient = tuple[float, np.ndarray]
"""The value of a function at a point, and its gradient there, in the shape of the point."""
EPSILON = float(np.finfo(np.float64).eps)
ROUNDING = 1e-8  # relative error of values that are summed from products in float32
ARMIJO = 1e-4  # share of the predicted decrease that a step must reach (Nocedal and Wright, section 3.1)
MAX_SEARCH_STEPS = 20  # each is at most half of the one before, so the last is a millionth of the first
LBFGS_STEPS = 10  # number of steps from which the inverse Hessian is built


def logistic_sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray = LOGISTIC_ALPHAS,
    *,
    moments: Moments | None = None,
) -> Sweep:
    """Fit a logistic readout for every penalty and choose one by validation; ``moments`` of train save a pass."""
    path = logistic_path(train, targets, alphas, gather(train, targets) if moments is None else moments)
    return Sweep(path, score_path(path, valid, targets))


def logistic_path(
    train: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray,
    training: TrainingData,
    *,
    tolerance: float = 1e-4,
    passes: int = 200,
) -> LinearPath:
    """Return the logistic model of every penalty; ``training`` is what `gather` returned for ``train``.

    Products are in float64 for float64 features, else in float32. A penalty is solved if the next
    step is shorter than ``tolerance`` times the solution, and is given up after ``passes`` passes
    over the data.
    """
    if not targets.classes:
        raise InputError(
            "logistic readout: the targets are real values", "use the ridge readout for regression"
        )
    # The size of the largest matrix: one row for each feature, or for each of few samples.
    size = len(training.xx if isinstance(training, Moments) else training.x)
    with blas_threads(many=size >= LARGE_MATRIX):
        problem = _Problem(train, targets, np.asarray(check_penalties(alphas), np.float64), training)
        minima = problem.minimise(tolerance, passes)
        weights, offset = problem.models({number: minimum.point for number, minimum in enumerate(minima)})
    # Each output under each penalty is one minimisation, with the outputs of a penalty next to each other. So weights
    # (w, A * T) become (A, w, T), and intercepts (A * T,) become (A, T).
    weights = weights.reshape(len(weights), len(alphas), -1).transpose(1, 0, 2)
    offset = offset.reshape(len(alphas), -1)
    if targets.classes == 2:  # the logits of a score s are -s and +s, so s is half the log odds
        weights, offset = weights / 2, offset / 2
    # A penalty has converged if the minimisations of all its outputs have.
    converged = np.array([minimum.converged for minimum in minima]).reshape(len(alphas), -1).min(axis=1)
    return LinearPath(alphas, weights, offset, problem.mean, problem.scale, converged)


@dataclass(frozen=True, eq=False)
class Minimum:
    """The best point of a minimisation, and whether it is the minimum up to the tolerance."""

    point: np.ndarray
    converged: bool


@dataclass(frozen=True, eq=False)
class _PassSums:
    """Sums over all samples of p losses, and of their derivatives by u weights and an intercept for each column."""

    losses: np.ndarray  # (p,)
    weight_gradient: np.ndarray  # (u, p * columns)
    intercept_gradient: np.ndarray  # (p * columns,)


class _Problem:
    """The losses of every penalty and output, in unknowns for which the Hessian is the identity at the start.

    Number n is the loss of output n % outputs under penalty n // outputs. Below, p losses are evaluated together, w is
    the number of features, r that of axes, and ``columns`` that of scores of an output.
    """

    def __init__(
        self, train: Iterable[Block], targets: Targets, alphas: np.ndarray, training: TrainingData
    ) -> None:
        self.train, self.targets = train, targets
        # Principal axes of the features, from their moments or from the products of few samples.
        axes = _axes_of_moments(training) if isinstance(training, Moments) else _axes_of_samples(training)
        self.mean, self.scale = axes.mean, axes.scale
        # Axes along which nothing varies but rounding errors are left out.
        eigenvalues = axes.eigenvalues
        varies = eigenvalues > len(eigenvalues) * EPSILON * eigenvalues[-1]  # the last is the largest
        self.axes = axes.vectors[:, varies]
        # With few samples, a pass reads their coordinates along the axes instead of their features, which are more.
        self.reads_coordinates = axes.coordinates is not None
        if axes.coordinates is not None:
            labels = np.concatenate([labels for _, labels in train])
            self.train = [(axes.coordinates[:, varies], labels)]
        # Two classes have a single column of scores. The curvature is k of the Hessian at W = 0, see the module.
        self.columns = targets.classes if targets.classes > 2 else 1
        curvature = 1 / targets.classes if targets.classes > 2 else 1 / 4
        self.alphas = np.repeat(alphas, targets.outputs)  # of each loss
        # Weights are steps times unknowns. The steps (losses, r + 1) are (k l + alpha)^-1/2 along each axis and, last,
        # that of the intercept, which has no penalty and for which the sum of the sample weights stands in place of l.
        along_axes = 1 / np.sqrt(curvature * eigenvalues[varies] + self.alphas[:, None])
        of_intercept = 1 / np.sqrt(curvature * axes.count)
        self.steps = np.pad(along_axes, ((0, 0), (0, 1)), constant_values=of_intercept)

    def minimise(self, tolerance: float, passes: int) -> list[Minimum]:
        """Return the minimum of each loss; those that are not found yet share each pass over the features."""
        start = np.zeros(self.steps.shape[1] * self.columns)
        # Each solver yields the next point that it wants to be evaluated, and stops at its minimum.
        solvers = [lbfgs(start, tolerance, passes) for _ in self.alphas]
        # The points to evaluate next, of the solvers that have not stopped.
        points = {number: next(solver) for number, solver in enumerate(solvers)}
        minima: dict[int, Minimum] = {}
        while points:
            for number, evaluation in self.evaluate(points).items():
                try:
                    points[number] = solvers[number].send(evaluation)
                except StopIteration as stop:
                    minima[number] = stop.value
                    del points[number]
        return [minima[number] for number in range(len(solvers))]

    def models(self, points: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return weights of standardised features (w, p * columns) and intercepts (p * columns,) of p points.

        ``points`` holds the unknowns of each loss by its number.
        """
        weights, offset = self._weights_along_axes(points)
        return self.axes @ weights, offset

    def _weights_along_axes(self, points: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return weights along the axes (r, p * columns) and intercepts (p * columns,) of the points of p losses."""
        # From (r + 1, p, columns), whose last row has the intercepts, to the columns of all losses side by side.
        stacked = np.stack([self._weights_of(number, point) for number, point in points.items()], axis=1)
        side_by_side = stacked.reshape(len(stacked), len(points) * self.columns)
        return side_by_side[:-1], side_by_side[-1]

    def evaluate(self, points: Mapping[int, np.ndarray]) -> dict[int, ValueAndGradient]:
        """Return the value and gradient of some losses, by number, in one pass over the features.

        ``points`` holds the unknowns at which each of them is evaluated, by its number.
        """
        # Weights of what a pass reads: coordinates, or centred features, whose coordinates are (x - mean) scale V.
        weights, offset = self._weights_along_axes(points)
        if self.reads_coordinates:
            mean = np.zeros(len(weights))
        else:
            weights, mean = self.scale[:, None] * (self.axes @ weights), self.mean
        sums = self._pass(points, weights, offset, mean)
        # By the chain rule: the gradient along the axes, (r + 1, p, columns), and then along the unknowns, which the
        # steps multiply.
        if self.reads_coordinates:
            along_axes = sums.weight_gradient
        else:
            along_axes = self.axes.T @ (sums.weight_gradient * self.scale[:, None])
        gradient = np.concatenate([along_axes, sums.intercept_gradient[None]])
        gradient = gradient.reshape(len(gradient), len(points), -1)
        # Add the penalty alpha / 2 || W ||^2 and its derivative alpha W, without the intercept.
        evaluations = {}
        for i, (number, point) in enumerate(points.items()):
            penalised, alpha = self._weights_of(number, point), self.alphas[number]
            penalised[-1] = 0  # the intercept
            value = sums.losses[i] + alpha / 2 * float(np.square(penalised).sum())
            gradient_of_point = (gradient[:, i] + alpha * penalised) * self.steps[number][:, None]
            evaluations[number] = value, gradient_of_point.ravel()
        return evaluations

    def _pass(
        self, numbers: Collection[int], weights: np.ndarray, offset: np.ndarray, mean: np.ndarray
    ) -> _PassSums:
        """Return the sums over all samples of p losses, whose ``numbers`` are given.

        A pass reads u features or coordinates of each sample, and subtracts ``mean`` (u,). The ``weights``
        (u, p * columns) and ``offset`` (p * columns,) make scores of them.
        """
        outputs = np.array([number % self.targets.outputs for number in numbers])
        losses = np.zeros(len(numbers))
        weight_gradient = np.zeros(weights.shape)
        intercept_gradient = np.zeros(len(offset))
        for features, labels in self.train:
            # Without an axis, all features are constant and all rows have the same scores. The rounding errors of
            # float32 would be the same in all rows, too, and add up.
            dtype = np.result_type(features.dtype, np.float32) if self.axes.size else np.float64
            for start in range(0, len(features), PRODUCT_ROWS):
                block = slice(start, start + PRODUCT_ROWS)
                x, y = features[block].astype(dtype, copy=False), labels[block]
                sample_weights, centred = self.targets.weights(y), np.subtract(x, mean.astype(dtype))
                report_work(2 * centred.size * weights.shape[1])
                scores = centred @ weights.astype(dtype) + offset.astype(dtype)
                loss, residual = self._losses(scores.reshape(len(x), len(numbers), -1), y[:, outputs])
                if sample_weights is not None:
                    loss *= sample_weights[:, None]
                    residual *= sample_weights[:, None, None].astype(dtype)
                losses += loss.sum(axis=0, dtype=np.float64)
                residual = residual.reshape(len(x), -1)  # (m, p * columns), as the weights are
                weight_gradient += centred.T @ residual
                intercept_gradient += residual.sum(axis=0, dtype=np.float64)
        return _PassSums(losses, weight_gradient, intercept_gradient)

    def _weights_of(self, number: int, point: np.ndarray) -> np.ndarray:
        """Return the weights along the axes, and last the intercepts, of the point of a loss: (r + 1, columns)."""
        return point.reshape(-1, self.columns) * self.steps[number][:, None]

    def _losses(self, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses (m, p) of scores (m, p, columns) and labels (m, p), and their derivatives by the scores.

        For two classes ``columns`` is 1, else it is the number of classes.
        """
        if self.columns == 1:
            # Two classes: log(1 + exp(s)) - y s, with the derivative sigmoid(s) - y.
            scores, y = scores[..., 0], y.astype(scores.dtype)
            return np.logaddexp(0, scores) - y * scores, (expit(scores) - y)[..., None]
        # More: log sum_c exp(s_c) - s_y, with the derivative softmax(s) - 1 at y and softmax(s) elsewhere.
        labels = y[..., None].astype(np.int64)
        # The largest score is subtracted, so that exp does not overflow. Without the minimum, a score that is infinite
        # already would be subtracted from itself, which gives NaN.
        shifted = scores - np.minimum(scores.max(axis=-1, keepdims=True), np.finfo(scores.dtype).max)
        loss = -np.take_along_axis(shifted, labels, axis=-1)[..., 0]
        residual = np.exp(shifted, out=shifted)  # one pass; logsumexp and softmax of SciPy take two
        total = residual.sum(axis=-1, keepdims=True)
        loss += np.log(total[..., 0])
        residual /= total
        np.put_along_axis(residual, labels, np.take_along_axis(residual, labels, axis=-1) - 1, axis=-1)
        return loss, residual


@dataclass(frozen=True, eq=False)
class _Axes:
    """Principal axes of standardised features, Z'PZ = V diag(l) V', with Z = (X - mean) scale."""

    eigenvalues: np.ndarray  # l (r,), ascending
    vectors: np.ndarray  # V (w, r)
    mean: np.ndarray  # (w,)
    scale: np.ndarray  # (w,)
    count: float  # sum of the sample weights
    # Z V (n, r) of few samples, in the precision of products; None if passes read the features themselves.
    coordinates: np.ndarray | None = None


def _axes_of_moments(moments: Moments) -> _Axes:
    """Return the axes of the features of many samples, from their scatter."""
    scale = inverse(moments.std)
    scatter = arithmetic().fetch(moments.xx) * scale * scale[:, None]  # Z'PZ
    eigenvalues, vectors = eigh(scatter, driver="evd", overwrite_a=True)
    return _Axes(eigenvalues, vectors, moments.mean, scale, moments.count)


def _axes_of_samples(training: FewSamples) -> _Axes:
    """Return the axes of the features of few samples, from the products of the samples with each other."""
    # With S = P^1/2 Z and its products SS' = U diag(l) U', the axes are V = S'U l^-1/2.
    kernel = KernelMatrix(training.x, training.weights)
    roots = np.sqrt(kernel.weights)[:, None]  # P^1/2
    eigenvalues, u = eigh(kernel.products * roots.T * roots, driver="evd", overwrite_a=True)
    # In place, because the features may take most of the memory.
    s = kernel.x - kernel.mean
    s *= kernel.scale
    s *= roots
    # l^1/2, above 0 in spite of rounding errors.
    lengths = np.sqrt(np.maximum(eigenvalues, np.finfo(float).tiny))
    axes = s.T @ u / lengths
    # Coordinates are Z V = P^-1/2 SS'U l^-1/2 = P^-1/2 U l^1/2. A sample without weight needs none: they are 0.
    coordinates = np.divide(u * lengths, roots, out=np.zeros_like(u), where=roots > 0)
    precision = np.result_type(training.x.dtype, np.float32)
    return _Axes(
        eigenvalues,
        axes,
        kernel.mean,
        kernel.scale,
        count=float(kernel.weights.sum()),
        coordinates=coordinates.astype(precision),
    )


def lbfgs(
    x: np.ndarray, tolerance: float, evaluations: int
) -> Generator[np.ndarray, ValueAndGradient, Minimum]:
    """Minimise one smooth convex function f: a generator of points that is sent the value and gradient of each.

    A step is shortened until the value falls by 1e-4 of the decrease that the slope predicts. The
    problem is solved if the next step d has || d || <= tolerance * || x ||, or if its predicted
    decrease is below rounding errors. It is given up, and not converged, after a number of ``evaluations``, or if no
    shorter step decreases the value.

    Reference: Nocedal and Wright (2006), Numerical optimization, algorithms 7.4 and 7.5, and equation
    3.57.
    """
    value, gradient = yield x
    negligible = EPSILON * abs(value)  # a decrease that rounding hides
    used_evaluations = 1
    # s, y and s'y of the last steps (see below), oldest first.
    pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=LBFGS_STEPS)
    while True:
        # The direction d = -H gradient, and the slope of f along it.
        d = -inverse_hessian_product(pairs, gradient)
        slope = float(gradient @ d)
        if np.linalg.norm(d) <= tolerance * np.linalg.norm(x) or -slope <= negligible:
            return Minimum(x, converged=True)
        # Backtracking: after a step that is too long, the next is the minimum of the parabola through the
        # value and the slope at x and the value at the trial point (equation 3.57), within 0.1 to 0.5 of it.
        step = 1.0
        for _ in range(MAX_SEARCH_STEPS):
            if used_evaluations == evaluations:
                return Minimum(x, converged=False)
            trial = x + step * d
            trial_value, trial_gradient = yield trial
            used_evaluations += 1
            rise = trial_value - value
            if rise <= ARMIJO * step * slope + ROUNDING * abs(value):
                break
            step *= float(np.clip(-slope * step / (2 * (rise - slope * step)), 0.1, 0.5))
        else:  # no step was short enough
            return Minimum(x, converged=False)
        # s = x_new - x,  y = gradient_new - gradient. H stays positive definite only with pairs of s'y > 0.
        s, y = trial - x, trial_gradient - gradient
        sy = float(s @ y)
        if sy > 0:
            pairs.append((s, y, sy))
        x = trial
        value, gradient = trial_value, trial_gradient


def inverse_hessian_product(
    pairs: Sequence[tuple[np.ndarray, np.ndarray, float]], gradient: np.ndarray
) -> np.ndarray:
    """Return H g from steps s, changes y of the gradient and products s'y, oldest first (algorithm 7.4).

    H is the inverse Hessian of L-BFGS, with rho = 1 / s'y:

        H = gamma I at first, gamma = s'y / y'y of the last pair,
        then for each pair, oldest first:   H <- (I - rho s y') H (I - rho y s') + rho s s'

    The two loops multiply the factors of this product with g from both sides, without forming H.
    """
    # From the newest pair to the oldest: q = (I - rho y s') ... g.
    q = gradient.copy()
    alphas: list[float] = []  # newest first
    for s, y, sy in reversed(pairs):
        alpha = float(s @ q) / sy  # rho s'q
        alphas.append(alpha)
        q -= alpha * y
    r = q
    if pairs:
        _, y, sy = pairs[-1]
        r *= sy / float(y @ y)  # gamma
    # From the oldest to the newest: r <- (I - rho s y') r + rho s s' q, where rho s'q is the alpha of the pair.
    for (s, y, sy), alpha in zip(pairs, reversed(alphas), strict=True):
        beta = float(y @ r) / sy  # rho y'r
        r += (alpha - beta) * s
    return r
