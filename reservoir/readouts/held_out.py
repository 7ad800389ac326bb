"""Ridge readouts judged from a kernel matrix alone: the held-out scores of every fold in closed form.

With K = ZZ' of standardised features, centred to Q diag(l) Q', the residuals of all samples under a penalty a are

    r = Q diag(a / (l + a)) Q'(Y - mean Y),

and those of the samples F of a fold under the readout of all others are (I - S)_FF^-1 r_F, where

    I - S = Q diag(a / (l + a)) Q' - 11'/n.

So one decomposition serves every penalty and every fold, and the kernel of columns side by side is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import log_softmax

from reservoir.readouts.kernel import Kernel
from reservoir.readouts.sweep import Tally
from reservoir.readouts.targets import Targets

JUDGING_ALPHAS = np.logspace(-2, 6, 13)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """How the best penalty does on samples that its readout has not seen.

    ``score`` is the accuracy, or R^2, and ``loss`` the cross-entropy at the temperature that suits, or the squared
    error as a share of the variance: means over samples and deals. ``losses`` (n,) are those of each sample.
    """

    alpha: float
    score: float
    loss: float
    losses: np.ndarray

    @property
    def merit(self) -> tuple[float, float]:
        """The rank: of equal scores the smaller loss, which sees how near every sample is to being met."""
        return self.score, -self.loss


def kernel_matrix(x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix (n, n) of samples x (n, w), of features with mean 0 and deviation 1, in float32."""
    return Kernel.of(x).products.astype(np.float32)


def held_out(
    kernel: np.ndarray, y: np.ndarray, targets: Targets, deals: np.ndarray, alphas: np.ndarray = JUDGING_ALPHAS
) -> HeldOut:
    """Judge every penalty by samples y (n, outputs) with folds (deals, n): the most accurate, then of least loss."""
    found: list[tuple[float, float, np.ndarray]] = []
    for alpha, scores in _scores(kernel, targets.encode(y), deals, alphas):
        tally = Tally(targets)
        for part in scores:
            tally.update(part[None], y)
        found.append((alpha, float(tally.accuracy()[0]), scores))
    best = max(score for _, score, _ in found)
    equal = [(alpha, _losses(scores, y, targets)) for alpha, score, scores in found if score == best]
    alpha, losses = min(equal, key=lambda pair: (float(pair[1].mean()), -pair[0]))
    return HeldOut(alpha=alpha, score=best, loss=float(losses.mean()), losses=losses)


def _scores(
    kernel: np.ndarray, y: np.ndarray, deals: np.ndarray, alphas: np.ndarray
) -> Iterator[tuple[float, np.ndarray]]:
    """Yield every penalty with the held-out scores (deals, n, T) of encoded targets (n, T)."""
    mean = kernel.mean(axis=0, dtype=np.float64)
    values, vectors = eigh(kernel - mean - mean[:, None] + mean.mean())
    centred = vectors.T @ (y - y.mean(axis=0, dtype=np.float64))
    for alpha in alphas.tolist():
        left = alpha / (np.maximum(values, 0) + alpha)
        residuals = vectors @ (left[:, None] * centred)
        scores = np.empty((len(deals), *y.shape))
        for deal, folds in enumerate(deals):
            for fold in np.unique(folds):
                mine = folds == fold
                part = (vectors[mine] * left) @ vectors[mine].T - 1 / len(y)
                scores[deal, mine] = y[mine] - np.linalg.solve(part, residuals[mine])
        yield alpha, scores


def _losses(scores: np.ndarray, y: np.ndarray, targets: Targets) -> np.ndarray:
    """Return the loss of each sample, (n,), mean over deals, from held-out scores (deals, n, T)."""
    if not targets.classes:
        variance = np.maximum(y.var(axis=0, dtype=np.float64), np.finfo(np.float64).tiny)
        return (np.square(scores - y) / variance).mean(axis=(0, 2))
    flat, labels = scores.reshape(-1, scores.shape[2]), np.tile(y.astype(np.int64), (len(scores), 1))
    logits = targets.logits(flat) / targets.fit_temperature(flat, labels)
    chances = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    return -chances.reshape(len(scores), len(y), -1).mean(axis=(0, 2))
