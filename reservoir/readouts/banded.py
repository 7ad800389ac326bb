"""The systems (A + alpha I) x = b of all penalties alpha, after one reduction of a large A to a band.

With A = Q B Q', Q orthogonal and B zero outside a band around its diagonal,

    (A + alpha I)^-1 b = Q (B + alpha I)^-1 Q' b

where a factorisation of B + alpha I takes little time. The tridiagonal form, which smaller systems have
(`reservoir.readouts.tridiagonal`), is the narrowest band; but half of its reduction multiplies the matrix with single
vectors, and waits for memory. A reduction to a wide band multiplies it with many vectors at once.

Reference: Bischof, Lang and Sun (2000), ACM Transactions on Mathematical Software 26, 581-601, where bands lead to a
tridiagonal form. Here the systems are solved with the band.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded, get_lapack_funcs, solve_triangular

from reservoir.readouts.products import blas_threads, report_work

_factorise, _factorise_work = get_lapack_funcs(("geqrf", "geqrf_lwork"), dtype=np.float64)

# Subdiagonals of the band. For 6,144 columns, 64 took 15 s of one core, 128 11 s, and 192 10 s; the tridiagonal form
# took 24 s. Wider bands make the systems of the penalties slower.
BANDWIDTH = 192
# Columns of the matrix that a product changes at once, so that its result stays in the cache of a processor.
TILE = 256
# A reduction of n columns takes 2/3 n^3 multiplications, in products of thin matrices, which are a little slower than
# large ones.
BAND_WORK = 0.9


class Reflection(NamedTuple):
    """The orthogonal matrix I - Y T Y' of all rows from ``start`` on."""

    start: int
    y: np.ndarray  # Y (rows, r): one Householder vector per column
    t: np.ndarray  # T (r, r), upper triangular

    def apply(self, x: np.ndarray, *, transposed: bool) -> None:
        """Multiply ``x`` (n, t) from the left by the matrix, or by its transpose, in place."""
        changed = x[self.start :]
        changed -= self.y @ ((self.t.T if transposed else self.t) @ (self.y.T @ changed))


class BandReduction:
    """The band form A = Q B Q' of a symmetric matrix (n, n), which is overwritten, and Q' b of some b (n, t)."""

    def __init__(self, matrix: np.ndarray, b: np.ndarray) -> None:
        n = len(matrix)
        report_work(BAND_WORK * n**3 + n**2 * b.shape[1])
        # The diagonals of B, from the main one down; the first n - d items of row d are those of diagonal d.
        self._band = np.zeros((BANDWIDTH + 1, n))
        self._reflections: list[Reflection] = []
        with blas_threads(many=True):
            for left in range(0, n, BANDWIDTH):
                columns = matrix[left:, left : left + BANDWIDTH]
                if left + BANDWIDTH < n:
                    below = columns[BANDWIDTH:]
                    reflection, below[:] = _triangularise(below, left + BANDWIDTH)
                    _apply_to_both_sides(matrix[reflection.start :, reflection.start :], reflection)
                    self._reflections.append(reflection)
                for diagonal in range(min(BANDWIDTH + 1, len(columns))):
                    values = columns.diagonal(-diagonal)
                    self._band[diagonal, left : left + len(values)] = values
            self._rotated_b = np.array(b, np.float64)
            for reflection in self._reflections:
                reflection.apply(self._rotated_b, transposed=True)

    def rotate_back(self, x: np.ndarray) -> np.ndarray:
        """Return Q x for ``x`` (n, t)."""
        report_work(len(x) ** 2 * x.shape[1])
        rotated = np.array(x, np.float64)
        with blas_threads(many=True):
            for reflection in reversed(self._reflections):
                reflection.apply(rotated, transposed=False)
        return rotated

    def solve(self, alphas: np.ndarray) -> np.ndarray:
        """Return (B + alpha I)^-1 Q' b for every penalty, (n, a, t); all must make B + alpha I positive definite."""
        solved = np.empty((len(self._rotated_b), len(alphas), self._rotated_b.shape[1]))
        for number, alpha in enumerate(alphas):
            factor = self._band.copy()
            factor[0] += alpha
            factor = cholesky_banded(factor, lower=True, overwrite_ab=True, check_finite=False)
            solved[:, number] = cho_solve_banded((factor, True), self._rotated_b, check_finite=False)
        return solved


def _triangularise(block: np.ndarray, start: int) -> tuple[Reflection, np.ndarray]:
    """Return the reflection Q of a ``block`` (m, k) of rows from ``start`` on, and the triangular Q' block."""
    work = int(_factorise_work(*block.shape)[0])  # length of the workspace
    factored, factors, _, info = _factorise(block, lwork=work)
    assert info == 0, "LAPACK refuses an argument"
    # LAPACK returns Householder vectors v below the diagonal, on which each has a 1, and the factors f of I - f v v'.
    reflectors = len(factors)
    vectors = np.tril(factored[:, :reflectors], -1)
    vectors[np.diag_indices(reflectors)] = 1
    # A factor of 0 leaves everything as it is. So does a vector of zeros, with any factor.
    is_identity = factors == 0
    vectors[:, is_identity] = 0
    factors[is_identity] = 1
    # The product of all I - f v v' is I - Y T Y' with an upper triangular T, whose diagonal has the factors. Because it
    # is orthogonal, T + T' = T' Y'Y T, and so T^-1 + T^-T = Y'Y, which gives the rest of T^-1.
    inverse = np.triu(vectors.T @ vectors, 1)
    inverse[np.diag_indices(reflectors)] = 1 / factors
    t = solve_triangular(inverse, np.eye(reflectors), check_finite=False)
    return Reflection(start, np.ascontiguousarray(vectors), t), np.triu(factored)


def _apply_to_both_sides(matrix: np.ndarray, reflection: Reflection) -> None:
    """Replace the lower triangle of a symmetric matrix A (m, m) by that of Q' A Q, for a reflection Q = I - Y T Y'."""
    # With X = A Y T and the symmetric S = T'Y'X,
    #   Q' A Q = A - X Y' - Y X' + Y S Y' = A - W Y' - Y W' ,   W = X - Y S / 2 .
    y, t = reflection.y, reflection.t
    x = _product_with_lower(matrix, y @ t)
    w = x - y @ (t.T @ (y.T @ x) / 2)
    left, right = np.hstack([w, y]), np.hstack([y, w])
    for begin in range(0, len(matrix), TILE):
        matrix[begin:, begin : begin + TILE] -= left[begin:] @ right[begin : begin + TILE].T


def _product_with_lower(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the product of a symmetric matrix (m, m), of which only the lower triangle is read, and vectors (m, k)."""
    product = np.zeros_like(vectors)
    for begin in range(0, len(matrix), TILE):
        rows = slice(begin, begin + TILE)
        below = slice(begin + TILE, None)
        # The square on the diagonal, and the rows below it, once as they are and once as their mirror image.
        lower = np.tril(matrix[rows, rows])
        product[rows] += (lower + np.tril(lower, -1).T) @ vectors[rows]
        product[below] += matrix[below, rows] @ vectors[rows]
        product[rows] += matrix[below, rows].T @ vectors[below]
    return product
