"""Training data in the form that is cheaper to solve: moments, or the samples where features outnumber them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.linear import LinearPath
from reservoir.readouts.moments import Block, Moments, accumulate
from reservoir.readouts.ridge import ridge_path
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Samples in memory: features (n, w), encoded targets (n, t), and weights (n,) or None if all are 1."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None

    def select(self, features: np.ndarray | slice) -> Samples:
        """Return the same samples with some of the features."""
        return replace(self, x=self.x[:, features])


@dataclass(frozen=True, eq=False)
class RereadableBlocks:
    """A stream of blocks that starts again each time it is iterated: ``make(*arguments)`` returns its iterator."""

    make: Callable[..., Iterator[Any]]
    arguments: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        return self.make(*self.arguments)


Training = Moments | Samples


def gather(blocks: Iterable[Block], targets: Targets) -> Training:
    """Read training data once, in memory of order w^2: as samples if they are fewer than the features, else moments."""
    few, stream = head(blocks)
    if few is None:
        return training_moments(stream, targets)
    x, y = few
    return Samples(x=x, y=targets.encode(y), weights=targets.weights(y))


def head(blocks: Iterable[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...] | None, Iterable[Any]]:
    """Return all blocks concatenated if they have fewer samples than features; else None, and the unread stream."""
    seen: list[tuple[np.ndarray, ...]] = []
    stream = iter(blocks)
    for block in stream:
        seen.append(block)
        if sum(len(x) for x, *_ in seen) >= block[0].shape[1]:
            return None, itertools.chain(seen, stream)
    if not seen:
        raise InputError("readout: there are no training samples; give at least one")
    return tuple(np.concatenate(part) for part in zip(*seen, strict=True)), ()


def training_moments(blocks: Iterable[Block], targets: Targets) -> Moments:
    """Return the moments of blocks of features (m, w) and labels (m, outputs), encoded and weighted."""
    return accumulate((x, targets.encode(y), targets.weights(y)) for x, y in blocks)


def solve(training: Training, alphas: np.ndarray, emphasis: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solution of every penalty, in kernel form if there are fewer samples than features.

    ``emphasis`` (w,) holds factors of the standardised features.
    """
    if isinstance(training, Moments):
        return ridge_path(training, alphas, emphasis=emphasis)
    n, w = training.x.shape
    if n < w:
        return KernelMatrix.of(training.x, training.weights, emphasis).path(training.y, alphas)
    return ridge_path(accumulate([(training.x, training.y, training.weights)]), alphas, emphasis=emphasis)
