"""Ridge regression of many real targets: every penalty of all of them judged without forming its weights.

With the standardised features' scatter Z'Z = V diag(l) V', the scores of rows z under a penalty a are

    z V diag(1 / (l + a)) V'Z'Y,

so rows are rotated once (width squared) instead of the weights of every penalty (penalties x targets x width squared),
and what is held beside the data is of order width x targets, whatever the number of penalties. Products of rows are in
the features' precision, as `Scorer` has them, the sums over rows in float64. From about 4 weights per feature on this
is faster than the tridiagonal form of `ridge_path`, whose reduction is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from reservoir.readouts.device import arithmetic
from reservoir.readouts.linear import LinearPath, LinearReadout
from reservoir.readouts.moments import Moments
from reservoir.readouts.ridge import inverse, positive, ridge_path
from reservoir.readouts.targets import Targets

SUM_ROWS = 128  # squares are summed over so many rows in float32, and these sums in float64


@dataclass(frozen=True, kw_only=True, eq=False)
class SpectralPath:
    """The linear models of every penalty by the eigenvectors of the scatter.

    ``alphas`` (A,) are the penalties, ``values`` (w,) the eigenvalues, ``axes`` (w, w) the eigenvectors for features
    less their mean ``center`` (w,), ``projections`` (w, t) the targets' products with features along them, and
    ``offset`` (t,) the targets' mean.
    """

    alphas: np.ndarray
    values: np.ndarray
    axes: np.ndarray
    projections: np.ndarray
    center: np.ndarray
    offset: np.ndarray

    @property
    def converged(self) -> np.ndarray:
        """All of them: nothing is solved step by step."""
        return np.ones(len(self.alphas), bool)

    @classmethod
    def of(
        cls, moments: Moments, alphas: np.ndarray, std: np.ndarray | None = None, emphasis: np.ndarray | None = None
    ) -> SpectralPath:
        """Return the solutions from moments, as `ridge_path` does."""
        scale = inverse(moments.std if std is None else std) * (1.0 if emphasis is None else emphasis)
        matrix = moments.xx * scale[:, None]
        matrix *= scale
        values, vectors = eigh(matrix.T, overwrite_a=True, driver="evd", check_finite=False)
        # As in `Tridiagonal`: eigenvalues below the rounding of the largest are no more than that rounding.
        values = np.maximum(values, len(values) * np.finfo(np.float64).eps * values[-1])
        axes = vectors * scale[:, None]
        return cls(
            alphas=np.asarray(positive(alphas), np.float64),
            values=values,
            axes=axes,
            projections=axes.T @ moments.xy,
            center=moments.mean,
            offset=moments.y_mean,
        )

    def readout(self, index: int | np.ndarray, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, or of each target's own, by index or indices (t,)."""
        coef = self.axes @ (self.projections / (self.values[:, None] + self.alphas[index]))
        intercept = self.offset - self.center @ coef
        return LinearReadout(coef=coef, intercept=intercept, targets=targets, temperature=temperature)

    def squares(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the sums of squared residuals (A, t) over rows of features (n, w) and targets (n, t)."""
        on = arithmetic()
        dtype = np.result_type(x.dtype, np.float32)
        rotated = on.put((on.fetch(on.product(on.put(x - self.center), on.put(self.axes)))).astype(dtype))
        wanted = (y - self.offset).astype(dtype)
        projections = self.projections.astype(dtype)
        counted = np.ones(len(y), dtype) if weights is None else weights.astype(dtype)
        sums = np.zeros((len(self.alphas), y.shape[1]))
        for i, alpha in enumerate(self.alphas):
            shrunk = projections * (1 / (self.values + alpha)).astype(dtype)[:, None]
            residuals = on.fetch(on.product(rotated, on.put(shrunk)))
            residuals -= wanted
            for start in range(0, len(y), SUM_ROWS):
                part = residuals[start : start + SUM_ROWS]
                np.square(part, out=part)
                sums[i] += counted[start : start + SUM_ROWS] @ part
        return sums


def path_of(
    moments: Moments,
    alphas: np.ndarray,
    targets: Targets,
    std: np.ndarray | None = None,
    emphasis: np.ndarray | None = None,
) -> LinearPath | SpectralPath:
    """Return the ridge solutions from moments in the form that is cheaper to judge; see `ridge_path`."""
    many = not targets.classes and len(alphas) * targets.columns > 4 * len(moments.mean)
    return (SpectralPath.of if many else ridge_path)(moments, alphas, std, emphasis)
