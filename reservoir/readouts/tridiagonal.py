"""The systems (A + alpha I) x = b of all penalties alpha, in the form that is the fastest.

With A = Q T Q', Q orthogonal and T tridiagonal,

    (A + alpha I)^-1 b = Q (T + alpha I)^-1 Q' b

takes linear time for each further penalty, in addition to the products with Q. `solve_penalties` uses this form, but

    for a large A          a band in place of T (`reservoir.readouts.banded`),
    for a few penalties    a Cholesky factorisation of each A + alpha I,
    on a GPU               the same: it factorises at full speed, while half of a reduction would wait for memory.

References: Golub and Van Loan (2013), Matrix computations, section 8.3.1; Elden (1977), BIT 17, 134-145.
"""

from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh_tridiagonal, get_lapack_funcs

from reservoir.readouts.banded import BAND_WORK, BandReduction
from reservoir.readouts.products import LARGE_MATRIX, blas_threads, report_work

_reduce, _reduce_work, _apply, _solve = get_lapack_funcs(
    ("sytrd", "sytrd_lwork", "ormqr", "ptsv"), dtype=np.float64
)

# A reduction of n columns takes 2/3 n^3 multiplications. Half of them wait for memory, which takes three times as long.
TRIDIAGONAL_WORK = 4 / 3
# A Cholesky factorisation of n columns takes 1/6 n^3 multiplications and hardly waits for memory, so for as many
# penalties as these, a factorisation for each takes less time than one reduction.
FEW_PENALTIES = 4
FACTORISATION_WORK = 1 / 6


def solution_work(size: int, penalties: int) -> float:
    """Return the estimated multiplications of `solve_penalties` for ``size`` unknowns, without products with ``b``."""
    if penalties <= FEW_PENALTIES:
        return penalties * FACTORISATION_WORK * size**3
    return (BAND_WORK if size >= LARGE_MATRIX else TRIDIAGONAL_WORK) * size**3


class TridiagonalReduction:
    """The tridiagonal form A = Q T Q' of a symmetric matrix (n, n), which is overwritten, and Q' b of some b (n, t)."""

    def __init__(self, matrix: np.ndarray, b: np.ndarray) -> None:
        n = len(matrix)
        report_work(TRIDIAGONAL_WORK * n**3)
        # For 768 columns the reduction took a quarter of the time of a symmetric eigendecomposition,
        # which begins with it. The transpose of a symmetric C array is the same matrix in Fortran
        # order, so nothing is copied.
        work = int(_reduce_work(n, lower=1)[0])  # length of the workspace
        with blas_threads(many=n >= LARGE_MATRIX):
            reduced, diagonal, off_diagonal, factors, _ = _reduce(
                matrix.T, lower=1, lwork=work, overwrite_a=1
            )
        self._diagonal, self._off_diagonal = diagonal, off_diagonal
        # LAPACK returns Q as Householder reflections: their vectors below the subdiagonal, and their scalar factors.
        self._reflectors = np.asfortranarray(reduced[1:, :-1])
        self._factors = factors
        # Rounding can push eigenvalues of a singular matrix to 0 or below, but T + alpha I must be definite. So a
        # penalty that does not lift the lowest eigenvalue above the rounding error of the largest is raised until it
        # does.
        lowest, *_ = eigvalsh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(0, 0))
        # No eigenvalue is larger than the largest sum of absolute values in a row of T (Gershgorin), and no such sum is
        # larger than this.
        bound = np.abs(diagonal).max() + 2 * np.abs(off_diagonal).max()
        self._least_penalty = n * np.finfo(np.float64).eps * bound - lowest
        self._rotated_b = self.rotate(b)

    def rotate(self, b: np.ndarray) -> np.ndarray:
        """Return Q' b for ``b`` (n, t)."""
        return self._multiply_by_q(b, transposed=True)

    def rotate_back(self, b: np.ndarray) -> np.ndarray:
        """Return Q b for ``b`` (n, t)."""
        return self._multiply_by_q(b, transposed=False)

    def _multiply_by_q(self, b: np.ndarray, *, transposed: bool) -> np.ndarray:
        """Return Q b, or Q' b if ``transposed``, for ``b`` (n, t)."""
        report_work(len(b) ** 2 * b.shape[1])
        # The reflections do not change the first coordinate, only those after it.
        changed = np.array(b[1:], np.float64, order="F")
        # LAPACK multiplies from the left (L), by Q transposed (T) or as it is (N).
        trans = b"T" if transposed else b"N"
        apply = partial(_apply, b"L", trans, self._reflectors, self._factors, overwrite_c=1)
        with blas_threads(many=len(b) >= LARGE_MATRIX):
            # A first call with the length -1 changes nothing, and returns the best length of the workspace.
            _, workspace, _ = apply(changed, -1)
            changed, _, info = apply(changed, int(workspace[0]))
        assert info == 0, "LAPACK refuses an argument"
        return np.concatenate([b[:1], changed])

    def solve(self, alphas: np.ndarray) -> np.ndarray:
        """Return (T + alpha I)^-1 Q' b for every penalty, (n, a, t)."""
        solved = np.empty((len(self._diagonal), len(alphas), self._rotated_b.shape[1]))
        for i, alpha in enumerate(np.maximum(alphas, self._least_penalty)):
            *_, solved[:, i], info = _solve(self._diagonal + alpha, self._off_diagonal, self._rotated_b)
            assert info == 0, "a definite matrix has a factorisation"
        return solved


