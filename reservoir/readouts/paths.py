"""Linear models along a path of penalties, and their scores by one matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir.readouts.device import arithmetic
from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearPath:
    """The linear models of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    ``alphas`` (A,) are the penalties, ``coef`` (A, w, t) is exactly 0 for constant channels, ``intercept`` (A, t) the
    scores of x = 0. ``center`` (w,) is the features' mean, which `Scorer` subtracts first, so that float32 keeps the
    digits of a channel at 3000 +- 0.5. ``converged`` (A,): whether an iterative solver reached its tolerance.
    """

    alphas: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    center: np.ndarray
    converged: np.ndarray

    @classmethod
    def from_standardised(
        cls,
        alphas: np.ndarray,
        weights: np.ndarray,
        offset: np.ndarray,
        mean: np.ndarray,
        scale: np.ndarray,
        converged: np.ndarray | None = None,
    ) -> LinearPath:
        """Return the path of weights (A, w, t) for standardised features (x - mean) * scale, and their offset."""
        coef = weights * scale[:, None]
        converged = np.ones(len(alphas), bool) if converged is None else converged
        return cls(
            alphas=np.asarray(alphas, np.float64),
            coef=coef,
            intercept=offset - mean @ coef,
            center=mean,
            converged=converged,
        )

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return LinearReadout(
            coef=self.coef[index], intercept=self.intercept[index], targets=targets, temperature=temperature
        )


class Scorer:
    """Scores blocks of features under every penalty of a path, laid out once for one matrix product per block.

    Scores of real targets, if the coding is given, get their offset in float64: beside a mean of 1e5, float32 would
    round a spread of 0.3 away. By default they are those of classes.
    """

    def __init__(self, path: LinearPath, targets: Targets | None = None) -> None:
        self._path = path
        self._real = targets is not None and not targets.classes
        self._on = arithmetic()
        self._lay_out(np.dtype(np.float32))

    def _lay_out(self, dtype: np.dtype[Any]) -> None:
        """Lay the path out for products of a precision."""
        coef, center = self._path.coef, self._path.center.astype(dtype)
        # The center rounded to float32 is another center: the offset has to belong to the one that is subtracted.
        offset = (self._path.intercept + center @ coef).ravel().astype(np.float64 if self._real else dtype)
        weights = coef.transpose(1, 0, 2).reshape(coef.shape[1], -1).astype(dtype)
        self._dtype = dtype
        self._weights, self._center, self._offset = (self._on.put(part) for part in (weights, center, offset))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return scores (A, n, t) of features (n, w), in float64 for float64 features or real targets, else float32."""
        dtype = np.result_type(x.dtype, np.float32)
        if dtype != self._dtype:
            self._lay_out(dtype)
        centred = self._on.zeros(x.shape, dtype)
        self._on.fill(centred, x, self._center)
        scores = self._on.product(centred, self._weights)
        if self._real:
            scores = self._on.cast(scores, np.float64)
        scores += self._offset
        penalties, _, targets = self._path.coef.shape
        return self._on.fetch(scores).reshape(len(x), penalties, targets).transpose(1, 0, 2)
