"""The sweep over penalties of one column: one pass over train, one over valid, and the accuracy of every penalty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reservoir.readouts.gather import gather, solve
from reservoir.readouts.linear import LinearPath, LinearReadout, Scorer
from reservoir.readouts.moments import Block, Moments
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.spectral import SpectralPath, path_of
from reservoir.readouts.targets import Targets


class Tally:
    """Running accuracy of A readouts over blocks: the share of correct labels over samples and outputs, or R^2.

    If the targets have class weights, samples count by them: with balanced weights the accuracy is the mean recall of
    the classes, up to the rounding of their shares.

    For real targets it is the mean over outputs of

        R^2 = 1 - sum (y - s)^2 / sum (y - mean y)^2

    where a constant output scores 1 if it is predicted exactly, else 0, as in ``sklearn.metrics.r2_score``. The loss
    ranks equally accurate readouts: the mean squared distance between the scores and the coding of the labels.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.samples = 0.0
        self._hits: np.ndarray | None = None  # (A,) correct labels, or (A, outputs) squared residuals
        self._distances: np.ndarray | float = 0.0  # (A,) squared distances of scores from the coding
        self._origin = np.zeros(targets.outputs)
        self._sum = np.zeros(targets.outputs)
        self._squares = np.zeros(targets.outputs)

    def update(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Tally:
        """Count a block: scores (A, m, T) of each readout against labels (m, outputs), weighted (m,) or once each."""
        weights = self.targets.weights(y, weights)
        counted = np.ones(len(y)) if weights is None else weights
        if not self.targets.classes:
            return self.update_squares(counted @ np.square(scores - y.astype(np.float64)), y, weights)
        hits = (self.targets.predict(scores) == y).sum(axis=2) @ counted
        distances = np.square(scores - self.targets.encode(y)).sum(axis=2, dtype=np.float64)
        self._distances = self._distances + distances @ counted
        self._hits = hits if self._hits is None else self._hits + hits
        self.samples += float(counted.sum())
        return self

    def update_squares(self, squares: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Tally:
        """Count a block of real targets by its weighted sums of squared residuals (A, outputs)."""
        counted, values = np.ones(len(y)) if weights is None else weights, y.astype(np.float64)
        if not self.samples:
            self._origin = values[0]  # subtracted first, so that the sums of squares keep their digits
        self._sum += counted @ (values - self._origin)
        self._squares += counted @ np.square(values - self._origin)
        self._hits = squares if self._hits is None else self._hits + squares
        self.samples += float(counted.sum())
        return self

    def accuracy(self) -> np.ndarray:
        """Return the accuracy of each readout, (A,), over all samples so far; raise `ValueError` if there are none."""
        if self.targets.classes and self._hits is not None:
            return self._hits / (self.samples * self.targets.outputs)
        return self.by_target().mean(axis=-1)

    def by_target(self) -> np.ndarray:
        """Return R^2 of each readout and real target, (A, outputs); raise `ValueError` if there are no samples."""
        if self._hits is None:
            raise ValueError("no samples were counted")
        total = self._squares - np.square(self._sum) / self.samples
        constant = total <= 0
        ratio = self._hits / np.where(constant, 1.0, total)
        return np.where(constant, np.where(self._hits > 0, 0.0, 1.0), 1.0 - ratio)

    def loss(self) -> np.ndarray:
        """Return the mean loss of each readout, (A,), over all samples so far; for real targets it is 1 - R^2."""
        return (
            np.asarray(self._distances) / (self.samples * self.targets.outputs)
            if self.targets.classes
            else 1 - self.accuracy()
        )


def best_penalty(
    alphas: np.ndarray, accuracies: np.ndarray, losses: np.ndarray, errors: np.ndarray | None = None
) -> int:
    """Return the index of the most accurate penalty; ties go to the smaller loss, then to the larger penalty.

    On few rows, many penalties predict equally many labels correctly, and the largest of them is often far too large:
    therefore the loss comes first. With standard errors (A,), return the largest penalty whose accuracy is within one
    standard error of the highest.
    """
    best = int(np.lexsort((alphas, -losses, accuracies))[-1])
    if errors is None:
        return best
    near = accuracies >= accuracies[best] - errors[best]
    return int(np.argmax(np.where(near, alphas, -np.inf)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Result of a sweep over penalties.

    ``path`` holds the model of every penalty, fitted on all training samples; ``accuracy`` (A,) is the accuracy on
    held-out samples (R^2 for regression), ``loss`` (A,) their `Tally.loss`, and ``best`` the index of the chosen
    penalty. ``temperature`` belongs to the probabilities of the chosen readout, if held-out scores were available to
    fit it. ``by_target`` (A, outputs) is the R^2 of each real target.
    """

    path: LinearPath | SpectralPath
    accuracy: np.ndarray
    loss: np.ndarray
    best: int
    targets: Targets
    temperature: float = 1.0
    by_target: np.ndarray | None = None

    @classmethod
    def of(cls, path: LinearPath | SpectralPath, tally: Tally, errors: np.ndarray | None = None) -> Sweep:
        """Return the sweep with the best model of a path, by its tally, or within one standard error (A,)."""
        accuracy, loss = tally.accuracy(), tally.loss()
        return cls(
            path=path,
            accuracy=accuracy,
            loss=loss,
            best=best_penalty(path.alphas, accuracy, loss, errors),
            targets=tally.targets,
            by_target=None if tally.targets.classes else tally.by_target(),
        )

    @property
    def alpha(self) -> float:
        """The chosen penalty."""
        return float(self.path.alphas[self.best])

    def readout(self) -> LinearReadout:
        """Return the readout of the chosen penalty."""
        return self.path.readout(self.best, self.targets, self.temperature)

    def best_by_target(self) -> np.ndarray:
        """Return the index of the best penalty of each real target, (outputs,); ties go to the larger penalty."""
        assert self.by_target is not None, "labels of classes share one penalty"
        order = np.argsort(-self.path.alphas, kind="stable")
        return order[self.by_target[order].argmax(axis=0)]


def sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    moments: Moments | None = None,
    emphasis: np.ndarray | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by validation; each of train and valid is iterated once.

    Blocks are features (m, w) and labels (m, outputs), as `samples` returns them. With ``moments`` of the training
    samples and their encoded targets, train is not read. ``emphasis`` (w,) holds factors of the standardised features.
    """
    training = gather(train, targets) if moments is None else moments
    if isinstance(training, Moments):
        path = path_of(training, alphas, targets, emphasis=emphasis)
    else:
        path = solve(training, alphas, emphasis)
    return Sweep.of(path, score(path, valid, targets))


def score(path: LinearPath | SpectralPath, blocks: Iterable[Block], targets: Targets) -> Tally:
    """Return the tally of every penalty over blocks of features (m, w) and labels (m, outputs)."""
    tally = Tally(targets)
    if isinstance(path, SpectralPath):
        for x, y in blocks:
            tally.update_squares(path.squares(x, y), y)
        return tally
    scorer = Scorer(path, targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally
