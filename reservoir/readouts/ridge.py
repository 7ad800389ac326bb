"""Exact ridge regression for every penalty and target at once, from moments that are summed block by block.

With z = (x - m) / s the features standardised by their means m and standard deviations s,

    W(alpha) = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

which is W = (Z'Z + alpha I)^-1 Z'(Y - mean Y) from the moments, and b = mean Y. For fewer samples
than features the kernel form W = Z'(ZZ' + alpha I)^-1 (Y - mean Y) needs only ZZ'. The matrix is
reduced once to tridiagonal form, after which each penalty is cheap. In expectation over masks,
dropout of the standardised features with rate p adds exactly such a penalty, alpha = samples * p / (1
- p), so a sweep over penalties is a sweep over dropout rates.

References: Hoerl and Kennard 1970, Ridge regression; Wager et al. 2013, Dropout training as adaptive
regularization.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh_tridiagonal, get_blas_funcs, get_lapack_funcs
from threadpoolctl import ThreadpoolController

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, FoldBlock, LinearReadout, Tally, Targets
from reservoir.work import report_work

_add_square: Any = get_blas_funcs("syrk", dtype=np.float64)
_reduce, _reduce_work, _apply, _solve = get_lapack_funcs(
    ("sytrd", "sytrd_lwork", "ormqr", "ptsv"), dtype=np.float64
)

DEFAULT_ALPHAS = np.geomspace(1e-2, 1e6, 25)
CHUNK = 2048  # features of a kernel matrix that are read at once
BLOCK_ROWS = 2048  # products reach 93% of the speed of a single one; of 1,024 rows, 78%
# From this number of multiplications of a product, or rows of a reduced matrix, BLAS uses all its
# threads. With fewer, they mostly wait for each other: the readouts of 1,078 digits took 10 s in two
# threads and 7 s in one.
LARGE_PRODUCT, LARGE_MATRIX = 1e9, 4096
# A reduction of n columns takes 2/3 n^3 multiplications. Half of them wait for memory, which takes three times as long.
REDUCTION_WORK = 4 / 3


_blas = cache(ThreadpoolController)


def blas_threads(*, many: bool) -> AbstractContextManager[Any]:
    """Return a context in which BLAS and LAPACK use one thread, or with ``many`` all of their threads."""
    return _blas().limit(limits=None if many else 1, user_api="blas")


@dataclass(frozen=True)
class Arithmetic:
    """Matrix products with NumPy on the CPU, or with torch on a ``device`` named as in torch, such as ``cuda:1``.

    Data is moved to the device block by block. Moments and kernel matrices are in float64, scores in
    the precision of the features, and never in TF32, whose 10-bit mantissa would cost three digits.
    """

    device: str | None = None

    def put(self, x: np.ndarray) -> Any:
        """Return a tensor of the same dtype on the device, or without a device the array itself."""
        if self.device is None:
            return x
        import torch

        return torch.tensor(np.ascontiguousarray(x), device=self.device)

    def fetch(self, x: Any) -> np.ndarray:
        """Return a tensor as a NumPy array."""
        return x if self.device is None else x.cpu().numpy()

    def product(self, a: Any, b: Any) -> Any:
        """Return the matrix product; `products_on` disables TF32."""
        # At the start, so that a line of progress includes the product that runs while it is printed.
        report_work(math.prod(a.shape) * b.shape[-1])
        if self.device is None:
            with blas_threads(many=a.size * b.shape[-1] >= LARGE_PRODUCT):
                return a @ b
        return a @ b

    def add_square(self, total: Any, x: Any) -> None:
        """Add x'x (float64) to the lower triangle of a total, in place."""
        report_work(math.prod(x.shape) * len(total) / 2)
        if self.device is None:
            with blas_threads(many=x.size * len(total) >= LARGE_PRODUCT):
                # A C array and the transpose of one are read as they are, in BLAS's order.
                first, across = (x.T, 0) if x.flags.c_contiguous else (x, 1)
                _add_square(1.0, first, beta=1.0, c=total.T, trans=across, overwrite_c=1)
        else:
            total.addmm_(x.T, x)


_current: ContextVar[Arithmetic] = ContextVar("arithmetic", default=Arithmetic())  # noqa: B039, it is frozen
arithmetic = _current.get  # the arithmetic of the innermost `products_on`


