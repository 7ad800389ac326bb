"""Exact ridge regression for every penalty and target at once.

`ridge_by_definition` is the whole of it for one penalty and few rows, in lines that the eye can check;
the tests compare everything else with it. `ridge_path` computes the same for many penalties and any
number of rows: a `RidgeSystem` of as many equations as features, from moments that are summed block by
block, or one of as many equations as samples, from their products (`KernelMatrix`).

In expectation over masks, dropout of the standardised features with rate p adds exactly such a
penalty, alpha = samples * p / (1 - p), so a sweep over penalties is a sweep over dropout rates.

References: Hoerl and Kennard 1970, Ridge regression; Wager et al. 2013, Dropout training as adaptive
regularization.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reservoir.readouts.linear import Block, LinearPath, Scorer, Targets
from reservoir.readouts.moments import Moments, check_finite, deviation, inverse, training_moments
from reservoir.readouts.penalties import check_penalties
from reservoir.readouts.products import (
    LARGE_MATRIX,
    arithmetic,
    blas_threads,
    fill_upper,
    move_to_device_of,
)
from reservoir.readouts.tridiagonal import (
    TRIDIAGONAL_WORK,
    TridiagonalReduction,
    solution_work,
    solve_penalties,
)

CHUNK = 2048  # features of a kernel matrix that are read at once
FoldScorer = Callable[[np.ndarray, slice], np.ndarray]
"""``scorer(x, penalties)`` returns the scores (A, m, t) of m samples under some of the penalties of a sweep."""


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
    """The training data of fewer samples than features."""

    x: np.ndarray  # features (n, w)
    y: np.ndarray  # encoded targets (n, t)
    weights: np.ndarray | None  # (n,); None if all are 1


TrainingData = Moments | FewSamples
"""What `gather` returns: moments of many samples, or few samples themselves. `ridge_path` solves each in its form."""


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


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The ridge regression (A + alpha I) W = b; scores of features x (m, n) are ((x - mean) * scale) W + offset.

    `path` and `scorer` may overwrite A, so one of them is called, once.
    """

    matrix: Any  # A (n, n), positive semidefinite, of float64: an array, or a tensor on a device
    b: np.ndarray  # (n, t)
    mean: np.ndarray  # (n,)
    scale: np.ndarray  # (n,)
    offset: np.ndarray  # (t,)

    def path(self, alphas: np.ndarray) -> LinearPath:
        """Return the solutions of every penalty."""
        matrix = arithmetic().put(self.matrix)  # on the device that computes
        weights = solve_penalties(matrix, self.b, check_penalties(alphas))
        return LinearPath(alphas, weights, self.offset, self.mean, self.scale)

    def scorer(self, alphas: np.ndarray, rows: float, targets: Targets | None = None) -> FoldScorer:
        """Return a function like a `Scorer` of the path, in the form that is fastest for a number of ``rows``.

        With ``targets``, a `Scorer` adds the offsets of real targets in float64.
        """
        if not self.rotates_rows(alphas, rows):
            return Scorer(self.path(alphas), targets)
        return self._rotating_scorer(alphas, targets)

    def rotates_rows(self, alphas: np.ndarray, rows: float) -> bool:
        """Return whether a number of ``rows`` are scored faster by rotating them than by rotating solutions back."""
        # With A = Q T Q', scores are z W = (z Q) (T + alpha I)^-1 Q' b. With fewer rows than solutions, it takes
        # less time to rotate the rows z, once, than the solutions of all penalties. But rows can be rotated in the
        # tridiagonal form alone, and solutions may have a faster one.
        size, penalties = len(self.b), len(alphas)
        work_of_rows = TRIDIAGONAL_WORK * size**3 + rows * size**2
        solutions = penalties * self._has_samples.sum()
        work_of_solutions = solution_work(size, penalties) + solutions * size**2
        # With one feature, or one penalty, there is nothing that a rotation would save.
        has_one_system = min(size, penalties) == 1
        # A device solves each penalty by itself and rotates nothing.
        on_device = arithmetic().device is not None
        return bool(work_of_rows < work_of_solutions and not has_one_system and not on_device)

    @property
    def _has_samples(self) -> np.ndarray:
        """Whether each target has a solution, (t,): a class without samples, whose ``b`` is 0, needs none."""
        return np.asarray(self.b.any(axis=0))

    def _rotating_scorer(self, alphas: np.ndarray, targets: Targets | None) -> FoldScorer:
        """Return a scorer that rotates rows z instead of solutions, for fewer rows than solutions.

        With A = Q T Q', the scores z Q (T + alpha I)^-1 Q' b are products of the rotated rows z Q with the solutions of
        the tridiagonal systems, which are never rotated back.
        """
        has_samples = self._has_samples
        reduction = TridiagonalReduction(self.matrix, self.b[:, has_samples])
        weights = reduction.solve(check_penalties(alphas)).transpose(1, 0, 2)  # (A, n, t)
        # Rotated rows are centred and scaled already.
        mean, scale = np.zeros(len(self.b)), np.ones(len(self.b))
        rotated_path = LinearPath(alphas, weights, self.offset[has_samples], mean, scale)
        scorer = Scorer(rotated_path, targets)

        def scores(x: np.ndarray, penalties: slice) -> np.ndarray:
            """Return the scores of rows under some penalties; those of a class without samples are its offset."""
            z = (x - self.mean) * self.scale
            rotated = reduction.rotate(z.T).T  # z Q = (Q' z')', of float64
            # The precision in which a `Scorer` of ``x`` itself would compute: float32 unless ``x`` is of float64.
            precision = np.result_type(x.dtype, np.float32)
            of_classes = scorer(rotated.astype(precision), penalties)
            all_scores = np.full((*of_classes.shape[:2], len(self.offset)), self.offset, of_classes.dtype)
            all_scores[:, :, has_samples] = of_classes
            return all_scores

        return scores


