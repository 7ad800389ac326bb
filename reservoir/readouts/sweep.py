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

    ``path`` holds the model of every penalty, fitted on all training samples; ``accuracy`` (A,) that on held-out ones
    (R^2 for regression); ``best`` the index of the chosen one. ``moments`` are those of the training samples,
    None where the solution came from the samples themselves; ``temperature`` is that of the chosen readout's
    probabilities, where held-out scores were at hand to fit it.
    """

    path: LinearPath
    accuracy: np.ndarray
    best: int
    targets: Targets
    moments: Moments | None = None
    temperature: float = 1.0

    @classmethod
    def of(
        cls,
        path: LinearPath,
        accuracy: np.ndarray,
        targets: Targets,
        moments: Moments | None = None,
        errors: np.ndarray | None = None,
    ) -> Sweep:
        """Return the sweep that chooses among a path's models by accuracies (A,), or by one standard error (A,)."""
        best = best_penalty(path.alphas, accuracy, errors)
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
    """Fit a ridge readout for every penalty and choose one by validation; each of train and valid is iterated once.

    Blocks are features (m, w) and labels (m, outputs), as `samples` lays them out. Moments of the training samples with
    encoded targets, from an earlier pass, stand for train, which then is not read.
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
