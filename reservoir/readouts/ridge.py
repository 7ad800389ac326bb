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

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.moments import Moments
from reservoir.readouts.paths import LinearPath
from reservoir.readouts.tridiagonal import Tridiagonal

DEFAULT_ALPHAS = np.logspace(-2, 6, 25)
MOST_ALPHAS = 1000  # the models of all are held at once


def ridge_path(moments: Moments, alphas: np.ndarray) -> LinearPath:
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
    scale = inverse(moments.std)
    matrix = moments.xx * scale[:, None]
    matrix *= scale
    weights = Tridiagonal.of(matrix).solve(positive(alphas), moments.xy * scale[:, None])
    return LinearPath.from_standardised(alphas, weights, moments.y_mean, moments.mean, scale)


def kernel_path(x: np.ndarray, y: np.ndarray, alphas: np.ndarray, weights: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solutions from samples (kernel form), in float64: time of order n^2 w + n^3.

    Parameters
    ----------
    x : ndarray, (n, w)
        Features, all in memory: meant for n < w.
    y : ndarray, (n, t)
        Targets.
    alphas : ndarray, (A,)
        Positive penalties.
    weights : ndarray, (n,), optional
        Non-negative; weight 2 counts as the sample twice. All 1 by default.

    Raises
    ------
    InputError
        Where a penalty is not a positive number, or a feature is not finite.
    """
    z, mean, scale, roots = standardise(x, weights)
    y_mean = np.average(y.astype(np.float64), axis=0, weights=weights)
    on = arithmetic()
    rows = on.put(z)
    dual = Tridiagonal.of(on.fetch(on.product(rows, rows.T))).solve(positive(alphas), (y - y_mean) * roots)
    coef = on.fetch(on.product(rows.T, on.put(dual)))
    return LinearPath.from_standardised(alphas, coef, y_mean, mean, scale)


def standardise(
    x: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return weighted samples as rows of standardised features.

    Parameters
    ----------
    x : ndarray, (n, w)
        Features.
    weights : ndarray, (n,), optional
        Non-negative.

    Returns
    -------
    z : ndarray of float64, (n, w)
        ``(x - mean) * scale * roots``, so that z'z is the weighted scatter.
    mean, scale : ndarray of float64, (w,)
        Of the features; scale is 1 / std, and 0 for constant channels.
    roots : ndarray of float64, (n, 1)
        Square roots of the weights.

    Raises
    ------
    InputError
        Where a feature is not finite.
    """
    weights = np.ones(len(x)) if weights is None else weights
    roots = np.sqrt(weights)[:, None]
    z = x.astype(np.float64)
    mean = np.average(z, axis=0, weights=weights)
    z -= mean
    z *= roots
    std = np.sqrt(np.einsum("ij,ij->j", z, z) / weights.sum())
    wrong = np.flatnonzero(~np.isfinite(std))
    if wrong.size:
        raise InputError(f"readout: feature {wrong[0]} holds a value that is not finite or too large; leave it out")
    std[std <= 10 * np.finfo(np.float64).eps * np.abs(mean)] = 0
    scale = inverse(std)
    z *= scale
    return z, mean, scale, roots


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
    if not (0 < lo <= hi < np.inf and 1 <= n <= MOST_ALPHAS):
        raise InputError(
            f"penalties {text!r}: give LO:HI:N with 0 < LO <= HI and N from 1 to {MOST_ALPHAS:,}, such as 1e-2:1e6:25"
        )
    if n == 1 and lo != hi:
        raise InputError(f"penalties {text!r}: one value cannot be both {lo:g} and {hi:g}; give N >= 2, or LO = HI")
    return np.geomspace(lo, hi, n)


def positive(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties, or raise `InputError` where one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(f"readout: penalties {list(alphas)} must be positive numbers; drop the others")
    return alphas


def inverse(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, which so get weights of exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