def solve_penalties(matrix: Any, b: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return (A + alpha I)^-1 b for every penalty, (a, n, t), of a semidefinite A (n, n), which is overwritten.

    A is a NumPy array, or a tensor on the device that solves the systems.
    """
    if not isinstance(matrix, np.ndarray):
        return _solve_by_cholesky(matrix, b, alphas)
    n = len(b)
    if n == 1:  # A is a number, which has no tridiagonal form
        return b / (matrix + alphas[:, None, None])
    # A few penalties need only a Cholesky factorisation each, if all are above the rounding error of the largest
    # eigenvalue of A, which is no larger than the trace. Else A + alpha I may not be definite, which only the
    # tridiagonal form can tell.
    rounding = n * np.finfo(np.float64).eps * np.trace(matrix)
    is_definite = bool(np.min(alphas) > rounding)
    if len(alphas) <= FEW_PENALTIES and is_definite:
        # Only the last factorisation may overwrite A; the others have a copy, one at a time.
        solutions = [_solve_one(matrix.copy(), b, alpha) for alpha in alphas[:-1]]
        return np.stack([*solutions, _solve_one(matrix, b, alphas[-1])])
    # x = Q (T + alpha I)^-1 Q' b: reduce A once, solve a tridiagonal or banded system for each penalty, and rotate all
    # solutions back together, which are (n, a, t).
    reduction = (
        BandReduction(matrix, b) if n >= LARGE_MATRIX and is_definite else TridiagonalReduction(matrix, b)
    )
    solved = reduction.solve(alphas)
    rotated = reduction.rotate_back(solved.reshape(n, -1))
    return rotated.reshape(solved.shape).transpose(1, 0, 2)


def _solve_one(matrix: np.ndarray, b: np.ndarray, alpha: float) -> np.ndarray:
    """Return (A + alpha I)^-1 b, (n, t), of a definite A + alpha I; A is overwritten."""
    n = len(b)
    report_work(FACTORISATION_WORK * n**3 + n**2 * b.shape[1])
    matrix[np.diag_indices(n)] += alpha
    with blas_threads(many=n >= LARGE_MATRIX):
        factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
        return cho_solve(factor, b, check_finite=False)


def _solve_by_cholesky(matrix: Any, b: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Return (A + alpha I)^-1 b for every penalty, (a, n, t), by a factorisation of each; A is a tensor (n, n)."""
    import torch

    n, right_side = len(b), matrix.new_tensor(b)
    diagonal = matrix.diagonal()  # a view: penalties are added to A through it
    diagonal_of_a = diagonal.clone()
    # As in `TridiagonalReduction`, a penalty that does not lift the lowest eigenvalue above the rounding error of the
    # largest one is raised until it does. The trace is no less than the largest eigenvalue, and the lowest one is off
    # by no more than the rounding error, so most penalties are large enough without knowing the eigenvalues.
    rounding = n * np.finfo(np.float64).eps
    least_penalty = 0.0
    if alphas.min() <= 2 * rounding * diagonal_of_a.sum().item():
        eigenvalues = torch.linalg.eigvalsh(matrix)
        least_penalty = rounding * eigenvalues[-1].item() - eigenvalues[0].item()
    solutions = np.empty((len(alphas), *b.shape))
    for number, alpha in enumerate(np.maximum(alphas, least_penalty).tolist()):
        # The estimate of a fit counts one reduction instead of all factorisations.
        report_work(TRIDIAGONAL_WORK * n**3 / len(alphas) + n**2 * b.shape[1])
        torch.add(diagonal_of_a, alpha, out=diagonal)
        factor = torch.linalg.cholesky(matrix)
        solutions[number] = torch.cholesky_solve(right_side, factor).cpu().numpy()
    return solutions
