"""Exact ridge regression for every penalty and target at once.

With z = (x - m) / s the features standardised by their means m and standard deviations s,

    W(alpha) = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

which is W = (Z'Z + alpha I)^-1 Z'(Y - mean Y) from the moments (primal form), or W = Z'(ZZ' + alpha I)^-1 (Y - mean Y)
from the samples (kernel form, for fewer samples than features), and b = mean Y. Either matrix is reduced once to
tridiagonal form, after which each penalty is cheap. In expectation over masks, dropout of the standardised features
with rate p adds exactly such a penalty, alpha = samples * p / (1 - p): the penalty sweep is the dropout sweep.

References
----------
Hoerl and Kennard (1970), Ridge regression; Wager, Wang and Liang (2013), Dropout training as adaptive regularization.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reservoir.errors import InputError
from reservoir.readouts.moments import Moments
from reservoir.readouts.tridiagonal import Tridiagonal

DEFAULT_ALPHAS = np.logspace(-2, 6, 25)


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgePath:
    """The ridge solutions of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    Parameters
    ----------
    alphas : ndarray of float64, (A,)
        Penalties.
    coef : ndarray of float64, (A, w, t)
        Exactly 0 for constant channels.
    intercept : ndarray of float64, (A, t)
        Scores of x = 0.
    center : ndarray of float64, (w,)
        The features' mean; `scores` subtracts it first, so that float32 keeps the digits of a channel at 3000 +- 0.5.
    """

    alphas: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    center: np.ndarray

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores of every penalty, (A, n, t), of features (n, w): one matrix product in their precision."""
        return Scorer(self, np.result_type(x.dtype, np.float32))(x)


class Scorer:
    """Scores blocks of features under every penalty of a path, laid out once for one matrix product per block.

    Parameters
    ----------
    path : RidgePath
        The solutions.
    dtype : dtype, default float32
        Of the product.
    """

    def __init__(self, path: RidgePath, dtype: npt.DTypeLike = np.float32) -> None:
        penalties, width, targets = path.coef.shape
        self._shape = (penalties, targets)
        self._weights = path.coef.transpose(1, 0, 2).reshape(width, -1).astype(dtype)
        self._center = path.center.astype(dtype)
        # The center rounded to float32 is another center: the offset has to belong to the one that is subtracted.
        self._offset = (path.intercept + self._center @ path.coef).ravel().astype(dtype)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (A, n, t) of features (n, w)."""
        centred = np.subtract(x, self._center, dtype=self._center.dtype)
        scores = centred @ self._weights
        scores += self._offset
        return scores.reshape(len(x), *self._shape).transpose(1, 0, 2)


def ridge_path(moments: Moments, alphas: np.ndarray) -> RidgePath:
    """Return the ridge solutions from moments (primal form): time of order w^3, whatever the number of samples.

    Parameters
    ----------
    moments : Moments
        Of w features and t targets.
    alphas : ndarray, (A,)
        Positive penalties.

    Raises
    ------
    InputError
        Where a penalty is not a positive number.
    """
    scale = _inverse_std(moments.std)
    matrix = moments.xx * scale[:, None]
    matrix *= scale
    weights = Tridiagonal.of(matrix).solve(_positive(alphas), moments.xy * scale[:, None])
    return _in_original_units(alphas, weights, moments.mean, scale, moments.y_mean)


def kernel_path(x: np.ndarray, y: np.ndarray, alphas: np.ndarray) -> RidgePath:
    """Return the ridge solutions from samples (kernel form), in float64: time of order n^2 w + n^3.

    Parameters
    ----------
    x : ndarray, (n, w)
        Features, all in memory: meant for n < w.
    y : ndarray, (n, t)
        Targets.
    alphas : ndarray, (A,)
        Positive penalties.

    Raises
    ------
    InputError
        Where a penalty is not a positive number, or a feature is not finite.
    """
    z = x.astype(np.float64)
    mean = z.mean(axis=0)
    z -= mean
    std = np.sqrt(np.einsum("ij,ij->j", z, z) / len(z))
    std[std <= 10 * np.finfo(np.float64).eps * np.abs(mean)] = 0
    if not np.isfinite(std).all():
        raise InputError(f"ridge: feature {np.flatnonzero(~np.isfinite(std))[0]} holds a value that is not finite")
    scale = _inverse_std(std)
    z *= scale
    y_mean = y.mean(axis=0, dtype=np.float64)
    dual = Tridiagonal.of(z @ z.T).solve(_positive(alphas), y - y_mean)
    return _in_original_units(alphas, z.T @ dual, mean, scale, y_mean)


def parse_alphas(text: str) -> np.ndarray:
    """Return the penalties that ``LO:HI:N`` stands for: N values from LO to HI in equal ratios.

    Raises
    ------
    InputError
        Where the text is anything else.
    """
    try:
        low, high, number = text.split(":")
        lo, hi, n = float(low), float(high), int(number)
    except ValueError:
        lo, hi, n = 0.0, 0.0, 0
    if not (0 < lo <= hi < np.inf and n >= 1):
        raise InputError(f"penalties {text!r}: give LO:HI:N with 0 < LO <= HI and N >= 1, such as 1e-2:1e6:25")
    return np.geomspace(lo, hi, n)


def _positive(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties, or raise `InputError` where one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(f"ridge: penalties {list(alphas)} must be positive numbers; drop the others")
    return alphas


def _inverse_std(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, which so get coefficients of exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)


def _in_original_units(
    alphas: np.ndarray, weights: np.ndarray, mean: np.ndarray, scale: np.ndarray, y_mean: np.ndarray
) -> RidgePath:
    """Return the path of solutions (A, w, t) for standardised features."""
    coef = weights * scale[:, None]
    return RidgePath(alphas=np.asarray(alphas, float), coef=coef, intercept=y_mean - mean @ coef, center=mean)
