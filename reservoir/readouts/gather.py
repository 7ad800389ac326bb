"""Training data in the form that is cheaper to solve: moments, or the samples where features outnumber them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.moments import Block, Moments, accumulate
from reservoir.readouts.paths import LinearPath
from reservoir.readouts.ridge import kernel_path, ridge_path
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Samples in memory.

    Parameters
    ----------
    x : ndarray, (n, w)
        Features.
    y : ndarray, (n, t)
        Encoded targets.
    weights : ndarray, (n,), optional
        Weights of the samples.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None

    def select(self, features: np.ndarray | slice) -> Samples:
        """Return the same samples with some of the features."""
        return Samples(x=self.x[:, features], y=self.y, weights=self.weights)

    def rows(self, chosen: np.ndarray) -> Samples:
        """Return some of the samples, by a mask (n,)."""
        weights = None if self.weights is None else self.weights[chosen]
        return Samples(x=self.x[chosen], y=self.y[chosen], weights=weights)

    def moments(self) -> Moments:
        """Return the moments of the samples."""
        return accumulate([(self.x, self.y) if self.weights is None else (self.x, self.y, self.weights)])


Training = Moments | Samples


def gather(blocks: Iterable[Block], targets: Targets) -> Training:
    """Read training data once, in memory of order w^2.

    Samples are kept until there are as many as features. Where there never are, they are returned; otherwise they and
    all further ones go into moments.

    Parameters
    ----------
    blocks : iterable of (ndarray (m, w), ndarray (m, outputs))
        Features and labels.
    targets : Targets
        The coding of the labels, and their weights.

    Raises
    ------
    InputError
        Where there are no samples, or a feature is not finite.
    """
    head: list[Block] = []
    stream = iter(blocks)
    for block in stream:
        head.append(block)
        if sum(len(x) for x, _ in head) >= block[0].shape[1]:
            return training_moments(itertools.chain(head, stream), targets)
    if not head:
        raise InputError("readout: there are no training samples; give at least one")
    x, y = (np.concatenate(part) for part in zip(*head, strict=True))
    return Samples(x=x, y=targets.encode(y), weights=targets.weights(y))


def training_moments(blocks: Iterable[Block], targets: Targets) -> Moments:
    """Return the moments of blocks of features (m, w) and labels (m, outputs), encoded and weighted."""
    if targets.class_weights is None:
        return accumulate((x, targets.encode(y)) for x, y in blocks)
    return accumulate((x, targets.encode(y), np.asarray(targets.weights(y))) for x, y in blocks)


def solve(training: Training, alphas: np.ndarray) -> LinearPath:
    """Return the ridge solution of every penalty, in kernel form for fewer samples than features."""
    if isinstance(training, Moments):
        return ridge_path(training, alphas)
    n, w = training.x.shape
    if n < w:
        return kernel_path(training.x, training.y, alphas, training.weights)
    return ridge_path(training.moments(), alphas)
