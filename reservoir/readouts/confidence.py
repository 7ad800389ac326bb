"""How sure a score is, and whether one readout is better than another on the same rows."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr

BOOTSTRAP_CELLS = 2**22  # draws times rows that are held at once


def accuracy_interval(shares: np.ndarray, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of an accuracy from the share of right outputs of each row, (rows,).

    Rows are drawn independently, the outputs of a row are not: the variance of the mean share is that between rows, and
    Wilson's interval is taken for as many independent answers as would have it. With one output per row they are the
    rows, and the interval is Wilson's own. ``z`` is the standard normal quantile, 1.96 for 95%.

    References: Wilson (1927), Probable inference; Korn and Graubard (1998), Confidence intervals for proportions.
    """
    shares = np.asarray(shares, np.float64)
    rows, p, variance = len(shares), float(shares.mean()), float(shares.var())
    n = rows * (p * (1 - p) / variance) if variance > 1e-12 else rows  # all rows alike: no more is known than rows
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(max(0.0, p * (1 - p) / n + z * z / (4 * n * n)))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mcnemar(right: np.ndarray, other: np.ndarray) -> float:
    """Return the two-sided mid-p-value of two readouts being right equally often, from bools (rows,) of one label.

    Of the rows on which one alone is right, each would be for either with probability 1/2. Of differences as large as
    the one seen half are counted, of larger ones all: without a difference p is 1/2 on average, as if uniform, where
    McNemar's exact p is larger and finds too little. Where no row differs it is 1. References: McNemar (1947), Note on
    the sampling error of the difference between correlated proportions; Fagerland, Lydersen and Laake (2013), The
    McNemar test for binary matched-pairs data.
    """
    right, other = np.asarray(right, bool), np.asarray(other, bool)
    wins, losses = int((right & ~other).sum()), int((other & ~right).sum())
    rows, fewer = wins + losses, min(wins, losses)
    if not rows:
        return 1.0
    as_large = math.comb(rows, fewer) / 2**rows * (1 if wins == losses else 2)
    larger = 2 * float(bdtr(fewer - 1, rows, 0.5)) if fewer else 0.0
    return min(1.0, larger + as_large / 2)


def paired_bootstrap(scores: np.ndarray, others: np.ndarray, draws: int = 9999, seed: int = 0) -> float:
    """Return the two-sided p-value that two readouts score equally on average, from scores of the same rows, (rows,).

    Scores are shares of right outputs, or negative squared errors. Rows are drawn anew with replacement from their
    differences less the mean, studentised; counted is how often that strays as far as what was seen. Reference: Efron
    and Tibshirani (1993), An introduction to the bootstrap, section 16.4.
    """
    differences = np.asarray(scores, np.float64) - np.asarray(others, np.float64)
    rows, mean = len(differences), float(differences.mean())
    spread = float(differences.std())
    if spread <= 1e-12 * abs(mean) or rows < 2:
        return 1.0 if mean == 0 or rows < 2 else 1 / (draws + 1)
    seen, centred, generator = abs(mean) / spread, differences - mean, np.random.default_rng(seed)
    beyond, left = 0, draws
    while left:
        number = min(left, max(1, BOOTSTRAP_CELLS // rows))
        drawn = centred[generator.integers(rows, size=(number, rows))]
        means, spreads = np.abs(drawn.mean(axis=1)), drawn.std(axis=1)
        beyond += int((means >= seen * spreads * (1 - 1e-12)).sum())
        left -= number
    return (beyond + 1) / (draws + 1)
