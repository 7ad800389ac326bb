"""The linear models of all penalties, and the scores that they give to blocks of features."""

from collections.abc import Iterable

import numpy as np

from reservoir.readouts.linear import Block, LinearReadout, Tally, Targets
from reservoir.readouts.products import arithmetic


class LinearPath:
    """The linear models of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    They are made from weights (A, w, t) of standardised features (x - mean) * scale, and their offset
    (A, t) or (t,). ``coef`` (A, w, t) is exactly 0 for constant channels, ``intercept`` (A, t) holds
    the scores of x = 0, and ``converged`` (A,) says whether an iterative solver reached its
    tolerance.
    """

    def __init__(
        self,
        alphas: np.ndarray,
        weights: np.ndarray,
        offset: np.ndarray,
        mean: np.ndarray,
        scale: np.ndarray,
        converged: np.ndarray | None = None,
    ) -> None:
        # ((x - mean) * scale) weights + offset  =  x coef + intercept
        self.alphas = np.asarray(alphas, np.float64)
        self.coef = weights * scale[:, None]
        self.intercept = offset - mean @ self.coef
        self.center = mean
        self.converged = np.ones(len(alphas), bool) if converged is None else converged

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return LinearReadout(
            coef=self.coef[index], intercept=self.intercept[index], targets=targets, temperature=temperature
        )


class Scorer:
    """Scores blocks of features under every penalty of a path, or those ``chosen``, with one product per block."""

    def __init__(self, path: LinearPath, targets: Targets | None = None) -> None:
        self._path = path
        # For real targets the offset is added in float64: float32 next to a mean of 1e5 would lose a
        # spread of 0.3.
        self._has_real_targets = targets is not None and not targets.classes
        self._arithmetic = arithmetic()
        self._dtype = np.dtype(
            np.void
        )  # the precision of the last block, for which the weights are on the device

    def __call__(self, x: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
        """Return scores (A, n, t) of features (n, w), in float64 for float64 features or real targets, else float32."""
        dtype = np.result_type(x.dtype, np.float32)
        if dtype != self._dtype:
            self._prepare(dtype)
        offset = self._offset[chosen]
        weights = self._weights[:, chosen].reshape(len(self._path.center), -1)
        put, fetch = self._arithmetic.put, self._arithmetic.fetch
        # Features are centred first, which keeps the digits of a channel at 3000 +- 0.5.
        centred = put(x) - self._center
        scores = fetch(self._arithmetic.product(centred, weights)).astype(offset.dtype, copy=False)
        scores += offset.ravel()
        return scores.reshape(len(x), *offset.shape).transpose(1, 0, 2)

    def _prepare(self, dtype: np.dtype) -> None:
        """Round the weights of all penalties to a precision, and move them to the device."""
        path = self._path
        center = path.center.astype(dtype)
        # The offset must be computed with the rounded center, which is the one that is subtracted.
        offset = path.intercept + center @ path.coef
        self._offset = offset.astype(np.float64 if self._has_real_targets else dtype)
        # (w, A, t), so that one product of a block gives the scores of all penalties.
        self._weights = self._arithmetic.put(path.coef.transpose(1, 0, 2).astype(dtype, copy=False))
        self._center = self._arithmetic.put(center)
        self._dtype = dtype


def score_path(path: LinearPath, blocks: Iterable[Block], targets: Targets) -> Tally:
    """Return the tally of every penalty over blocks of features (m, w) and labels (m, outputs)."""
    scorer, tally = Scorer(path, targets), Tally(targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally
