"""Moments of features and targets: all that a ridge sweep needs; their size depends on the width alone.

For samples x (w,), targets y (t,) and weights p (1 unless given), with m = sum p x / sum p and n = sum p y / sum p:

    xx = sum p (x - m)(x - m)'      xy = sum p (x - m)(y - n)'

Rows are gathered into blocks of 2,048, shifted by the first block's mean, multiplied and summed in float64. Without the
shift a channel at 3000 +- 0.5 loses half its digits. Products need float64: if the largest eigenvalue
of the scatter is 1e7, as it is for 10,000 rows of a transformer's features, products in float32 err by about 1, and so
hide a penalty of about 1 in every solution. Blocks are cut by the row number, so the result does not depend, to the
last bit, on the pieces in which the rows arrive.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.targets import Block, FoldBlock, Targets

BLOCK_ROWS = 2048  # the product runs at 93% of its speed on all rows at once; 1,024 rows give 78%


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Centred second moments of features and targets.

    ``count`` is the sum of the weights: without weights, the number of samples. ``mean`` (w,) and ``y_mean`` (t,) are
    those of features and targets; ``xx`` (w, w) and ``xy`` (w, t) their centred products.
    """

    count: float
    mean: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    y_mean: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (w,), as ``StandardScaler`` has them; exactly 0 for constant channels."""
        variance = np.diagonal(self.xx) / self.count
        return np.sqrt(np.where(constant(variance, self.mean), 0.0, variance))

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of samples together (Chan, Golub and LeVeque 1983, equation 2.1)."""
        if self.xy.shape != other.xy.shape:
            raise InputError(f"moments of {self.xy.shape} and {other.xy.shape} do not add; use the same columns")
        count = self.count + other.count
        apart, y_apart = other.mean - self.mean, other.y_mean - self.y_mean
        share, product = other.count / count, self.count * other.count / count
        xx = np.multiply.outer(product * apart, apart)
        xx += self.xx
        xx += other.xx
        return Moments(
            count=count,
            mean=self.mean + share * apart,
            xx=xx,
            xy=self.xy + other.xy + np.multiply.outer(product * apart, y_apart),
            y_mean=self.y_mean + share * y_apart,
        )

    def select(self, features: np.ndarray | slice) -> "Moments":
        """Return the moments of some of the features, by indices or a slice: some columns of a concatenation."""
        rows = self.xx[features]
        return replace(self, mean=self.mean[features], xx=rows[:, features], xy=self.xy[features])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fields as float64 arrays, by name; `from_arrays` is the inverse."""
        return {field.name: np.asarray(getattr(self, field.name), np.float64) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Moments":
        """Build moments from what `to_arrays` returned."""
        names = {field.name for field in fields(cls)} - {"count"}
        return cls(count=float(arrays["count"]), **{name: arrays[name] for name in names})


class Accumulator:
    """Builds `Moments` of w features and t targets from blocks of any sizes, in memory of order w^2."""

    def __init__(self, width: int, targets: int) -> None:
        self._on = on = arithmetic()
        self._x = on.zeros((BLOCK_ROWS, width))
        self._z = on.zeros((BLOCK_ROWS, targets + 1))  # targets and a 1, whose products are the sums
        self._roots = on.zeros((BLOCK_ROWS, 1))  # square roots of the weights
        self._weighted = False
        self._filled = 0
        self._shift: tuple[Any, Any] | None = None
        self._xx = on.zeros((width, width))
        self._xz = on.zeros((width, targets + 1))
        self._sums = on.zeros((1, targets + 1))

    def update(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "Accumulator":
        """Take in samples: features (m, w) and targets (m, t) of any real dtype, and weights (m,) if not all are 1."""
        w, t = self._xz.shape[0], self._xz.shape[1] - 1
        if x.shape != (len(x), w) or y.shape != (len(x), t):
            raise InputError(f"moments: features {x.shape} and targets {y.shape}, not (m, {w}) and (m, {t})")
        start = 0
        while start < len(x):
            stop = min(start + BLOCK_ROWS - self._filled, len(x))
            rows = slice(self._filled, self._filled + stop - start)
            self._x[rows], self._z[rows, :t] = self._on.put(x[start:stop]), self._on.put(y[start:stop])
            if self._shift:  # subtracted in float64
                self._x[rows] -= self._shift[0]
                self._z[rows, :t] -= self._shift[1]
            self._z[rows, t] = self._roots[rows] = 1
            if weights is not None:
                self._weighted = True
                self._roots[rows, 0] = self._on.put(np.sqrt(weights[start:stop]))
            self._filled = rows.stop
            if self._filled == BLOCK_ROWS:
                self._multiply()
            start = stop
        return self

    def moments(self) -> Moments:
        """Return the moments of all samples so far; `InputError` where there are none, or one is not finite."""
        if self._filled:
            self._multiply()
        t = self._xz.shape[1] - 1
        count = float(self._sums[0, t])
        if self._shift is None or count <= 0:
            raise InputError("moments: no sample has a weight above 0; give at least one")
        xz, sums, shift, y_shift = (self._on.fetch(part) for part in (self._xz, self._sums, *self._shift))
        apart, y_apart = xz[:, t] / count, sums[0, :t] / count
        xx = np.multiply.outer(-count * apart, apart)
        xx += self._on.fetch(self._xx)
        for row in range(1, len(xx)):  # the sums are kept in the lower triangle alone
            xx[:row, row] = xx[row, :row]
        for what, sums in (("feature", np.diagonal(xx)), ("target", y_shift + y_apart)):
            wrong = np.flatnonzero(~np.isfinite(sums))
            if wrong.size:
                raise InputError(f"moments: {what} {wrong[0]} is not finite, or too large, in some row; leave it out")
        return Moments(
            count=count,
            mean=shift + apart,
            xx=xx,
            xy=xz[:, :t] - np.multiply.outer(count * apart, y_apart),
            y_mean=y_shift + y_apart,
        )

    def _multiply(self) -> None:
        """Add the products of the gathered rows to the sums and start a new block; the first one sets the shift."""
        on = self._on
        x, z, roots = (part[: self._filled] for part in (self._x, self._z, self._roots))
        if self._shift is None:
            self._shift = x.mean(0), z[:, :-1].mean(0)
            x -= self._shift[0]
            z[:, :-1] -= self._shift[1]
        if self._weighted:
            x *= roots
            z *= roots
        on.add_square(self._xx, x)
        self._xz += on.product(x.T, z)
        self._sums += on.product(z[:, -1:].T, z)
        self._filled = 0


def accumulate(blocks: Iterable[tuple[Any, ...]]) -> Moments:
    """Return the moments of a stream of (features (m, w), targets (m, t)), with or without weights (m,) as a third."""
    accumulator = None
    for x, y, *weights in blocks:
        if accumulator is None:
            accumulator = Accumulator(x.shape[1], y.shape[1])
        accumulator.update(x, y, *weights)
    if accumulator is None:
        raise InputError("moments: there are no samples; give at least one")
    return accumulator.moments()


def training_moments(blocks: Iterable[Block], targets: Targets) -> Moments:
    """Return the moments of blocks of features (m, w) and labels (m, outputs), encoded and weighted."""
    return accumulate((x, targets.encode(y), targets.weights(y)) for x, y in blocks)


def by_fold(train: Iterable[FoldBlock], repeat: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of each block fold by fold: fold number, features, labels and optional weights."""
    for x, y, fold, *weights in train:
        numbers = fold.reshape(len(x), -1)[:, repeat]
        for k in np.unique(numbers).tolist():
            yield k, *(part[numbers == k] for part in (x, y, *weights))


def fold_moments(train: Iterable[FoldBlock], targets: Targets, folds: int, repeat: int = 0) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds)."""
    accumulators: dict[int, Accumulator] = {}
    for k, x, y, *weights in by_fold(train, repeat):
        if k not in accumulators:
            accumulators[k] = Accumulator(x.shape[1], targets.columns)
        accumulators[k].update(x, targets.encode(y), targets.weights(y, *weights))
    check_folds(np.array([k in accumulators for k in range(folds)]))
    return [accumulators[k].moments() for k in range(folds)]


def check_folds(counts: np.ndarray) -> None:
    """Raise `InputError` if one of the folds has no samples."""
    if not counts.all():
        raise InputError(f"cross-validation: fold {np.argmin(counts)} of {len(counts)} is empty; use fewer folds")


def constant(variance: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return which channels are constant: equal float64 values can differ from their own mean by its rounding."""
    return variance <= np.square(10 * np.finfo(np.float64).eps * mean)
