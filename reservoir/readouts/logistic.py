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
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, LinearPath, Targets, score_path
from reservoir.readouts.moments import BLOCK_ROWS, Moments, inverse
from reservoir.readouts.penalties import LOGISTIC_ALPHAS, check_penalties
from reservoir.readouts.products import LARGE_MATRIX, arithmetic, blas_threads, report_work
from reservoir.readouts.ridge import FewSamples, KernelMatrix, TrainingData, gather
from reservoir.readouts.sweep import Sweep

ValueAndGradient = tuple[float, np.ndarray]  # of a function at a point
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
    size = len(training.xx if isinstance(training, Moments) else training.x)
    with blas_threads(many=size >= LARGE_MATRIX):
        problem = _Problem(train, targets, np.asarray(check_penalties(alphas), np.float64), training)
        minima = problem.minimise(tolerance, passes)
        weights, offset = problem.models({number: minimum.point for number, minimum in enumerate(minima)})
    # A problem is a penalty and an output, penalty by penalty. Weights (w, A * T) become (A, w, T), and intercepts
    # (A * T,) become (A, T).
    weights = weights.reshape(len(weights), len(alphas), -1).transpose(1, 0, 2)
    offset = offset.reshape(len(alphas), -1)
    if targets.classes == 2:  # the logits of a score s are -s and +s, so s is half the log odds
        weights, offset = weights / 2, offset / 2
    # A penalty has converged if the problems of all its outputs have.
    converged = np.array([minimum.converged for minimum in minima]).reshape(len(alphas), -1).min(axis=1)
    return LinearPath(alphas, weights, offset, problem.mean, problem.scale, converged)


@dataclass(frozen=True, eq=False)
class Minimum:
    """The best point of a minimisation, and whether it is the minimum up to the tolerance."""

    point: np.ndarray
    converged: bool