def primal_system(moments: Moments, scale: np.ndarray) -> RidgeSystem:
    """Return the ridge regression of moments, A = Z'Z and b = Z'Y, for features that are multiplied by ``scale``."""
    # With S = diag(scale), the moments of features X S are S X'X S and S X'Y. X'X is multiplied by S from one side and,
    # in place, from the other, because the matrix may take gigabytes.
    factors = move_to_device_of(scale, moments.xx)
    xx = moments.xx * factors[:, None]
    xx *= factors
    return RidgeSystem(xx, moments.xy * scale[:, None], moments.mean, scale, moments.y_mean)


def dual_system(products: np.ndarray, weights: np.ndarray, y: np.ndarray) -> RidgeSystem:
    """Return the ridge regression of products ZZ' (n, n), A = ZZ' and b = Y, whose solutions are weights of samples.

    The solutions (n, t) apply to the products of a row with each sample, instead of features. ``weights`` (n,) and
    targets ``y`` (n, t) are those of the samples. The products and targets are centred here, by the weighted means of
    the samples.
    """
    y = y.astype(np.float64)
    share = weights / weights.sum()  # of each sample in a mean
    roots = np.sqrt(weights)[:, None]
    # The weighted mean of the targets; relative to the first, so that a constant target is exactly 0 when centred.
    offset = y[0] + share @ (y - y[0])
    # Products of centred samples: (z_i - m)'(z_j - m) = z_i'z_j - z_i'm - m'z_j + m'm, with m = sum share_j z_j.
    products_with_mean = products @ share
    mean_with_mean = share @ products_with_mean
    centred = products - products_with_mean[:, None] - (products_with_mean - mean_with_mean)
    # A sample of weight p counts as sqrt(p) times the sample: the centred sample, in both factors of a product, and its
    # centred target. So the system also multiplies the products of a row with the samples by these roots.
    centred *= roots
    centred *= roots.T
    return RidgeSystem(
        centred, (y - offset) * roots, mean=np.zeros(len(y)), scale=roots[:, 0], offset=offset
    )


