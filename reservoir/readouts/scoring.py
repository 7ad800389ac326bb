"""Accuracy of many readouts at once, block by block: the share of right labels, or R^2 for real targets."""

from __future__ import annotations

import numpy as np

from reservoir.readouts.targets import Targets


class Tally:
    """Running accuracy of A readouts over blocks of samples.

    Classes: the share of right labels, over samples and outputs. Regression: the mean over outputs of

        R^2 = 1 - sum (y - s)^2 / sum (y - mean y)^2

    (a constant output counts 1 where it is met exactly and 0 elsewhere, as in ``sklearn.metrics.r2_score``).

    Parameters
    ----------
    targets : Targets
        The coding of the labels.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.samples = 0
        self._hits: np.ndarray | None = None  # (A,) right labels, or (A, outputs) squared residuals
        self._origin = np.zeros(targets.outputs)
        self._sum = np.zeros(targets.outputs)
        self._squares = np.zeros(targets.outputs)

    def update(self, scores: np.ndarray, y: np.ndarray) -> Tally:
        """Count a block.

        Parameters
        ----------
        scores : ndarray, (A, m, T)
            Of each readout.
        y : ndarray, (m, outputs)
            Labels.
        """
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
        """Return the accuracy of each readout, (A,), over all samples counted so far.

        Raises
        ------
        ValueError
            Where nothing was counted.
        """
        if self._hits is None:
            raise ValueError("no samples were counted")
        if self.targets.classes:
            return self._hits / (self.samples * self.targets.outputs)
        total = self._squares - np.square(self._sum) / self.samples
        constant = total <= 0
        ratio = self._hits / np.where(constant, 1.0, total)
        return np.where(constant, np.where(self._hits > 0, 0.0, 1.0), 1.0 - ratio).mean(axis=-1)


def accuracy(targets: Targets, scores: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy of one readout: scores (n, T) against labels (n, outputs); R^2 for regression."""
    return float(Tally(targets).update(scores[None], y).accuracy()[0])


def best_penalty(alphas: np.ndarray, accuracies: np.ndarray) -> int:
    """Return the index of the highest accuracy; of equal ones, that of the larger penalty."""
    return int(np.lexsort((alphas, accuracies))[-1])
