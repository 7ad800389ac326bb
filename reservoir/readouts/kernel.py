"""Ridge regression from the kernel matrix, for fewer samples than features; one matrix serves all folds and penalties.

With Z the standardised features, W = Z'(ZZ' + alpha I)^-1 (Y - mean Y) needs only ZZ' of the features. Scores of
held-out samples are sums of its entries too, so cross-validation does not read the features again. Features are scaled
by their deviation over all samples, as in the final readout, and centred by the mean of the fitted samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.linear import LinearPath
from reservoir.readouts.moments import constant
from reservoir.readouts.ridge import inverse, positive
from reservoir.readouts.tridiagonal import Tridiagonal

CHUNK = 2048  # features that are in memory in float64 at once


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelMatrix:
    """Samples x (n, w), their weights (n,), the mean and scale (w,) of their features, and ZZ' (n, n)."""

    x: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, weights: np.ndarray | None = None, emphasis: np.ndarray | None = None) -> KernelMatrix:
        """Standardise samples, times emphasis (w,), and multiply them, some features at a time.

        Raises `InputError` where one is not finite.
        """
        weights = np.ones(len(x)) if weights is None else weights
        mean, scale = np.empty(x.shape[1]), np.empty(x.shape[1])
        on = arithmetic()
        total = on.zeros((len(x), len(x)))
        for part in _chunks(x):
            z = x[:, part].T.astype(np.float64, order="C")
            mean[part] = np.average(z, axis=1, weights=weights)
            z -= mean[part, None]
            variance = np.average(np.square(z), axis=1, weights=weights)
            if wrong := np.flatnonzero(~np.isfinite(variance)).tolist():
                feature = part.start + wrong[0]
                raise InputError(
                    f"readout: feature {feature} holds a value that is not finite or too large; leave it out"
                )
            scale[part] = inverse(np.sqrt(np.where(constant(variance, mean[part]), 0.0, variance)))
            if emphasis is not None:
                scale[part] *= emphasis[part]
            z *= scale[part, None]
            on.add_square(total, on.put(z))
        products = np.tril(on.fetch(total))
        products += np.tril(products, -1).T
        return cls(x=x, weights=weights, mean=mean, scale=scale, products=products)

    def path(self, y: np.ndarray, alphas: np.ndarray) -> LinearPath:
        """Return the ridge solutions of every penalty for targets (n, t)."""
        every = np.ones(len(y), bool)
        dual, offset = self._solve(y, every, alphas)
        on = arithmetic()
        on_device = on.put(np.ascontiguousarray(dual.transpose(1, 0, 2)).reshape(len(y), -1))
        coef = np.empty((self.x.shape[1], len(alphas) * y.shape[1]))
        for part in _chunks(self.x):
            z = self.x[:, part].T - self.mean[part, None]
            z *= self.scale[part, None]
            coef[part] = on.fetch(on.product(on.put(z), on_device))
        weights = coef.reshape(len(coef), len(alphas), -1).transpose(1, 0, 2)
        return LinearPath.from_standardised(alphas, weights, offset, self.mean, self.scale)

    def held_out(self, y: np.ndarray, fold: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """Return the scores (A, n, t) of every sample under every penalty, fitted to the folds that it is not in."""
        scores = np.empty((len(alphas), *y.shape))
        for k in np.unique(fold):
            fitted, held = fold != k, fold == k
            dual, offset = self._solve(y, fitted, alphas)
            # The products of held-out samples with centred ones; the mean of those they are fitted with is 0.
            share = self.weights[fitted] / self.weights[fitted].sum()
            among = self.products[np.ix_(fitted, fitted)] @ share
            with_held = self.products[np.ix_(held, fitted)]
            with_held = with_held - (with_held @ share)[:, None] - among + share @ among
            scores[:, held] = with_held @ dual + offset
        return scores

    def _solve(self, y: np.ndarray, rows: np.ndarray, alphas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of each of some samples in the solutions, (A, m, t), and the mean target (t,)."""
        weights, y = self.weights[rows], y[rows].astype(np.float64)
        share, roots = weights / weights.sum(), np.sqrt(weights)[:, None]
        offset = share @ y
        products = self.products[np.ix_(rows, rows)]
        among = products @ share
        products -= among[:, None]
        products -= among - share @ among
        products *= roots
        products *= roots.T
        return Tridiagonal.of(products).solve(positive(alphas), (y - offset) * roots) * roots, offset


def _chunks(x: np.ndarray) -> Iterator[slice]:
    for start in range(0, x.shape[1], CHUNK):
        yield slice(start, min(start + CHUNK, x.shape[1]))
