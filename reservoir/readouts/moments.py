"""Centred second moments of features and targets, summed block by block: all that ridge needs of many samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, FoldBlock, Targets
from reservoir.readouts.products import arithmetic, fill_upper, move_to_device_of

PRODUCT_ROWS = 2048  # products reach 93% of the speed of a single one; of 1,024 rows, 78%


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Centred second moments of features and targets; their size depends on the width alone.

    For samples x (w,), targets y (t,) and weights p (1 by default), ``count`` is sum p, ``mean`` (w,)
    is m = sum p x / sum p, ``y_mean`` (t,) is n = sum p y / sum p, and

        xx = sum p (x - m)(x - m)'      xy = sum p (x - m)(y - n)'

    All are NumPy arrays of float64 except ``xx``, which stays on the device of its products: at 12,288
    features it has 1.2 GB.
    """

    count: float
    mean: np.ndarray  # (w,)
    xx: Any  # (w, w): an array, or a tensor on a device
    xy: np.ndarray  # (w, t)
    y_mean: np.ndarray  # (t,)

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (w,), as ``StandardScaler`` computes them; exactly 0 for constant channels."""
        return deviation(arithmetic().fetch(self.xx.diagonal()) / self.count, self.mean)

    def scale(self, feature_weights: np.ndarray | None = None) -> np.ndarray:
        """Return the factors (w,) that standardise features, times ``feature_weights`` (w,)."""
        return inverse(self.std) * (1.0 if feature_weights is None else feature_weights)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of samples together (Chan, Golub and LeVeque 1983, equation 2.1)."""
        # With a = this, b = other and d = mean_b - mean_a:
        #   xx = xx_a + xx_b + (count_a count_b / count) d d'        mean = mean_a + (count_b / count) d
        count = self.count + other.count
        d, y_d = other.mean - self.mean, other.y_mean - self.y_mean
        share = other.count / count
        factor = self.count * other.count / count
        # In place, because the matrix may take gigabytes.
        xx = move_to_device_of(factor * d, self.xx)[:, None] * move_to_device_of(d, self.xx)
        xx += self.xx
        xx += other.xx
        return Moments(
            count=count,
            mean=self.mean + share * d,
            xx=xx,
            xy=self.xy + other.xy + np.multiply.outer(factor * d, y_d),
            y_mean=self.y_mean + share * y_d,
        )

    def with_targets(self, blocks: Iterable[Block]) -> Moments:
        """Return the moments of the same features with other targets, from blocks of features and targets.

        The samples have no weights. Only ``xy`` is computed, which takes w t multiplications for each sample instead of
        the w^2 of ``xx``.
        """
        # sum (x - m)(y - n)' = sum (x - m) y' - (sum (x - m)) n', where the last term is only a rounding error.
        put, fetch = arithmetic().put, arithmetic().fetch
        products: Any = 0.0  # sum (x - m) y', (w, t)
        sum_of_centred: Any = 0.0  # sum (x - m), (w,)
        sum_of_targets: Any = 0.0  # sum y, (t,)
        for x, y in blocks:
            centred = x.astype(np.float64) - self.mean
            targets = y.astype(np.float64)
            products = products + fetch(arithmetic().product(put(centred).T, put(targets)))
            sum_of_centred = sum_of_centred + centred.sum(axis=0)
            sum_of_targets = sum_of_targets + targets.sum(axis=0)
        y_mean = sum_of_targets / self.count
        return replace(self, xy=products - np.multiply.outer(sum_of_centred, y_mean), y_mean=y_mean)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fields as float64 arrays, by name; `from_arrays` is the inverse."""
        arrays = vars(self) | {"xx": arithmetic().fetch(self.xx)}
        return {name: np.asarray(value, np.float64) for name, value in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Moments:
        """Build moments from the arrays of `to_arrays`; ``xx`` is moved to the device of products."""
        return cls(**{**arrays, "count": float(arrays["count"]), "xx": arithmetic().put(arrays["xx"])})


class Accumulator:
    """Builder of `Moments` from blocks of any size, in memory of the order of the squared number of features.

    Rows are gathered into blocks of `PRODUCT_ROWS`, so that the sums, to their last bit, do not depend on
    the sizes of the blocks that are added. All sums are of values minus the mean of the first block:
    without this shift, a channel at 3000 +- 0.5 would lose half its digits.
    """

    def __init__(self) -> None:
        self._arithmetic = arithmetic()
        self._filled = 0  # rows in the block that is being gathered
        # Means of the features and targets of the first block; None until it is full.
        self._shift: tuple[Any, Any] | None = None

    def _allocate(self, width: int, targets: int) -> None:
        """Make the block of rows and the sums, for numbers of features and targets that the first samples show."""

        # Sums are in float64. If the largest eigenvalue of the scatter is 1e7, as for 10,000 rows of
        # a transformer's features, products in float32 err by about 1, and so hide a penalty of about
        # 1 in every solution.
        def zeros(*shape: int) -> Any:
            """Return an array of zeros on the device."""
            return self._arithmetic.put(np.zeros(shape))

        # The block: features x, and targets with a last column of square roots of the weights, z.
        self._x = zeros(PRODUCT_ROWS, width)
        self._z = zeros(PRODUCT_ROWS, targets + 1)
        # Sums of x'x and x'z, and of the last column's products with z. All three are of values minus the shift, times
        # the square roots of the weights. So in the last column the products are weighted sums of x, y and 1.
        self._xx = zeros(width, width)
        self._xz = zeros(width, targets + 1)
        self._sums = zeros(1, targets + 1)

    def update(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add samples: features (m, w) and targets (m, t) of any real dtype, and weights (m,), 1 by default.

        Features may be `StoredFeatures`.
        """
        is_first_call = not hasattr(self, "_x")
        if is_first_call:
            self._allocate(x.shape[1], y.shape[1])
        # Everything goes to the device at once, and is cut there.
        roots = np.ones(len(x)) if weights is None else np.sqrt(weights)
        x, y, roots = map(self._arithmetic.features, (x, y, roots))
        # Fill the block with samples from ``start`` on; add it to the sums whenever it is full.
        start = 0
        while start < len(x):
            stop = min(start + PRODUCT_ROWS - self._filled, len(x))
            rows = slice(self._filled, self._filled + stop - start)  # of the block
            self._x[rows] = x[start:stop]
            self._z[rows, :-1] = y[start:stop]
            self._z[rows, -1] = roots[start:stop]
            self._filled = rows.stop
            start = stop
            if self._filled == PRODUCT_ROWS:
                self._multiply()

    def moments(self) -> Moments:
        """Return the moments of all samples so far.

        Raise `InputError` if no sample with a weight above 0 was added, or if a feature or target is not finite.
        """
        if self._filled:  # a last block that is not full
            self._multiply()
        count = 0.0 if self._shift is None else float(self._sums[0, -1])
        if self._shift is None or count <= 0:
            raise InputError("moments: no sample has a weight above 0", "give at least one")
        fetch = self._arithmetic.fetch
        # The last column of ``xz`` sums up the features, and ``sums`` the targets and, in its last column, the weights.
        xz, sums = fetch(self._xz), fetch(self._sums)
        shift, y_shift = fetch(self._shift[0]), fetch(self._shift[1])
        # From sums around the shift to moments around the mean, which is the shift plus d:
        #   xx = sum p (x - shift)(x - shift)' - count d d'
        d, y_d = xz[:, -1] / count, sums[0, :-1] / count
        xx = move_to_device_of(-count * d, self._xx)[:, None] * move_to_device_of(d, self._xx)
        xx += self._xx
        fill_upper(xx)  # the sums are in the lower triangle
        y_mean = y_shift + y_d
        check_finite(fetch(xx.diagonal()), "feature")
        check_finite(y_mean, "target")
        xy = xz[:, :-1] - np.multiply.outer(count * d, y_d)
        return Moments(count=count, mean=shift + d, xx=xx, xy=xy, y_mean=y_mean)

    def _multiply(self) -> None:
        """Add the products of the gathered rows to the sums and start a new block; the first block sets the shift."""
        x = self._x[: self._filled]
        z = self._z[: self._filled]  # the targets ``y`` and, in the last column, the roots of the weights
        y = z[:, :-1]
        roots = z[:, -1:]
        if self._shift is None:
            self._shift = x.mean(0), y.mean(0)
        # Rows times the square roots of their weights: their products are then weighted. ``x`` and ``y`` are views, so
        # this overwrites the block, and with it ``z``. The block has been read when the next one begins.
        x -= self._shift[0]
        x *= roots
        y -= self._shift[1]
        y *= roots
        # For samples x and y minus the shift, with weights p: x'z is sum p x y' and, in the last column, sum p x;
        # roots'z is sum p y' and, in the last column, sum p.
        self._arithmetic.add_square(self._xx, x)  # the lower triangle only, which `moments` mirrors
        self._xz += self._arithmetic.product(x.T, z)
        self._sums += self._arithmetic.product(roots.T, z)
        self._filled = 0