class KernelMatrix:
    """Ridge regression from the products ZZ' of samples: one matrix serves all folds and penalties.

    Samples ``x`` (n, w) have ``weights`` (n,), 1 by default. Their features are scaled by the standard deviation over
    all samples, times ``feature_weights`` (w,), and centred by the mean of the fitted samples. ``products`` (n, n) are
    those of features that are centred by ``mean`` (w,), that of all samples, and multiplied by ``scale`` (w,).

    ``of_first_features`` is the `KernelMatrix` of the first features of ``x``, with the same sample weights and
    without feature weights; its products are reused if all these features have the same weight.
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
        # The matrix of the first features is reused if all of these have the same weight, a factor of their products.
        reused = of_first_features
        if reused is not None and np.ptp(factors[: len(reused.mean)]) > 0:
            reused = None
        # ZZ' is the sum of the products of each chunk of features, which is standardised in float64.
        put, fetch = arithmetic().put, arithmetic().fetch
        lower_triangle = put(np.zeros((len(x), len(x))))
        for chunk in self._chunks(0 if reused is None else len(reused.mean)):
            z = x[:, chunk].astype(np.float64)
            mean = np.average(z, axis=0, weights=weights)
            z -= mean
            variance = np.average(np.square(z), axis=0, weights=weights)
            check_finite(variance, "feature", chunk.start)
            self.mean[chunk] = mean
            self.scale[chunk] = inverse(deviation(variance, mean)) * factors[chunk]
            z *= self.scale[chunk]
            arithmetic().add_square(lower_triangle, put(z).T)
        self.products = fill_upper(fetch(lower_triangle))
        if reused is not None:
            features, factor = slice(len(reused.mean)), factors[0]
            self.mean[features] = reused.mean
            self.scale[features] = reused.scale * factor
            self.products += reused.products * factor**2  # both factors of a product have it

    def path(self, y: np.ndarray, alphas: np.ndarray) -> LinearPath:
        """Return the ridge solutions of every penalty for targets (n, t)."""
        # The weights of features are W = Z'V, from the weights V of samples that solve the system.
        system = dual_system(self.products, self.weights, y)
        put, fetch = arithmetic().put, arithmetic().fetch
        # V is (A, n, t). Its penalties and targets are put side by side, (n, A t), so that one product serves them all.
        of_samples = system.path(alphas).coef.transpose(1, 0, 2)
        of_samples = put(np.ascontiguousarray(of_samples).reshape(len(y), -1))
        of_features = np.empty((self.x.shape[1], len(alphas) * y.shape[1]))
        for chunk in self._chunks():
            z = self.x[:, chunk] - self.mean[chunk]
            z *= self.scale[chunk]
            of_features[chunk] = fetch(arithmetic().product(put(z).T, of_samples))
        weights = of_features.reshape(len(of_features), len(alphas), -1).transpose(1, 0, 2)  # (A, w, t)
        return LinearPath(alphas, weights, system.offset, self.mean, self.scale)

    def of_first_rows(self, rows: int) -> KernelMatrix:
        """Return the matrix of the first ``rows`` samples; features keep the scale of all samples."""
        # The copy keeps ``scale``, because the products contain it.
        first_rows = copy(self)
        first_rows.x, first_rows.weights = self.x[:rows], self.weights[:rows]
        # The products are of features that are centred by the means over all samples. `dual_system` centres them by the
        # means over the first samples, which gives the same products whatever was subtracted before.
        first_rows.products = self.products[:rows, :rows]
        # `path` returns weights for features that are centred by these means, too.
        means = [
            np.average(first_rows.x[:, chunk], axis=0, weights=first_rows.weights)
            for chunk in self._chunks()
        ]
        first_rows.mean = np.concatenate(means)
        return first_rows

    def _chunks(self, first: int = 0) -> Iterator[slice]:
        """Yield consecutive slices of up to `CHUNK` features, from feature number ``first`` to the last."""
        for start in range(first, self.x.shape[1], CHUNK):
            yield slice(start, min(start + CHUNK, self.x.shape[1]))


def kernel_fold_scores(
    products: np.ndarray, weights: np.ndarray, y: np.ndarray, fold: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Return the scores (A, n, t) of samples, each by the models that were fitted to the samples of the other folds.

    Samples have products ZZ' (n, n), ``weights`` (n,), targets ``y`` (n, t) and the numbers of their folds, ``fold``
    (n,).
    """
    scores = np.empty((len(alphas), *y.shape))
    all_penalties = slice(None)
    for k in np.unique(fold):
        is_held_out = fold == k
        is_fitted = ~is_held_out
        # `dual_system` centres the products of the fitted samples itself; those of held-out samples are centred below.
        among_fitted = products[np.ix_(is_fitted, is_fitted)]
        system = dual_system(among_fitted, weights[is_fitted], y[is_fitted])
        held_out_rows = is_held_out.sum()
        scorer = system.scorer(alphas, held_out_rows)  # their number decides which form is the fastest
        # Products of held-out samples with fitted ones, both centred by the mean m of the fitted samples:
        #   (z - m)'(z_j - m) = z'z_j - z'm - m'z_j + m'm
        share = weights[is_fitted] / weights[is_fitted].sum()  # of each fitted sample in m
        with blas_threads(many=len(products) >= LARGE_MATRIX):
            held_out_products = products[np.ix_(is_held_out, is_fitted)]
            held_out_times_mean = held_out_products @ share
            fitted_times_mean = among_fitted @ share
            mean_times_mean = share @ fitted_times_mean
            centred_products = (
                held_out_products - held_out_times_mean[:, None] - fitted_times_mean + mean_times_mean
            )
        scores[:, is_held_out] = scorer(centred_products, all_penalties)
    return scores


def gather(blocks: Iterable[Block], targets: Targets) -> TrainingData:
    """Read training data once: return samples if they are fewer than the features, else moments."""
    few_samples, stream = concatenate_if_few(blocks)
    if few_samples is None:
        return training_moments(stream, targets)
    x, y = few_samples
    return FewSamples(x=x, y=targets.coded(y), weights=targets.weights(y))


def concatenate_if_few(
    blocks: Iterable[tuple[np.ndarray, ...]],
) -> tuple[tuple[np.ndarray, ...] | None, Iterable[Any]]:
    """Return all blocks as one, and no further blocks, if samples are fewer than features; else None and all blocks.

    The first array of a block has the features, (m, w). If samples are not few, only a part of the stream is in memory.
    """
    read_blocks: list[tuple[np.ndarray, ...]] = []
    samples = 0
    stream = iter(blocks)
    for block in stream:
        read_blocks.append(block)
        features = block[0]
        samples += len(features)
        if samples >= features.shape[1]:
            # The blocks that were read, and then the others.
            return None, itertools.chain(read_blocks, stream)
    return tuple(np.concatenate(arrays) for arrays in zip(*read_blocks, strict=True)), ()


def balance_raw(is_raw: np.ndarray) -> np.ndarray:
    """Return weights (w,) of standardised features that give the raw ones, ``is_raw`` (w,), half of the variance."""
    # Otherwise a few hundred raw features among ten thousand others would have no influence. The
    # total variance stays the same, so that penalties keep their size.
    # For each feature, how many features are raw as it is, or not raw as it is.
    features_of_kind = np.where(is_raw, is_raw.sum(), (~is_raw).sum())
    return np.sqrt(len(is_raw) / 2 / features_of_kind)
