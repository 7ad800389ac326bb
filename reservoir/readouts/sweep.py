"""The sweep over penalties of one column: one pass over train, one over valid, every penalty's accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reservoir.readouts.gather import gather, solve
from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.moments import Block, Moments
from reservoir.readouts.paths import LinearPath, Scorer
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.scoring import Tally, best_penalty
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """What a sweep over penalties found.

    Parameters
    ----------
    path : LinearPath
        The model of every penalty, fitted on all training samples.
    accuracy : ndarray of float64, (A,)
        Of each penalty on held-out samples (R^2 for regression).
    best : int
        Index of the chosen penalty: the most accurate, of equal ones the largest.
    targets : Targets
        The coding of the labels.
    moments : Moments, optional
        Of the training samples; None where the solution came from the samples themselves.
    temperature : float, default 1
        Of the chosen readout's probabilities, where held-out scores were at hand to fit it.
    """

    path: LinearPath
    accuracy: np.ndarray
    best: int
    targets: Targets
    moments: Moments | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, path: LinearPath, accuracy: np.ndarray, targets: Targets, moments: Moments | None = None) -> Sweep:
        """Return the sweep that chooses among the models of a path by their accuracies, (A,)."""
        best = best_penalty(path.alphas, accuracy)
        return cls(path=path, accuracy=accuracy, best=best, targets=targets, moments=moments)

    @property
    def alpha(self) -> float:
        """The chosen penalty."""
        return float(self.path.alphas[self.best])

    def readout(self) -> LinearReadout:
        """Return the readout of the chosen penalty."""
        return self.path.readout(self.best, self.targets, self.temperature)


def sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    moments: Moments | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by validation.

    Parameters
    ----------
    train, valid : iterable of (ndarray (m, w), ndarray (m, outputs))
        Blocks of features and labels, as `samples` lays them out; each is iterated once. ``train`` is not read where
        moments are given.
    targets : Targets
        The coding of the labels, and their weights.
    alphas : ndarray, (A,), default 25 values from 1e-2 to 1e6
        Penalties, positive.
    moments : Moments, optional
        Of the training samples with encoded targets, from an earlier pass.

    Returns
    -------
    Sweep

    Raises
    ------
    InputError
        Where there are no samples, a penalty is not positive, or a feature not finite.
    """
    training = gather(train, targets) if moments is None else moments
    path = solve(training, alphas)
    stored = training if isinstance(training, Moments) else None
    return Sweep.of(path, score(path, valid, targets), targets, moments=stored)


def score(path: LinearPath, blocks: Iterable[Block], targets: Targets) -> np.ndarray:
    """Return the accuracy of every penalty, (A,), over blocks of features (m, w) and labels (m, outputs)."""
    scorer, tally = Scorer(path, targets), Tally(targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally.accuracy()
