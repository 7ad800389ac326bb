"""Exact ridge regression for every penalty and target at once.

With z = (x - m) / s the features standardised by their means m and standard deviations s,

    W(alpha) = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

which is W = (Z'Z + alpha I)^-1 Z'(Y - mean Y) from the moments (primal form), or W = Z'(ZZ' + alpha I)^-1 (Y - mean Y)
from the samples (kernel form, for fewer samples than features), and b = mean Y. Either matrix is reduced once to
tridiagonal form, after which each penalty is cheap. In expectation over masks, dropout of the standardised features
with rate p adds exactly such a penalty, alpha = samples * p / (1 - p): the penalty sweep is the dropout sweep.

References: Hoerl and Kennard (1970), Ridge regression; Wager, Wang and Liang (2013), Dropout training as adaptive
regularization.
"""

from __future__ import annotations

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.linear import LinearPath
from reservoir.readouts.moments import Moments
from reservoir.readouts.tridiagonal import Tridiagonal

DEFAULT_ALPHAS = np.logspace(-2, 6, 25)
MOST_ALPHAS = 1000  # the models of all are held at once
WIDEST = 1e-6, 1e10


def ridge_path(moments: Moments, alphas: np.ndarray) -> LinearPath:
    """Return the ridge solutions from moments (primal form): time of order w^3, whatever the number of samples."""
    scale = inverse(moments.std)
    matrix = moments.xx * scale[:, None]
    matrix *= scale
    weights = Tridiagonal.of(matrix).solve(positive(alphas), moments.xy * scale[:, None])
    return LinearPath.from_standardised(alphas, weights, moments.y_mean, moments.mean, scale)


def kernel_path(x: np.ndarray, y: np.ndarray, alphas: np.ndarray, weights: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solutions from samples x (n, w), y (n, t) (kernel form, for n < w): order n^2 w + n^3."""
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

    These are z = (x - mean) * scale * roots, (n, w), so that z'z is the weighted scatter; mean and scale (w,), 1 / std
    or 0 for constant channels; and roots (n, 1) of the weights. `InputError` where a feature is not finite.
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


def widened(alphas: np.ndarray, best: int) -> np.ndarray | None:
    """Return the grid carried on to 1e-6 or 1e10 where the best penalty is its end; None where there is nothing to add.

    The new penalties have the ratio of the old ones, or that of a third of a decade where it is larger.
    """
    low, high = float(np.min(alphas)), float(np.max(alphas))
    ratio = max(10 ** (1 / 3), (high / low) ** (1 / max(1, len(alphas) - 1)))
    ends = low / WIDEST[0], WIDEST[1] / high
    below, above = (int(np.log(max(1, end)) / np.log(ratio) + 1e-9) for end in ends)
    less = low / ratio ** np.arange(below, 0, -1) if alphas[best] == low else []
    more = high * ratio ** np.arange(1, above + 1) if alphas[best] == high else []
    return np.concatenate([less, np.sort(alphas), more]) if len(less) + len(more) else None


def positive(alphas: np.ndarray) -> np.ndarray:
    """Return the penalties, or raise `InputError` where one is not a positive number."""
    if not (len(alphas) and np.isfinite(alphas).all() and np.min(alphas) > 0):
        raise InputError(f"readout: penalties {list(alphas)} must be positive numbers; drop the others")
    return alphas


def inverse(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, which so get weights of exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