class _Problem:
    """The losses of every penalty and output, in unknowns for which the Hessian is the identity at the start."""

    def __init__(
        self, train: Iterable[Block], targets: Targets, alphas: np.ndarray, training: TrainingData
    ) -> None:
        self.train, self.targets = train, targets
        # Principal axes of the features, from their moments or from the products of few samples.
        axes = _axes_of_moments(training) if isinstance(training, Moments) else _axes_of_samples(training)
        self.mean, self.scale = axes.mean, axes.scale
        # Axes along which nothing varies but rounding errors are left out.
        values = axes.values
        varies = values > len(values) * EPSILON * values[-1]
        self.axes = axes.vectors[:, varies]
        # With few samples, a pass reads their coordinates along the axes instead of their features, which are more.
        self.reads_coordinates = axes.coordinates is not None
        if axes.coordinates is not None:
            labels = np.concatenate([labels for _, labels in train])
            self.train = [(axes.coordinates[:, varies], labels)]
        # Two classes have a single column of scores. The curvature is k of the Hessian at W = 0, see above.
        self.columns = targets.classes if targets.classes > 2 else 1
        curvature = 1 / targets.classes if targets.classes > 2 else 1 / 4
        self.alphas = np.repeat(alphas, targets.outputs)
        # A row is a problem (a penalty and an output); its columns are the axes and, last, the
        # unpenalised intercept. Weights are steps times unknowns: (k l + alpha)^-1/2 along each axis.
        along_axes = 1 / np.sqrt(curvature * values[varies] + self.alphas[:, None])
        of_intercept = 1 / np.sqrt(curvature * axes.count)
        self.steps = np.pad(along_axes, ((0, 0), (0, 1)), constant_values=of_intercept)

    def minimise(self, tolerance: float, passes: int) -> list[Minimum]:
        """Return the minimum of each problem; the unsolved ones share each pass over the features."""
        start = np.zeros(self.steps.shape[1] * self.columns)
        # Each solver yields the next point that it wants to be evaluated, and stops at its minimum.
        solvers = [lbfgs(start, tolerance, passes) for _ in self.alphas]
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
        """Return standardised weights (w, p * columns) and intercepts (p * columns,) of the points of some problems."""
        weights, offset = self._weights_along_axes(points)
        return self.axes @ weights, offset

    def _weights_along_axes(self, points: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return weights along the axes (r, p * columns) and intercepts (p * columns,) of the points of p problems."""
        # (r + 1, p, columns); the last row has the intercepts. Then the columns of all problems side by side.
        stacked = np.stack([self._weights_of(number, point) for number, point in points.items()], axis=1)
        side_by_side = stacked.reshape(len(stacked), len(points) * self.columns)
        return side_by_side[:-1], side_by_side[-1]

    def evaluate(self, points: Mapping[int, np.ndarray]) -> dict[int, ValueAndGradient]:
        """Return the value and gradient of some problems, in one pass over the features.

        ``points`` has the unknowns of each unsolved problem, by its number.
        """
        # Weights of what a pass reads: coordinates, or centred features, whose coordinates are (x - mean) scale V.
        weights, offset = self._weights_along_axes(points)
        if self.reads_coordinates:
            mean = np.zeros(len(weights))
        else:
            weights, mean = self.scale[:, None] * (self.axes @ weights), self.mean
        outputs = np.array([number % self.targets.outputs for number in points])
        # Sum the losses, and their derivatives by these weights and by the intercepts.
        losses = np.zeros(len(points))
        gradient = np.zeros(weights.shape)
        intercept_gradient = np.zeros(len(offset))
        for features, labels in self.train:
            # Without an axis, all features are constant: then every row must be rounded to the same value.
            dtype = np.result_type(features.dtype, np.float32) if self.axes.size else np.float64
            for start in range(0, len(features), BLOCK_ROWS):
                block = slice(start, start + BLOCK_ROWS)
                x, y = features[block].astype(dtype, copy=False), labels[block]
                sample_weights, centred = self.targets.weights(y), np.subtract(x, mean.astype(dtype))
                report_work(2 * centred.size * weights.shape[1])
                scores = centred @ weights.astype(dtype) + offset.astype(dtype)
                loss, residual = self._losses(scores.reshape(len(x), len(points), -1), y[:, outputs])
                if sample_weights is not None:
                    loss *= sample_weights[:, None]
                    residual *= sample_weights[:, None, None].astype(dtype)
                losses += loss.sum(axis=0, dtype=np.float64)
                residual = residual.reshape(len(x), -1)  # (m, p * columns), as the weights are
                gradient += centred.T @ residual
                intercept_gradient += residual.sum(axis=0, dtype=np.float64)
        # By the chain rule: along the axes, and then along the unknowns, which the steps multiply.
        of_axes = gradient if self.reads_coordinates else self.axes.T @ (gradient * self.scale[:, None])
        gradient_along_axes = np.concatenate([of_axes, intercept_gradient[None]])
        gradient_along_axes = gradient_along_axes.reshape(len(of_axes) + 1, len(points), -1)
        # Add the penalty alpha / 2 || W ||^2 and its derivative alpha W, without the intercept.
        evaluations = {}
        for i, (number, point) in enumerate(points.items()):
            penalised, alpha = self._weights_of(number, point), self.alphas[number]
            penalised[-1] = 0  # the intercept
            value = losses[i] + alpha / 2 * float(np.square(penalised).sum())
            gradient_of_point = (gradient_along_axes[:, i] + alpha * penalised) * self.steps[number][
                :, None
            ]
            evaluations[number] = value, gradient_of_point.ravel()
        return evaluations

    def _weights_of(self, number: int, point: np.ndarray) -> np.ndarray:
        """Return a problem's weights along the axes, and its intercepts: (r + 1, columns)."""
        return point.reshape(-1, self.columns) * self.steps[number][:, None]

    def _losses(self, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return losses (m, p) and their derivatives (m, p, columns) with respect to the scores, for labels (m, p)."""
        if self.columns == 1:
            # Two classes: log(1 + exp(s)) - y s, with the derivative sigmoid(s) - y.
            scores, y = scores[..., 0], y.astype(scores.dtype)
            return np.logaddexp(0, scores) - y * scores, (expit(scores) - y)[..., None]
        # More: log sum_c exp(s_c) - s_y, with the derivative softmax(s) - 1 at y and softmax(s) elsewhere.
        labels = y[..., None].astype(np.int64)
        shifted = scores - np.minimum(scores.max(axis=-1, keepdims=True), np.finfo(scores.dtype).max)
        loss = -np.take_along_axis(shifted, labels, axis=-1)[..., 0]
        residual = np.exp(shifted, out=shifted)  # one pass; logsumexp and softmax of SciPy take two
        total = residual.sum(axis=-1, keepdims=True)
        loss += np.log(total[..., 0])
        residual /= total
        np.put_along_axis(residual, labels, np.take_along_axis(residual, labels, axis=-1) - 1, axis=-1)
        return loss, residual


@dataclass(frozen=True)
class _Axes:
    """Principal axes of standardised features, Z'PZ = V diag(l) V': l (r,) ascending and V (w, r)."""

    values: np.ndarray
    vectors: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    count: float  # sum of the sample weights
    coordinates: np.ndarray | None = None  # Z V (n, r) of few samples, in the precision of products


def _axes_of_moments(moments: Moments) -> _Axes:
    """Return the axes of the features of many samples, from their scatter."""
    scale = inverse(moments.std)
    matrix = arithmetic().fetch(moments.xx) * scale * scale[:, None]
    values, vectors = eigh(matrix, driver="evd", overwrite_a=True)
    return _Axes(values, vectors, moments.mean, scale, moments.count)


def _axes_of_samples(training: FewSamples) -> _Axes:
    """Return the axes of the features of few samples, from the products of the samples with each other."""
    # With S = P^1/2 Z and its products SS' = U diag(l) U', the axes are V = S'U l^-1/2.
    kernel = KernelMatrix(training.x, training.weights)
    roots = np.sqrt(kernel.weights)[:, None]
    values, vectors = eigh(kernel.products * roots.T * roots, driver="evd", overwrite_a=True)
    z = kernel.x - kernel.mean
    z *= kernel.scale
    z *= roots
    lengths = np.sqrt(np.maximum(values, np.finfo(float).tiny))
    axes = z.T @ vectors / lengths
    # Coordinates are Z V = P^-1/2 SS'U l^-1/2 = P^-1/2 U l^1/2. A sample without weight needs none.
    dtype = np.result_type(training.x.dtype, np.float32)
    coordinates = np.divide(vectors * lengths, roots, out=np.zeros_like(vectors), where=roots > 0).astype(
        dtype
    )
    return _Axes(values, axes, kernel.mean, kernel.scale, float(kernel.weights.sum()), coordinates)


def lbfgs(
    x: np.ndarray, tolerance: float, evaluations: int
) -> Generator[np.ndarray, ValueAndGradient, Minimum]:
    """Minimise one smooth convex function f: a generator of points that is sent the value and gradient of each.

    A step is shortened until the value falls by 1e-4 of the decrease that the slope predicts. The
    problem is solved if the next step d has || d || <= tolerance * || x ||, or if its predicted
    decrease is below rounding errors.

    Reference: Nocedal and Wright (2006), Numerical optimization, algorithms 7.4 and 7.5, and equation
    3.57.
    """
    value, gradient = yield x
    negligible = EPSILON * abs(value)
    used = 1
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
            if used == evaluations:
                return Minimum(x, converged=False)
            trial = x + step * d
            trial_value, trial_gradient = yield trial
            used += 1
            rise = trial_value - value
            if rise <= ARMIJO * step * slope + ROUNDING * abs(value):
                break
            step *= float(np.clip(-slope * step / (2 * (rise - slope * step)), 0.1, 0.5))
        else:
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
    q = gradient.copy()
    alphas: list[float] = []
    for s, y, sy in reversed(pairs):
        alpha = float(s @ q) / sy  # rho s'q
        alphas.append(alpha)
        q -= alpha * y
    r = q
    if pairs:
        _, y, sy = pairs[-1]
        r *= sy / float(y @ y)
    for (s, y, sy), alpha in zip(pairs, reversed(alphas), strict=True):
        beta = float(y @ r) / sy
        r += (alpha - beta) * s
    return r
