"""The sweep over penalties of one column: one pass over train, one over valid, every penalty's accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.moments import Block, Moments, accumulate
from reservoir.readouts.ridge import DEFAULT_ALPHAS, RidgePath, Scorer, kernel_path, ridge_path
from reservoir.readouts.scoring import Tally, best_penalty
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """What a sweep over penalties found.

    Parameters
    ----------
    path : RidgePath
        The solution of every penalty.
    accuracy : ndarray of float64, (A,)
        Of each penalty on the validation samples (R^2 for regression).
    best : int
        Index of the chosen penalty: the most accurate, of equal ones the largest.
    targets : Targets
        The coding of the labels.
    moments : Moments or None
        Of the training samples; None where the kernel form was used.
    """

    path: RidgePath
    accuracy: np.ndarray
    best: int
    targets: Targets
    moments: Moments | None

    @property
    def alpha(self) -> float:
        """The chosen penalty."""
        return float(self.path.alphas[self.best])

    def readout(self, index: int | None = None) -> LinearReadout:
        """Return the readout of one penalty, the chosen one by default; its temperature is 1 until calibrated."""
        index = self.best if index is None else index
        return LinearReadout(coef=self.path.coef[index], intercept=self.path.intercept[index], targets=self.targets)


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
        The coding of the labels.
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
    if moments is None:
        path, moments = fit_path(train, targets, alphas)
    else:
        path = ridge_path(moments, alphas)
    accuracy = score(path, valid, targets)
    best = best_penalty(path.alphas, accuracy)
    return Sweep(path=path, accuracy=accuracy, best=best, targets=targets, moments=moments)


def fit_path(blocks: Iterable[Block], targets: Targets, alphas: np.ndarray) -> tuple[RidgePath, Moments | None]:
    """Solve every penalty in one pass, in memory of order w^2.

    Samples are kept until there are as many as features. Where there never are, the kernel form solves from them, and
    there are no moments; otherwise they and all further ones go into the moments, for the primal form.

    Parameters
    ----------
    blocks : iterable of (ndarray (m, w), ndarray (m, outputs))
        Features and labels.
    targets : Targets
        The coding of the labels.
    alphas : ndarray, (A,)
        Penalties, positive.
    """
    encoded = ((x, targets.encode(y)) for x, y in blocks)
    head: list[Block] = []
    for block in encoded:
        head.append(block)
        if sum(len(x) for x, _ in head) >= block[0].shape[1]:
            moments = accumulate(itertools.chain(head, encoded))
            return ridge_path(moments, alphas), moments
    if not head:
        raise InputError("readout: there are no training samples; give at least one")
    x, y = (np.concatenate(part) for part in zip(*head, strict=True))
    return kernel_path(x, y, alphas), None


def score(path: RidgePath, blocks: Iterable[Block], targets: Targets) -> np.ndarray:
    """Return the accuracy of every penalty, (A,), over blocks of features (m, w) and labels (m, outputs)."""
    scorer, tally = Scorer(path), Tally(targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally.accuracy()