def accumulate(blocks: Iterable[tuple[Any, ...]]) -> Moments:
    """Return the moments of a stream of features (m, w), targets (m, t) and, optionally, weights (m,)."""
    accumulator = Accumulator()
    for block in blocks:
        accumulator.update(*block)
    return accumulator.moments()


def training_moments(blocks: Iterable[Block], targets: Targets) -> Moments:
    """Return the moments of blocks of features (m, w) and labels (m, outputs), encoded and weighted."""
    return accumulate((x, targets.coded(y), targets.weights(y)) for x, y in blocks)


def by_fold(train: Iterable[FoldBlock], repeat: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of each block fold by fold: fold number, features, labels and optional weights.

    The folds are those of one ``repeat``, by its number.
    """
    for x, y, folds, *weights in train:
        fold_of_sample = folds.reshape(len(x), -1)[:, repeat]  # ``folds`` is (m,) or (m, repeats)
        for k in np.unique(fold_of_sample).tolist():
            yield k, *(array[fold_of_sample == k] for array in (x, y, *weights))


def fold_moments(
    train: Iterable[FoldBlock], targets: Targets, folds: int, repeat: int = 0
) -> list[Moments]:
    """Return the moments of each fold of one repeat, from blocks of features, labels and fold numbers in [0, folds)."""
    accumulators = [Accumulator() for _ in range(folds)]
    for k, x, y, *weights in by_fold(train, repeat):
        accumulators[k].update(x, targets.coded(y), targets.weights(y, *weights))
    return [accumulator.moments() for accumulator in accumulators]


def check_finite(values: np.ndarray, kind: str, first: int = 0) -> None:
    """Raise `InputError` if one of the ``values`` is not finite, each of which is a statistic of a feature or target.

    The message names the ``kind``, "feature" or "target", and its number; those of the values start at ``first``.
    """
    not_finite = np.flatnonzero(~np.isfinite(values))
    if not_finite.size:
        raise InputError(
            f"readout: {kind} {first + not_finite[0]} is not finite, or too large, in some row",
            "remove the row",
        )


ROUNDING = 8 * float(np.finfo(np.float32).eps)
"""The largest standard deviation, relative to the mean, that is taken for errors of rounding: a few units in the last
place of float32, as sums over tokens have."""


def deviation(variance: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the standard deviations (w,) of channels, exactly 0 for those that are constant up to rounding."""
    # Features are float32: what is 0.5 in every row may be 0.50000006 in one. Divided by the standard deviation of such
    # errors, a real difference in a new row would be millions, and so would be its prediction.
    is_constant = variance <= np.square(ROUNDING * mean)
    return np.sqrt(np.where(is_constant, 0.0, variance))


def inverse(std: np.ndarray) -> np.ndarray:
    """Return 1 / std, and 0 for constant channels, so that their weights are exactly 0."""
    return np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
