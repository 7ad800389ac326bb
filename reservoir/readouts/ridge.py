"""Exact ridge regression for every penalty and target at once.

With z = (x - m) / s the features standardised by their means m and standard deviations s,

    W(alpha) = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

which is W = (Z'Z + alpha I)^-1 Z'(Y - mean Y) from the moments, and b = mean Y. For fewer samples than features the
kernel form W = Z'(ZZ' + alpha I)^-1 (Y - mean Y) needs only ZZ'. The matrix is reduced once to tridiagonal form, after
which each penalty is cheap. In expectation over masks, dropout of the standardised features with rate p adds exactly
such a penalty, alpha = samples * p / (1 - p): the penalty sweep is the dropout sweep.

References: Hoerl and Kennard (1970), Ridge regression; Wager, Wang and Liang (2013), Dropout training as adaptive
regularization.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh_tridiagonal, get_lapack_funcs

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.linear import LinearPath
from reservoir.readouts.moments import Moments, constant

_reduce, _reduce_work, _apply, _solve = get_lapack_funcs(("sytrd", "sytrd_lwork", "ormqr", "ptsv"), dtype=np.float64)

DEFAULT_ALPHAS = np.geomspace(1e-2, 1e6, 25)
MOST_ALPHAS = 1000  # the models of all penalties are in memory at once
WIDEST = 1e-6, 1e10
CHUNK = 2048  # features of a kernel matrix that are in memory in float64 at once


class Tridiagonal:
    """A symmetric positive semidefinite matrix (n, n) as A = Q T Q', with Q orthogonal and T tridiagonal.

    Then

        (A + alpha I)^-1 B = Q (T + alpha I)^-1 Q' B

    takes linear time for each further penalty alpha, between two products with Q: the reduction is the first half of a
    symmetric eigendecomposition, and took a quarter of its time for 768 columns. The matrix, of float64, is overwritten
    where its memory allows it.

    References: Golub and Van Loan (2013), Matrix computations, section 8.3.1; Elden (1977), BIT 17, 134-145.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        n = len(matrix)
        work = int(_reduce_work(n, lower=1)[0])
        # The transpose of a symmetric C array is itself in Fortran order: no copy.
        reduced, self._diagonal, off_diagonal, self._factors, _ = _reduce(matrix.T, lower=1, lwork=work, overwrite_a=1)
        # Householder vectors of Q, as LAPACK's dsytrd leaves them below the diagonal.
        self._off_diagonal, self._reflectors = off_diagonal, np.asfortranarray(reduced[1:, :-1])
        # Rounding can push eigenvalues of a singular matrix to 0 or below. A penalty that lifts them above the rounding
        # of the top is used as it is; a smaller one is raised to that, so that T + alpha I stays definite.
        lowest, *_ = eigvalsh_tridiagonal(self._diagonal, off_diagonal, select="i", select_range=(0, 0))
        top = np.abs(self._diagonal).max() + 2 * np.abs(off_diagonal).max(initial=0)
        self._least = n * np.finfo(np.float64).eps * top - lowest

    def solve(self, alphas: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return (A + alpha I)^-1 b for every positive penalty, (a, n, t), from right-hand sides (n, t)."""
        rotated = np.asfortranarray(self._rotate(b, transpose=True))
        solutions = np.empty((len(self._diagonal), len(alphas), b.shape[1]))
        for i, alpha in enumerate(np.maximum(alphas, self._least)):
            if len(b) == 1:
                solutions[:, i] = rotated / (self._diagonal + alpha)
            else:
                *_, solutions[:, i], info = _solve(self._diagonal + alpha, self._off_diagonal, rotated)
                assert info == 0, "a definite matrix has a factorisation"
        back = self._rotate(solutions.reshape(len(solutions), -1), transpose=False)
        return back.reshape(solutions.shape).transpose(1, 0, 2)

    def _rotate(self, b: np.ndarray, *, transpose: bool) -> np.ndarray:
        """Return Q b, or Q' b; the first coordinate is left alone by every reflector."""
        if not len(self._factors):
            return b
        rest = np.asfortranarray(b[1:])
        trans = b"T" if transpose else b"N"
        work = int(_apply(b"L", trans, self._reflectors, self._factors, rest, -1)[1][0])
        rest, _, info = _apply(b"L", trans, self._reflectors, self._factors, rest, work)
        assert info == 0
        return np.concatenate([b[:1], rest])


def solve_penalties(matrix: np.ndarray, alphas: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (A + alpha I)^-1 b for every penalty, (a, n, t); the matrix A is overwritten.

    A single penalty above the rounding of A takes one Cholesky factorisation, a tenth of the time of a reduction.
    """
    n = len(matrix)
    if len(alphas) == 1 and alphas[0] > n * np.finfo(np.float64).eps * np.trace(matrix):
        matrix[np.diag_indices(n)] += alphas[0]
        factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
        return cho_solve(factor, b, check_finite=False)[None]
    return Tridiagonal(matrix).solve(alphas, b)


def ridge_path(
    moments: Moments, alphas: np.ndarray, std: np.ndarray | None = None, emphasis: np.ndarray | None = None
) -> LinearPath:
    """Return the ridge solutions from moments (primal form): time of order w^3, whatever the number of samples.

    Features are standardised by ``std`` (w,), by default that of the moments, and then multiplied by ``emphasis`` (w,).
    """
    scale = inverse(moments.std if std is None else std) * (1.0 if emphasis is None else emphasis)
    matrix = moments.xx * scale[:, None]
    matrix *= scale
    weights = solve_penalties(matrix, positive(alphas), moments.xy * scale[:, None])
    return LinearPath(alphas, weights, moments.y_mean, moments.mean, scale)


class KernelMatrix:
    """Ridge regression from the products ZZ' of samples: one matrix serves all folds and penalties.

    Scores of held-out samples are sums of its entries too, so cross-validation does not read the features again.
    Features are scaled by their deviation over all samples, as in the final readout, times ``emphasis`` (w,), and
    centred by the mean of the fitted samples. The ``weights`` (n,) of the samples ``x`` (n, w) are 1 by default; a
    sample that is not finite raises `InputError`. ``known`` is the matrix of the first of these features, of the same
    samples and weights and without emphasis: its products are not computed again, if ``emphasis`` is the same for all
    of its features.
    """

    def __init__(
        self,
        x: np.ndarray,
        weights: np.ndarray | None = None,
        emphasis: np.ndarray | None = None,
        known: KernelMatrix | None = None,
    ) -> None:
        self.weights = np.ones(len(x)) if weights is None else weights
        self.x, self.mean, self.scale = x, np.empty(x.shape[1]), np.empty(x.shape[1])
        on, first, factor = arithmetic(), 0, 1.0
        if known is not None and (emphasis is None or np.ptp(emphasis[: len(known.mean)]) == 0):
            first, factor = len(known.mean), 1.0 if emphasis is None else float(emphasis[0])
            self.mean[:first], self.scale[:first] = known.mean, known.scale * factor
        total = on.zeros((len(x), len(x)))
        for part in self._chunks(first):
            z = x[:, part].T.astype(np.float64, order="C")
            self.mean[part] = mean = np.average(z, axis=1, weights=self.weights)
            z -= mean[:, None]
            variance = np.average(np.square(z), axis=1, weights=self.weights)
            if wrong := np.flatnonzero(~np.isfinite(variance)).tolist():
                feature = part.start + wrong[0]
                raise InputError(
                    f"readout: feature {feature} holds a value that is not finite or too large; leave it out"
                )
            self.scale[part] = inverse(np.sqrt(np.where(constant(variance, mean), 0.0, variance)))
            if emphasis is not None:
                self.scale[part] *= emphasis[part]
            z *= self.scale[part, None]
            on.add_square(total, on.put(z))
        self.products = np.tril(on.fetch(total))
        self.products += np.tril(self.products, -1).T
        if known is not None and first:
            self.products += known.products * factor**2

    def path(self, y: np.ndarray, alphas: np.ndarray) -> LinearPath:
        """Return the ridge solutions of every penalty for targets (n, t)."""
        dual, offset = _dual(self.products, self.weights, y, alphas)
        on = arithmetic()
        on_device = on.put(np.ascontiguousarray(dual.transpose(1, 0, 2)).reshape(len(y), -1))
        coef = np.empty((self.x.shape[1], len(alphas) * y.shape[1]))
        for part in self._chunks():
            z = self.x[:, part].T - self.mean[part, None]
            z *= self.scale[part, None]
            coef[part] = on.fetch(on.product(on.put(z), on_device))
        weights = coef.reshape(len(coef), len(alphas), -1).transpose(1, 0, 2)
        return LinearPath(alphas, weights, offset, self.mean, self.scale)

    def _chunks(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, self.x.shape[1], CHUNK):
            yield slice(start, min(start + CHUNK, self.x.shape[1]))


def held_out_scores(
    products: np.ndarray, weights: np.ndarray, y: np.ndarray, fold: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Return the scores (A, n, t) of every sample under every penalty, fitted to the folds that it is not in.

    ``products`` (n, n) are those of samples with ``weights`` (n,) and targets (n, t).
    """
    scores = np.empty((len(alphas), *y.shape))
    for k in np.unique(fold):
        fitted, held = fold != k, fold == k
        among_fitted = products[np.ix_(fitted, fitted)]
        dual, offset = _dual(among_fitted, weights[fitted], y[fitted], alphas)
        # The products of held-out samples with centred ones; the mean of those they are fitted with is 0.
        share = weights[fitted] / weights[fitted].sum()
        among = among_fitted @ share
        with_held = products[np.ix_(held, fitted)]
        with_held = with_held - (with_held @ share)[:, None] - among + share @ among
        scores[:, held] = with_held @ dual + offset
    return scores


def _dual(
    products: np.ndarray, weights: np.ndarray, y: np.ndarray, alphas: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of each sample in the solutions, (A, n, t), and the mean target (t,)."""
    y, share, roots = y.astype(np.float64), weights / weights.sum(), np.sqrt(weights)[:, None]
    offset, among = share @ y, products @ share
    centred = products - among[:, None] - (among - share @ among)
    centred *= roots
    centred *= roots.T
    return solve_penalties(centred, positive(alphas), (y - offset) * roots) * roots, offset


def balance_raw(raw: np.ndarray) -> np.ndarray:
    """Return factors (w,) of standardised features that give the raw input half of the variance.

    ``raw`` (w,) tells which features are raw input. The total variance stays the same, so that penalties keep their
    size. Without these factors, a few hundred raw features next to ten thousand others would have no influence.
    """
    return np.sqrt(len(raw) / 2 / np.where(raw, raw.sum(), (~raw).sum()))


def parse_alphas(text: str) -> np.ndarray:
    """Return the penalties that ``LO:HI:N`` stands for: N values from LO to HI in equal ratios."""
    try:
        low, high, number = text.split(":")
        lo, hi, n = float(low), float(high), int(number)
    except ValueError:
        lo, hi, n = 0.0, 0.0, 0
    if not (0 < lo <= hi < np.inf and 1 <= n <= MOST_ALPHAS):
        raise InputError(
            f"penalties {text!r}: give LO:HI:N with 0 < LO <= HI and N from 1 to {MOST_ALPHAS:,}, such as 1e-2:1e6:25"
        )
    if n == 1 and lo != hi:
        raise InputError(f"penalties {text!r}: one value cannot be both {lo:g} and {hi:g}; give N >= 2, or LO = HI")
    return np.geomspace(lo, hi, n)


def extended_alphas(alphas: np.ndarray, best: int) -> np.ndarray | None:
    """Return the grid extended to 1e-6 or 1e10 if the best penalty is at its end; None if nothing can be added.

    New penalties continue the ratio of the grid, or a third of a decade if that is larger.
    """
    low, high = float(np.min(alphas)), float(np.max(alphas))
    ratio = max(10 ** (1 / 3), (high / low) ** (1 / max(1, len(alphas) - 1)))
    ends = low / WIDEST[0], WIDEST[1] / high
    below, above = (int(np.log(max(1, end)) / np.log(ratio) + 1e-9) for end in ends)
    less = low / ratio ** np.arange(below, 0, -1) if alphas[best] == low else []
    more = high * ratio ** np.arange(1, above + 1) if alphas[best] == high else []
    return np.concatenate([less, np.sort(alphas), more]) if len(less) + len(more) else None


def positive(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties; raise `InputError` if one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(f"readout: penalties {list(alphas)} must be positive numbers; drop the others")
    return alphas


def inverse(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, so that their weights are exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
