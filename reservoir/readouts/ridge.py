"""Exact ridge regression for every penalty and target at once.

`ridge_by_definition` is the whole of it for one penalty and few rows, in lines that the eye can check;
the tests compare everything else with it. `ridge_path` computes the same for many penalties and any
number of rows, from moments that are summed block by block.

In expectation over masks, dropout of the standardised features with rate p adds exactly such a
penalty, alpha = samples * p / (1 - p), so a sweep over penalties is a sweep over dropout rates.

References: Hoerl and Kennard 1970, Ridge regression; Wager et al. 2013, Dropout training as adaptive
regularization.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.linear import Block, Targets
from reservoir.readouts.linear_path import LinearPath
from reservoir.readouts.moments import Moments, training_moments
from reservoir.readouts.ridge_system import primal_system


def ridge_by_definition(x: np.ndarray, y: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients (w, t) and the intercept (t,) of ridge regression, for x (n, w) and y (n, t).

    With features z that are standardised by their means m and standard deviations s, z = (x - m) / s,

        W = argmin  || Y - 1 b' - Z W ||^2 + alpha || W ||^2 ,   b unpenalised,

    whose normal equations are (Z'Z + alpha I) W = Z'(Y - mean Y), and b = mean Y.
    """
    x, y = x.astype(np.float64), y.astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0)
    y_mean = y.mean(axis=0)
    std[np.ptp(x, axis=0) == 0] = np.inf  # a constant feature gets the weight 0
    z = (x - mean) / std
    weights = np.linalg.solve(z.T @ z + alpha * np.eye(z.shape[1]), z.T @ (y - y_mean))
    coef = weights / std[:, None]  # of features that are not standardised
    return coef, y_mean - mean @ coef


class FewSamples(NamedTuple):
    """Fewer samples than features: features (n, w), encoded targets (n, t), and weights (n,) or None if all are 1."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None


# What `gather` returns; each of the two has its form of the solution.
TrainingData = Moments | FewSamples


def ridge_path(
    training: TrainingData, alphas: np.ndarray, feature_weights: np.ndarray | None = None
) -> LinearPath:
    """Return the ridge solution of every penalty; ``feature_weights`` (w,) multiply the standardised features."""
    if isinstance(training, Moments):
        # At least as many rows as features: W = (Z'Z + alpha I)^-1 Z'Y, a system of w equations. Z'Z and
        # Z'Y are sums over rows, so the rows need not be in memory.
        return path_from_moments(training, alphas, training.scale(feature_weights))
    # Fewer rows than features. From (Z'Z + alpha I) Z' = Z' (ZZ' + alpha I) follows
    #     (Z'Z + alpha I)^-1 Z'Y = Z' (ZZ' + alpha I)^-1 Y ,
    # the same solution by a system of n equations, in the products ZZ' of rows.
    return KernelMatrix(training.x, training.weights, feature_weights).path(training.y, alphas)


def path_from_moments(moments: Moments, alphas: np.ndarray, scale: np.ndarray) -> LinearPath:
    """Return the ridge solutions from moments, for features that are multiplied by ``scale`` (w,)."""
    return primal_system(moments, scale).path(alphas)


def gather(blocks: Iterable[Block], targets: Targets) -> TrainingData:
    """Read training data once: return samples if they are fewer than the features, else moments."""
    few, stream = head(blocks)
    if few is None:
        return training_moments(stream, targets)
    x, y = few
    return FewSamples(x=x, y=targets.coded(y), weights=targets.weights(y))


def head(blocks: Iterable[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...] | None, Iterable[Any]]:
    """Return the blocks concatenated if samples are fewer than features; else None and the stream."""
    read: list[tuple[np.ndarray, ...]] = []
    stream = iter(blocks)
    for block in stream:
        read.append(block)
        if sum(len(x) for x, *_ in read) >= block[0].shape[1]:
            return None, itertools.chain(read, stream)
    return tuple(np.concatenate(part) for part in zip(*read, strict=True)), ()


def balance_raw(is_raw: np.ndarray) -> np.ndarray:
    """Return weights (w,) of standardised features that give the raw ones, ``is_raw`` (w,), half of the variance."""
    # Otherwise a few hundred raw features among ten thousand others would have no influence. The
    # total variance stays the same, so that penalties keep their size.
    return np.sqrt(len(is_raw) / 2 / np.where(is_raw, is_raw.sum(), (~is_raw).sum()))
