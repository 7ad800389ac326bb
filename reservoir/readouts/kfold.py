"""Selection by K-fold cross-validation from fold moments: every fold's path for the price of one pass.

The moments of all folds but one are a sum, so K refits on all data but a fold cost K small solves, not K passes. A
second pass scores each sample by the path that has not seen it. Memory is of order K w^2.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.gather import Samples, Training, solve
from reservoir.readouts.moments import Accumulator, Moments, leave_one_out
from reservoir.readouts.paths import LinearPath, Scorer
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.scoring import Tally
from reservoir.readouts.sweep import Sweep
from reservoir.readouts.targets import Targets

FoldBlock = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features (m, w), labels (m, outputs) and fold numbers (m,) of some samples."""


def cross_sweep(
    train: Iterable[FoldBlock],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    folds: int = 5,
    moments: Sequence[Moments] | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by K-fold cross-validation.

    The accuracy of a penalty is over all samples, each scored by the model of the other folds; the path that is
    returned is fitted on all of them. The temperature comes from the same held-out scores.

    Parameters
    ----------
    train : re-iterable of (ndarray (m, w), ndarray (m, outputs), ndarray of int (m,))
        Blocks of features, labels and fold numbers in [0, folds); iterated three times.
    targets : Targets
        The coding of the labels, and their weights.
    alphas : ndarray, (A,), default 25 values from 1e-2 to 1e6
        Penalties, positive.
    folds : int, default 5
        Number of folds, at least 2.
    moments : sequence of Moments, optional
        Of each fold, from an earlier `fold_moments`: saves the first pass.

    Returns
    -------
    Sweep

    Raises
    ------
    InputError
        Where a fold is empty, a penalty is not positive, or a feature not finite.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    whole, rests = _join(list(moments)) if moments is not None else _gather(train, targets, folds)
    paths = [solve(rest, alphas) for rest in rests]
    scorers, tally = [Scorer(path, targets) for path in paths], Tally(targets)
    for x, y, fold in train:
        for k in np.unique(fold):
            tally.update(scorers[k](x[fold == k]), y[fold == k])
    stored = whole if isinstance(whole, Moments) else None
    found = Sweep.of(solve(whole, alphas), tally.accuracy(), targets, stored)
    return replace(found, temperature=_temperature(train, targets, paths, found.best))


def fold_moments(train: Iterable[FoldBlock], targets: Targets, folds: int) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds).

    Raises
    ------
    InputError
        Where a fold is empty, or a feature not finite.
    """
    return add_folds([partial_moments(train, targets)], folds)


def partial_moments(train: Iterable[FoldBlock], targets: Targets) -> dict[int, Moments]:
    """Return the moments of every fold that occurs in some blocks: `add_folds` sums those of all parts of the data.

    Raises
    ------
    InputError
        Where a feature is not finite.
    """
    accumulators: dict[int, Accumulator] = {}
    for x, y, fold in train:
        coded, weights = targets.encode(y), targets.weights(y)
        for k in np.unique(fold).tolist():
            if k not in accumulators:
                accumulators[k] = Accumulator(x.shape[1], targets.columns)
            chosen = fold == k
            accumulators[k].update(x[chosen], coded[chosen], None if weights is None else weights[chosen])
    return {k: accumulator.moments() for k, accumulator in accumulators.items()}


def add_folds(parts: Iterable[Mapping[int, Moments]], folds: int) -> list[Moments]:
    """Return the moments of each fold over all parts of the data, added in the order of the parts, one held at a time.

    Raises
    ------
    InputError
        Where a fold is empty.
    """
    sums: dict[int, Moments] = {}
    for part in parts:
        for k, moments in part.items():
            sums[k] = sums[k] + moments if k in sums else moments
    _check_folds(np.array([k in sums for k in range(folds)]))
    return [sums[k] for k in range(folds)]


def _gather(train: Iterable[FoldBlock], targets: Targets, folds: int) -> tuple[Training, Iterable[Training]]:
    """Return all training data and, for each fold, that of the others: samples where they are few, else moments."""
    head: list[FoldBlock] = []
    stream = iter(train)
    for block in stream:
        head.append(block)
        if sum(len(x) for x, *_ in head) >= block[0].shape[1]:
            return _join(fold_moments(itertools.chain(head, stream), targets, folds))
    if not head:
        raise InputError("readout: there are no training samples; give at least one")
    x, y, fold = (np.concatenate(part) for part in zip(*head, strict=True))
    _check_folds(np.bincount(fold, minlength=folds))
    whole = Samples(x=x, y=targets.encode(y), weights=targets.weights(y))
    return whole, (whole.rows(fold != k) for k in range(folds))


def _join(moments: list[Moments]) -> tuple[Training, Iterable[Training]]:
    """Return the moments of all folds, and for each fold those of the others."""
    return functools.reduce(operator.add, moments), leave_one_out(moments)


def _check_folds(counts: np.ndarray) -> None:
    """Raise `InputError` naming the first fold without samples."""
    if not counts.all():
        raise InputError(f"cross-validation: fold {np.argmin(counts)} of {len(counts)} is empty; use fewer folds")


def _temperature(train: Iterable[FoldBlock], targets: Targets, paths: list[LinearPath], best: int) -> float:
    """Return the temperature that suits the scores of every sample under the chosen penalty, held out."""
    if not targets.classes:
        return 1.0
    readouts = [path.readout(best, targets) for path in paths]
    scores, labels = [], []
    for x, y, fold in train:
        for k in np.unique(fold):
            scores.append(readouts[k].scores(x[fold == k]))
            labels.append(y[fold == k])
    return targets.fit_temperature(np.concatenate(scores), np.concatenate(labels))
