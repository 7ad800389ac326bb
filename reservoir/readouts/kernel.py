"""Ridge regression from the products ZZ' of samples, for fewer samples than features."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import numpy as np

from reservoir.readouts.linear_path import LinearPath
from reservoir.readouts.moments import check_finite, deviation, inverse
from reservoir.readouts.products import LARGE_MATRIX, arithmetic, blas_threads, fill_upper
from reservoir.readouts.ridge_system import dual_system

CHUNK = 2048  # features of a kernel matrix that are read at once


class KernelMatrix:
    """Ridge regression from the products ZZ' of samples: one matrix serves all folds and penalties.

    Features are scaled by their standard deviation over all samples, as in the final readout, times
    ``feature_weights`` (w,), and centred by the mean of the fitted samples. Samples ``x`` (n, w) have
    ``weights`` (n,), 1 by default. ``of_first_features`` is the `KernelMatrix` of the first features of
    ``x``, with the same sample weights and without feature weights; its products are reused if all
    these features have the same weight.
    """

    def __init__(
        self,
        x: np.ndarray,
        weights: np.ndarray | None = None,
        feature_weights: np.ndarray | None = None,
        of_first_features: KernelMatrix | None = None,
    ) -> None:
        self.weights = np.ones(len(x)) if weights is None else weights
        factors = np.ones(x.shape[1]) if feature_weights is None else feature_weights
        self.x = x
        self.mean, self.scale = np.empty(x.shape[1]), np.empty(x.shape[1])
        first = of_first_features
        if first is not None and np.ptp(factors[: len(first.mean)]) > 0:
            first = None
        # ZZ' is the sum of the products of each chunk of features, which is standardised in float64.
        put, fetch = arithmetic().put, arithmetic().fetch
        total = put(np.zeros((len(x), len(x))))
        for part in self._chunks(0 if first is None else len(first.mean)):
            z = x[:, part].astype(np.float64)
            mean = np.average(z, axis=0, weights=weights)
            z -= mean
            variance = np.average(np.square(z), axis=0, weights=weights)
            check_finite(variance, "feature", part.start)
            self.mean[part] = mean
            self.scale[part] = inverse(deviation(variance, mean)) * factors[part]
            z *= self.scale[part]
            arithmetic().add_square(total, put(z).T)
        self.products = fill_upper(fetch(total))
        if first is not None:
            features, factor = slice(len(first.mean)), factors[0]
            self.mean[features], self.scale[features] = first.mean, first.scale * factor
            self.products += first.products * factor**2

    def path(self, y: np.ndarray, alphas: np.ndarray) -> LinearPath:
        """Return the ridge solutions of every penalty for targets (n, t)."""
        # The weights of features are W = Z'V, from the weights V (n, A t) of samples that solve the system.
        system = dual_system(self.products, self.weights, y)
        put, fetch = arithmetic().put, arithmetic().fetch
        of_samples = system.path(alphas).coef.transpose(1, 0, 2)
        of_samples = put(np.ascontiguousarray(of_samples).reshape(len(y), -1))
        of_features = np.empty((self.x.shape[1], len(alphas) * y.shape[1]))
        for part in self._chunks():
            z = self.x[:, part] - self.mean[part]
            z *= self.scale[part]
            of_features[part] = fetch(arithmetic().product(put(z).T, of_samples))
        weights = of_features.reshape(len(of_features), len(alphas), -1).transpose(1, 0, 2)
        return LinearPath(alphas, weights, system.offset, self.mean, self.scale)

    def of_first_rows(self, rows: int) -> KernelMatrix:
        """Return the matrix of the first samples; features are scaled by their standard deviation over all samples."""
        part = copy(self)
        part.x, part.weights = self.x[:rows], self.weights[:rows]
        part.products = self.products[:rows, :rows]
        means = [np.average(part.x[:, chunk], axis=0, weights=part.weights) for chunk in self._chunks()]
        part.mean = np.concatenate(means)
        return part

    def _chunks(self, first: int = 0) -> Iterator[slice]:
        """Yield consecutive slices of the features, from number ``first``."""
        for start in range(first, self.x.shape[1], CHUNK):
            yield slice(start, min(start + CHUNK, self.x.shape[1]))


def kernel_fold_scores(
    products: np.ndarray, weights: np.ndarray, y: np.ndarray, fold: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Return the scores (A, n, t) of samples, each by the models that were fitted to the samples of the other folds.

    Samples have products ZZ' (n, n), ``weights`` (n,), targets ``y`` (n, t) and a ``fold`` (n,).
    """
    scores = np.empty((len(alphas), *y.shape))
    for k in np.unique(fold):
        is_fitted, is_held_out = fold != k, fold == k
        among_fitted = products[np.ix_(is_fitted, is_fitted)]
        system = dual_system(among_fitted, weights[is_fitted], y[is_fitted])
        scorer = system.scorer(alphas, is_held_out.sum())
        # Products of held-out samples with fitted ones, both centred by the mean m of the fitted samples:
        #   (z - m)'(z_j - m) = z'z_j - z'm - m'z_j + m'm
        share = weights[is_fitted] / weights[is_fitted].sum()
        with blas_threads(many=len(products) >= LARGE_MATRIX):
            with_mean = among_fitted @ share
            held_out = products[np.ix_(is_held_out, is_fitted)]
            held_out = held_out - (held_out @ share)[:, None] - with_mean + share @ with_mean
        scores[:, is_held_out] = scorer(held_out, slice(None))
    return scores
