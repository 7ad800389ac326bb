"""Accuracy of many readouts at once, block by block: the share of right labels, or R^2 for real targets."""

from __future__ import annotations

import numpy as np

from reservoir.readouts.targets import Targets


class Tally:
    """Running accuracy of A readouts over blocks: the share of right labels, over samples and outputs, or R^2.

    For real targets it is the mean over outputs of

        R^2 = 1 - sum (y - s)^2 / sum (y - mean y)^2

    (a constant output counts 1 where it is met exactly and 0 elsewhere, as in ``sklearn.metrics.r2_score``).
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.samples = 0
        self._hits: np.ndarray | None = None  # (A,) right labels, or (A, outputs) squared residuals
        self._origin = np.zeros(targets.outputs)
        self._sum = np.zeros(targets.outputs)
        self._squares = np.zeros(targets.outputs)

    def update(self, scores: np.ndarray, y: np.ndarray) -> Tally:
        """Count a block: scores (A, m, T) of each readout against labels (m, outputs)."""
        if self.targets.classes:
            hits = (self.targets.predict(scores) == y).sum(axis=(1, 2))
        else:
            values = y.astype(np.float64)
            if not self.samples:
                self._origin = values[0]  # sums of squares about a value of the data's own size lose no digits
            hits = np.square(scores - values).sum(axis=1)
            self._sum += (values - self._origin).sum(axis=0)
            self._squares += np.square(values - self._origin).sum(axis=0)
        self._hits = hits if self._hits is None else self._hits + hits
        self.samples += len(y)
        return self

    def accuracy(self) -> np.ndarray:
        """Return the accuracy of each readout, (A,), over all samples so far; `ValueError` where there are none."""
        if self._hits is None:
            raise ValueError("no samples were counted")
        if self.targets.classes:
            return self._hits / (self.samples * self.targets.outputs)
        total = self._squares - np.square(self._sum) / self.samples
        constant = total <= 0
        ratio = self._hits / np.where(constant, 1.0, total)
        return np.where(constant, np.where(self._hits > 0, 0.0, 1.0), 1.0 - ratio).mean(axis=-1)


def best_penalty(alphas: np.ndarray, accuracies: np.ndarray, errors: np.ndarray | None = None) -> int:
    """Return the index of the highest accuracy; of equal ones, that of the larger penalty.

    With standard errors (A,), of the largest penalty that is within one error of the highest accuracy.
    """
    best = int(np.lexsort((alphas, accuracies))[-1])
    if errors is None:
        return best
    near = accuracies >= accuracies[best] - errors[best]
    return int(np.argmax(np.where(near, alphas, -np.inf)))
