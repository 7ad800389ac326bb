"""Exact ridge regression for every penalty and target at once.

With z = (x - m) / s the features standardised by their means m and standard deviations s,

    W(alpha) = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

which is W = (Z'Z + alpha I)^-1 Z'(Y - mean Y) from the moments, and b = mean Y (`kernel` has the form for fewer samples
than features). The matrix is reduced once to tridiagonal form, after which each penalty is cheap. In expectation over
masks, dropout of the standardised features with rate p adds exactly such a penalty, alpha = samples * p / (1 - p): the
penalty sweep is the dropout sweep.

References: Hoerl and Kennard (1970), Ridge regression; Wager, Wang and Liang (2013), Dropout training as adaptive
regularization.
"""

from __future__ import annotations

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import LinearPath
from reservoir.readouts.moments import Moments
from reservoir.readouts.tridiagonal import Tridiagonal

DEFAULT_ALPHAS = np.geomspace(1e-2, 1e6, 25)
MOST_ALPHAS = 1000  # the models of all penalties are in memory at once
WIDEST = 1e-6, 1e10


def ridge_path(
    moments: Moments, alphas: np.ndarray, std: np.ndarray | None = None, emphasis: np.ndarray | None = None
) -> LinearPath:
    """Return the ridge solutions from moments (primal form): time of order w^3, whatever the number of samples.

    Features are standardised by ``std`` (w,), by default that of the moments, and then multiplied by ``emphasis`` (w,).
    """
    scale = inverse(moments.std if std is None else std) * (1.0 if emphasis is None else emphasis)
    matrix = moments.xx * scale[:, None]
    matrix *= scale
    weights = Tridiagonal.of(matrix).solve(positive(alphas), moments.xy * scale[:, None])
    return LinearPath.from_standardised(alphas, weights, moments.y_mean, moments.mean, scale)


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
