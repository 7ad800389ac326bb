"""Held-out scores of ridge readouts in closed form, from the kernel matrix of the samples alone.

With K = ZZ' of standardised features, centred to Q diag(l) Q', the residuals of all samples under a penalty a are

    r = Q diag(a / (l + a)) Q'(Y - mean Y),

and the residuals of the samples F of a fold, predicted by the readout of all other samples, are (I - S)_FF^-1 r_F, with

    I - S = Q diag(a / (l + a)) Q' - 11'/n.

One decomposition therefore serves every penalty and every fold, and the kernel matrix of columns side by side is the
sum of their kernel matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import log_softmax

from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.sweep import Tally
from reservoir.readouts.targets import Targets

SCORING_ALPHAS = np.logspace(-2, 6, 13)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutScore:
    """Score of the best penalty on held-out samples.

    ``score`` is the accuracy, or R². ``loss`` is the cross-entropy at the fitted temperature, or the squared error
    divided by the variance. Both are means over samples and repeats. ``losses`` (n,) holds the loss of each sample.
    """

    alpha: float
    score: float
    loss: float
    losses: np.ndarray

    @property
    def merit(self) -> tuple[float, float]:
        """The sort key: the score, and between equal scores the smaller loss."""
        return self.score, -self.loss


def kernel_matrix(x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix (n, n), float32, of samples x (n, w) whose features are standardised first."""
    return KernelMatrix.of(x).products.astype(np.float32)


def score_by_kernel(
    kernel: np.ndarray, y: np.ndarray, targets: Targets, folds: np.ndarray, alphas: np.ndarray = SCORING_ALPHAS
) -> HeldOutScore:
    """Return the held-out score of the most accurate penalty; equally accurate ones are compared by their loss.

    Parameters
    ----------
    kernel : ndarray, (n, n)
        Kernel matrix of the samples.
    y : ndarray, (n, outputs)
        Labels.
    targets : Targets
        Coding of the labels.
    folds : ndarray of int, (repeats, n)
        Fold of each sample, for each repeat of the cross-validation.
    alphas : ndarray, (A,)
        Penalties.
    """
    found: list[tuple[float, float, np.ndarray]] = []
    for alpha, scores in _scores(kernel, targets.encode(y), folds, alphas):
        tally = Tally(targets)
        for part in scores:
            tally.update(part[None], y)
        found.append((alpha, float(tally.accuracy()[0]), scores))
    best = max(score for _, score, _ in found)
    equal = [(alpha, _losses(scores, y, targets)) for alpha, score, scores in found if score == best]
    alpha, losses = min(equal, key=lambda pair: (float(pair[1].mean()), -pair[0]))
    return HeldOutScore(alpha=alpha, score=best, loss=float(losses.mean()), losses=losses)


def _scores(
    kernel: np.ndarray, y: np.ndarray, folds: np.ndarray, alphas: np.ndarray
) -> Iterator[tuple[float, np.ndarray]]:
    """Yield every penalty with the held-out scores (repeats, n, T) for encoded targets (n, T)."""
    mean = kernel.mean(axis=0, dtype=np.float64)
    values, vectors = eigh(kernel - mean - mean[:, None] + mean.mean())
    centred = vectors.T @ (y - y.mean(axis=0, dtype=np.float64))
    for alpha in alphas.tolist():
        shrinkage = alpha / (np.maximum(values, 0) + alpha)
        residuals = vectors @ (shrinkage[:, None] * centred)
        scores = np.empty((len(folds), *y.shape))
        for repeat, fold in enumerate(folds):
            for number in np.unique(fold):
                rows = fold == number
                part = (vectors[rows] * shrinkage) @ vectors[rows].T - 1 / len(y)
                scores[repeat, rows] = y[rows] - np.linalg.solve(part, residuals[rows])
        yield alpha, scores


def _losses(scores: np.ndarray, y: np.ndarray, targets: Targets) -> np.ndarray:
    """Return the loss of each sample, (n,), averaged over repeats, from held-out scores (repeats, n, T)."""
    if not targets.classes:
        variance = np.maximum(y.var(axis=0, dtype=np.float64), np.finfo(np.float64).tiny)
        return (np.square(scores - y) / variance).mean(axis=(0, 2))
    flat, labels = scores.reshape(-1, scores.shape[2]), np.tile(y.astype(np.int64), (len(scores), 1))
    logits = targets.logits(flat) / targets.fit_temperature(flat, labels)
    log_probabilities = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    return -log_probabilities.reshape(len(scores), len(y), -1).mean(axis=(0, 2))