@contextmanager
def products_on(chosen: Arithmetic) -> Iterator[None]:
    """Use one arithmetic for all readouts that are fitted inside the ``with`` block, on a device without TF32."""
    exact: AbstractContextManager[None] = nullcontext()
    if chosen.device is not None:
        from reservoir.devices import exact_products  # imports torch

        exact = exact_products()
    token = _current.set(chosen)
    try:
        with exact:
            yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Centred second moments of features and targets; their size depends on the width alone.

    For samples x (w,), targets y (t,) and weights p (1 by default), ``count`` is sum p, ``mean`` (w,)
    is m = sum p x / sum p, ``y_mean`` (t,) is n = sum p y / sum p, and

        xx = sum p (x - m)(x - m)'      xy = sum p (x - m)(y - n)'
    """

    count: float
    mean: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    y_mean: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (w,), as ``StandardScaler`` computes them; exactly 0 for constant channels."""
        return deviation(np.diagonal(self.xx) / self.count, self.mean)

    def scale(self, emphasis: np.ndarray | None = None) -> np.ndarray:
        """Return the factors (w,) that standardise features, times ``emphasis`` (w,)."""
        return inverse(self.std) * (1.0 if emphasis is None else emphasis)

    def system(self, scale: np.ndarray) -> RidgeSystem:
        """Return the ridge regression of features that are multiplied by a scale (w,)."""
        xx = self.xx * scale[:, None]
        xx *= scale
        return RidgeSystem(xx, self.xy * scale[:, None], self.mean, scale, self.y_mean)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of samples together (Chan, Golub and LeVeque 1983, equation 2.1)."""
        count = self.count + other.count
        apart, y_apart = other.mean - self.mean, other.y_mean - self.y_mean
        share, product = other.count / count, self.count * other.count / count
        xx = np.multiply.outer(product * apart, apart)
        xx += self.xx
        xx += other.xx
        return Moments(
            count=count,
            mean=self.mean + share * apart,
            xx=xx,
            xy=self.xy + other.xy + np.multiply.outer(product * apart, y_apart),
            y_mean=self.y_mean + share * y_apart,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fields as float64 arrays, by name; `from_arrays` is the inverse."""
        return {name: np.asarray(value, np.float64) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Moments:
        """Build moments from the arrays of `to_arrays`."""
        return cls(**{**arrays, "count": float(arrays["count"])})


class Accumulator:
    """Builder of `Moments` from blocks of any size, in memory of the order of the squared number of features."""

    def __init__(self) -> None:
        self._on, self._filled = arithmetic(), 0
        self._shift: tuple[Any, Any] | None = None

    def _allocate(self, width: int, targets: int) -> None:
        # Sums are in float64. If the largest eigenvalue of the scatter is 1e7, as for 10,000 rows of
        # a transformer's features, products in float32 err by about 1, and so hide a penalty of about
        # 1 in every solution.
        def zeros(*shape: int) -> Any:
            return self._on.put(np.zeros(shape))

        self._x, self._xx = zeros(BLOCK_ROWS, width), zeros(width, width)
        # The last column holds square roots of the weights, so that its products with the others are
        # sums over rows.
        self._z, self._xz, self._sums = (zeros(rows, targets + 1) for rows in (BLOCK_ROWS, width, 1))

    def update(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add samples: features (m, w) and targets (m, t) of any real dtype, and weights (m,), 1 by default."""
        if not hasattr(self, "_x"):
            self._allocate(x.shape[1], y.shape[1])
        roots, start = np.ones(len(x)) if weights is None else np.sqrt(weights), 0
        while start < len(x):  # so that the bits do not depend on the sizes of blocks
            stop = min(start + BLOCK_ROWS - self._filled, len(x))
            rows = slice(self._filled, self._filled + stop - start)
            self._x[rows], self._z[rows, :-1] = self._on.put(x[start:stop]), self._on.put(y[start:stop])
            self._z[rows, -1] = self._on.put(roots[start:stop])
            self._filled, start = rows.stop, stop
            if self._filled == BLOCK_ROWS:
                self._multiply()

    def moments(self) -> Moments:
        """Return the moments of all samples so far; raise `InputError` if none were added, or if one is not finite."""
        if self._filled:
            self._multiply()
        count = 0.0 if self._shift is None else float(self._sums[0, -1])
        if self._shift is None or count <= 0:
            raise InputError("moments: no sample has a weight above 0", "give at least one")
        lower, xz, sums, shift, y_shift = map(
            self._on.fetch, (self._xx, self._xz, self._sums, *self._shift)
        )
        apart, y_apart = xz[:, -1] / count, sums[0, :-1] / count
        xx = np.multiply.outer(-count * apart, apart)
        xx += lower
        fill_upper(xx)
        y_mean = y_shift + y_apart
        check_finite(np.diagonal(xx), "feature")
        check_finite(y_mean, "target")
        xy = xz[:, :-1] - np.multiply.outer(count * apart, y_apart)
        return Moments(count=count, mean=shift + apart, xx=xx, xy=xy, y_mean=y_mean)

    def _multiply(self) -> None:
        """Add the products of the gathered rows to the sums and start a new block; the first block sets the shift."""
        x, z = self._x[: self._filled], self._z[: self._filled]
        y, roots = z[:, :-1], z[:, -1:]
        if self._shift is None:  # or a channel at 3000 +- 0.5 would lose half its digits
            self._shift = x.mean(0), y.mean(0)
        x -= self._shift[0]
        x *= roots
        y -= self._shift[1]
        y *= roots
        self._on.add_square(self._xx, x)
        self._xz += self._on.product(x.T, z)
        self._sums += self._on.product(roots.T, z)
        self._filled = 0


def fill_upper(matrix: np.ndarray) -> np.ndarray:
    """Copy the lower triangle of a matrix to the upper one, in place, and return the matrix."""
    for row in range(1, len(matrix)):
        matrix[:row, row] = matrix[row, :row]
    return matrix


def check_finite(values: np.ndarray, what: str, first: int = 0) -> None:
    """Raise `InputError` that names the first feature or target, counted from ``first``, that is not finite."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        number = first + wrong[0]
        raise InputError(
            f"readout: {what} {number} is not finite, or too large, in some row", "remove the row"
        )


def accumulate(blocks: Iterable[tuple[Any, ...]]) -> Moments:
    """Return the moments of a stream of features (m, w), targets (m, t) and, optionally, weights (m,)."""
    accumulator = Accumulator()
    for block in blocks:
        accumulator.update(*block)
    return accumulator.moments()


def training_moments(blocks: Iterable[Block], targets: Targets) -> Moments:
    """Return the moments of blocks of features (m, w) and labels (m, outputs), encoded and weighted."""
    return accumulate((x, targets.encode(y), targets.weights(y)) for x, y in blocks)


def by_fold(train: Iterable[FoldBlock], repeat: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of each block fold by fold: fold number, features, labels and optional weights."""
    for x, y, fold, *weights in train:
        numbers = fold.reshape(len(x), -1)[:, repeat]
        for k in np.unique(numbers).tolist():
            yield k, *(part[numbers == k] for part in (x, y, *weights))


def fold_moments(
    train: Iterable[FoldBlock], targets: Targets, folds: int, repeat: int = 0
) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds)."""
    accumulators = [Accumulator() for _ in range(folds)]
    for k, x, y, *weights in by_fold(train, repeat):
        accumulators[k].update(x, targets.encode(y), targets.weights(y, *weights))
    return [accumulator.moments() for accumulator in accumulators]


class Samples(NamedTuple):
    """Samples in memory: features (n, w), encoded targets (n, t), and weights (n,) or None if all are 1."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None


Training = Moments | Samples
FoldScorer = Callable[[np.ndarray, slice], np.ndarray]  # samples, some penalties -> scores (A, m, t)


def gather(blocks: Iterable[Block], targets: Targets) -> Training:
    """Read training data once: return samples if they are fewer than the features, else moments (w, w)."""
    few, stream = head(blocks)
    if few is None:
        return training_moments(stream, targets)
    x, y = few
    return Samples(x=x, y=targets.encode(y), weights=targets.weights(y))


def head(blocks: Iterable[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...] | None, Iterable[Any]]:
    """Return the blocks concatenated if samples are fewer than features; else None and the stream."""
    seen: list[tuple[np.ndarray, ...]] = []
    stream = iter(blocks)
    for block in stream:
        seen.append(block)
        if sum(len(x) for x, *_ in seen) >= block[0].shape[1]:
            return None, itertools.chain(seen, stream)
    return tuple(np.concatenate(part) for part in zip(*seen, strict=True)), ()


def deviation(variance: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return standard deviations, which are exactly 0 for channels that are constant up to rounding."""
    # Equal float64 values can differ from their own mean by its rounding.
    constant = variance <= np.square(10 * np.finfo(np.float64).eps * mean)
    return np.sqrt(np.where(constant, 0.0, variance))


class LinearPath:
    """The linear models of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    They are made from weights (A, w, t) of standardised features (x - mean) * scale, and their offset
    (A, t) or (t,). ``coef`` (A, w, t) is exactly 0 for constant channels, ``intercept`` (A, t) holds
    the scores of x = 0, and ``converged`` (A,) says whether an iterative solver reached its
    tolerance.
    """

    def __init__(
        self,
        alphas: np.ndarray,
        weights: np.ndarray,
        offset: np.ndarray,
        mean: np.ndarray,
        scale: np.ndarray,
        converged: np.ndarray | None = None,
    ) -> None:
        self.alphas, self.coef, self.center = np.asarray(alphas, np.float64), weights * scale[:, None], mean
        self.intercept = offset - mean @ self.coef
        self.converged = np.ones(len(alphas), bool) if converged is None else converged

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        coef, intercept = self.coef[index], self.intercept[index]
        return LinearReadout(coef=coef, intercept=intercept, targets=targets, temperature=temperature)


class Scorer:
    """Scores blocks of features under every penalty of a path, or those ``chosen``, with one product per block."""

    def __init__(self, path: LinearPath, targets: Targets | None = None) -> None:
        # For real targets the offset is added in float64: float32 next to a mean of 1e5 would lose a
        # spread of 0.3.
        self._path, self._real = path, targets is not None and not targets.classes
        self._on, self._dtype = arithmetic(), np.dtype(np.void)

    def __call__(self, x: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
        """Return scores (A, n, t) of features (n, w), in float64 for float64 features or real targets, else float32."""
        dtype, path, on = np.result_type(x.dtype, np.float32), self._path, self._on
        if dtype != self._dtype:
            center = path.center.astype(dtype)
            # The offset must be computed with the rounded center, which is the one that is subtracted.
            self._offset = (path.intercept + center @ path.coef).astype(np.float64 if self._real else dtype)
            self._weights = on.put(path.coef.transpose(1, 0, 2).astype(dtype, copy=False))
            self._center, self._dtype = on.put(center), dtype
        offset, weights = self._offset[chosen], self._weights[:, chosen].reshape(len(path.center), -1)
        centred = on.put(x) - self._center  # keeps the digits of a channel at 3000 +- 0.5
        scores = on.fetch(on.product(centred, weights)).astype(offset.dtype, copy=False)
        scores += offset.ravel()
        return scores.reshape(len(x), *offset.shape).transpose(1, 0, 2)


def score(path: LinearPath, blocks: Iterable[Block], targets: Targets) -> Tally:
    """Return the tally of every penalty over blocks of features (m, w) and labels (m, outputs)."""
    scorer, tally = Scorer(path, targets), Tally(targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally


class Reduction:
    """The systems (A + alpha I) x = b of all penalties, after one reduction of A (n, n), which is overwritten.

    With A = Q T Q', Q orthogonal and T tridiagonal,

        (A + alpha I)^-1 b = Q (T + alpha I)^-1 Q' b

    takes linear time for each further penalty, in addition to the products with Q.

    References: Golub and Van Loan (2013), Matrix computations, section 8.3.1; Elden (1977), BIT 17,
    134-145.
    """

    def __init__(self, matrix: np.ndarray, b: np.ndarray) -> None:
        n = len(matrix)
        report_work(REDUCTION_WORK * n**3)
        # For 768 columns the reduction took a quarter of the time of a symmetric eigendecomposition,
        # which begins with it. The transpose of a symmetric C array is the same matrix in Fortran
        # order, so nothing is copied.
        work = int(_reduce_work(n, lower=1)[0])
        with blas_threads(many=n >= LARGE_MATRIX):
            reduced, diagonal, off, self._factors, _ = _reduce(matrix.T, lower=1, lwork=work, overwrite_a=1)
        self._diagonal, self._off = diagonal, off
        self._reflectors = np.asfortranarray(reduced[1:, :-1])  # Householder vectors of Q
        # Rounding can push eigenvalues of a singular matrix to 0 or below. A penalty that lifts them
        # above the rounding error of the largest one is used as it is; a smaller one is raised until
        # it does: T + alpha I must be definite.
        lowest, *_ = eigvalsh_tridiagonal(diagonal, off, select="i", select_range=(0, 0))
        top = np.abs(diagonal).max() + 2 * np.abs(off).max()
        self._least = n * np.finfo(np.float64).eps * top - lowest
        self._rotated = self.rotate(b)

    def rotate(self, b: np.ndarray, trans: bytes = b"T") -> np.ndarray:
        """Return Q' b, or Q b with ``trans`` b"N"; the reflectors do not change the first coordinate."""
        report_work(len(b) ** 2 * b.shape[1])
        rest = np.array(b[1:], np.float64, order="F")
        apply = partial(_apply, b"L", trans, self._reflectors, self._factors, overwrite_c=1)
        with blas_threads(many=len(b) >= LARGE_MATRIX):
            rest, _, info = apply(rest, int(apply(rest, -1)[1][0]))
        assert info == 0
        return np.concatenate([b[:1], rest])

    def solve(self, alphas: np.ndarray) -> np.ndarray:
        """Return (T + alpha I)^-1 Q' b for every penalty, (n, a, t)."""
        solved = np.empty((len(self._diagonal), len(alphas), self._rotated.shape[1]))
        for i, alpha in enumerate(np.maximum(alphas, self._least)):
            *_, solved[:, i], info = _solve(self._diagonal + alpha, self._off, self._rotated)
            assert info == 0, "a definite matrix has a factorisation"
        return solved


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
        return LinearPath(alphas, self._solve(positive(alphas)), self.offset, self.mean, self.scale)

    def _solve(self, alphas: np.ndarray) -> np.ndarray:
        matrix, n = self.matrix, len(self.b)
        if n == 1:
            return self.b / (matrix + alphas[:, None, None])
        # A single penalty above the rounding errors of A needs only a Cholesky factorisation: a tenth
        # of the time.
        if len(alphas) == 1 and alphas[0] > n * np.finfo(np.float64).eps * np.trace(matrix):
            report_work(n**3 / 6 + n**2 * self.b.shape[1])
            matrix[np.diag_indices(n)] += alphas[0]
            with blas_threads(many=n >= LARGE_MATRIX):
                factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
                return cho_solve(factor, self.b, check_finite=False)[None]
        reduction = Reduction(matrix, self.b)
        solved = reduction.solve(alphas)
        return reduction.rotate(solved.reshape(n, -1), b"N").reshape(solved.shape).transpose(1, 0, 2)

    def scorer(self, alphas: np.ndarray, rows: float, targets: Targets | None = None) -> FoldScorer:
        """Return a function like a `Scorer` of the path, which will score this number of ``rows``."""
        used = self.b.any(axis=0)  # the scores of a class without samples are its offset
        if min(len(self.b), len(alphas)) == 1 or rows >= len(alphas) * used.sum():
            return Scorer(self.path(alphas), targets)
        # It takes less time to rotate the rows than the solutions of all penalties.
        reduction, one = Reduction(self.matrix, self.b[:, used]), np.ones_like(self.scale)
        weights = reduction.solve(positive(alphas)).transpose(1, 0, 2)
        scorer = Scorer(LinearPath(alphas, weights, self.offset[used], 0 * one, one), targets)

        def scores(x: np.ndarray, chosen: slice) -> np.ndarray:
            rotated = reduction.rotate(((x - self.mean) * self.scale).T).T
            found = scorer(rotated.astype(np.result_type(x.dtype, np.float32)), chosen)
            whole = np.full((*found.shape[:2], len(self.offset)), self.offset, found.dtype)
            whole[:, :, used] = found
            return whole

        return scores


def ridge_path(moments: Moments, alphas: np.ndarray, scale: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solutions from moments; features are multiplied by ``scale`` (w,), 1 / std by default."""
    return moments.system(moments.scale() if scale is None else scale).path(alphas)


class KernelMatrix:
    """Ridge regression from the products ZZ' of samples: one matrix serves all folds and penalties.

    Features are scaled by their standard deviation over all samples, as in the final readout, times
    ``emphasis`` (w,), and centred by the mean of the fitted samples. Samples ``x`` (n, w) have
    ``weights`` (n,), 1 by default. ``known`` is the `KernelMatrix` of the first features of ``x``,
    with the same weights and without emphasis; its products are reused if ``emphasis`` is the same
    for all these features.
    """

    def __init__(
        self,
        x: np.ndarray,
        weights: np.ndarray | None = None,
        emphasis: np.ndarray | None = None,
        known: KernelMatrix | None = None,
    ) -> None:
        self.weights = np.ones(len(x)) if weights is None else weights
        emphasis = np.ones(x.shape[1]) if emphasis is None else emphasis
        self.x, self.mean, self.scale = x, np.empty(x.shape[1]), np.empty(x.shape[1])
        if known is not None and np.ptp(emphasis[: len(known.mean)]) > 0:
            known = None
        on = arithmetic()
        total = on.put(np.zeros((len(x), len(x))))
        for part in self._chunks(0 if known is None else len(known.mean)):
            z = x[:, part].astype(np.float64)
            self.mean[part] = mean = np.average(z, axis=0, weights=weights)
            z -= mean
            variance = np.average(np.square(z), axis=0, weights=weights)
            check_finite(variance, "feature", part.start)
            self.scale[part] = inverse(deviation(variance, mean)) * emphasis[part]
            z *= self.scale[part]
            on.add_square(total, on.put(z).T)
        self.products = fill_upper(on.fetch(total))
        if known is not None:
            first, factor = slice(len(known.mean)), emphasis[0]
            self.mean[first], self.scale[first] = known.mean, known.scale * factor
            self.products += known.products * factor**2

    def path(self, y: np.ndarray, alphas: np.ndarray) -> LinearPath:
        """Return the ridge solutions of every penalty for targets (n, t)."""
        system, on = _dual_system(self.products, self.weights, y), arithmetic()
        dual = system.path(alphas).coef.transpose(1, 0, 2)
        on_device = on.put(np.ascontiguousarray(dual).reshape(len(y), -1))
        coef = np.empty((self.x.shape[1], len(alphas) * y.shape[1]))
        for part in self._chunks():
            z = self.x[:, part] - self.mean[part]
            z *= self.scale[part]
            coef[part] = on.fetch(on.product(on.put(z).T, on_device))
        weights = coef.reshape(len(coef), len(alphas), -1).transpose(1, 0, 2)
        return LinearPath(alphas, weights, system.offset, self.mean, self.scale)

    def first(self, rows: int) -> KernelMatrix:
        """Return the matrix of the first samples; features are scaled by their standard deviation over all samples."""
        part = copy(self)
        part.x, part.weights = self.x[:rows], self.weights[:rows]
        part.products = self.products[:rows, :rows]
        part.mean = np.concatenate(
            [np.average(part.x[:, one], axis=0, weights=part.weights) for one in self._chunks()]
        )
        return part

    def _chunks(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, self.x.shape[1], CHUNK):
            yield slice(start, min(start + CHUNK, self.x.shape[1]))


def solve(training: Training, alphas: np.ndarray, emphasis: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solution of every penalty, from moments or in kernel form from samples."""
    if isinstance(training, Moments):
        return ridge_path(training, alphas, training.scale(emphasis))
    return KernelMatrix(training.x, training.weights, emphasis).path(training.y, alphas)


def held_out_scores(
    products: np.ndarray, weights: np.ndarray, y: np.ndarray, fold: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Return the scores (A, n, t) of samples with targets (n, t), each by the models fitted to the other folds."""
    scores = np.empty((len(alphas), *y.shape))
    for k in np.unique(fold):
        fitted, held = fold != k, fold == k
        among_fitted = products[np.ix_(fitted, fitted)]
        score = _dual_system(among_fitted, weights[fitted], y[fitted]).scorer(alphas, held.sum())
        # Products of held-out samples with fitted ones, both centred by the mean of the fitted samples.
        share = weights[fitted] / weights[fitted].sum()
        with blas_threads(many=len(products) >= LARGE_MATRIX):
            among = among_fitted @ share
            with_held = products[np.ix_(held, fitted)]
            with_held = with_held - (with_held @ share)[:, None] - among + share @ among
        scores[:, held] = score(with_held, slice(None))
    return scores


def _dual_system(products: np.ndarray, weights: np.ndarray, y: np.ndarray) -> RidgeSystem:
    """Return the ridge regression whose solutions are the weight of each sample, (n, t), for products with samples."""
    y, share, roots = y.astype(np.float64), weights / weights.sum(), np.sqrt(weights)[:, None]
    offset = y[0] + share @ (y - y[0])  # so that a constant target is exactly 0 when centred
    among = products @ share
    centred = products - among[:, None] - (among - share @ among)
    centred *= roots
    centred *= roots.T
    return RidgeSystem(centred, (y - offset) * roots, np.zeros(len(y)), roots[:, 0], offset)


def balance_raw(raw: np.ndarray) -> np.ndarray:
    """Return factors (w,) of standardised features that give the ``raw`` ones (w,) half of the variance."""
    # Otherwise a few hundred raw features among ten thousand others would have no influence. The
    # total variance stays the same, so that penalties keep their size.
    return np.sqrt(len(raw) / 2 / np.where(raw, raw.sum(), (~raw).sum()))


def positive(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties; raise `InputError` if one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(
            f"readout: the penalties are {alphas.tolist()}", "give one or more, all positive numbers"
        )
    return alphas


def inverse(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, so that their weights are exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
