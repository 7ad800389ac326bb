"""Selection by K-fold cross-validation, without another pass over the features for each fold.

Of many samples the moments of all folds but one are a sum, so K refits on all data but a fold cost K small solves; a
second pass scores each sample by the path that has not seen it. Of fewer samples than features their products serve all
folds. Features are standardised by all samples, once, as in the readout that is chosen: labels have no part in that. A
channel that varies in one fold alone so stays small in the others, where their rounding is all that is left of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.gather import Again, head
from reservoir.readouts.kernel import Kernel
from reservoir.readouts.linear import LinearPath, Scorer
from reservoir.readouts.moments import Accumulator, Moments, leave_one_out
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.spectral import SpectralPath, path_of
from reservoir.readouts.sweep import Sweep, Tally
from reservoir.readouts.targets import Targets

FoldBlock = tuple[np.ndarray, ...]
"""Features (m, w), labels (m, outputs), fold numbers, (m,) or (m, repeats), and perhaps weights (m,), of samples."""

HeldOut = Iterable[tuple[Any, ...]]
"""Fold, scores (A, m, t) of every penalty by the other folds, labels (m, outputs) and perhaps weights of samples.

Of many real targets their sums of squared residuals (A, t) stand for the scores.
"""


def cross_sweep(
    train: Iterable[FoldBlock],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    folds: int = 5,
    repeats: int = 1,
    moments: Sequence[Moments] | None = None,
    emphasis: np.ndarray | None = None,
    one_standard_error: bool = False,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by K-fold cross-validation, repeated over several deals.

    The accuracy of a penalty is over all samples, each scored by the model of the other folds, averaged over the deals;
    the path that is returned is fitted on all of them. The temperature comes from held-out scores of the first deal.
    ``train`` is iterated several times. Moments of each fold, deal after deal, from an earlier `fold_moments` save some
    of them. By the rule of one standard error, that of the mean over folds, the largest penalty is chosen that is no
    worse than the best by more. A sample of weight 2 counts as two, in fitting and in accuracy. Standardised features
    are multiplied by ``emphasis`` (w,), if it is given.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    few = None if moments else head(train)[0]
    deals: Sequence[HeldOut]
    if few is not None:
        x, y, fold, *weights = few
        kernel, coded = Kernel.of(x, targets.weights(y, *weights), emphasis), targets.encode(y)
        path = kernel.path(coded, alphas)
        deals = [_held_out(kernel, coded, deal, alphas, folds, y, *weights) for deal in fold.reshape(len(y), -1).T]
    else:
        dealt = [Again(_deal, (train, n)) for n in range(repeats)]
        parts = moments or [part for n in range(repeats) for part in fold_moments(dealt[n], targets, folds)]
        whole = functools.reduce(operator.add, parts[:folds])
        path = path_of(whole, alphas, targets, emphasis=emphasis)
        rests = [leave_one_out(parts[n * folds : (n + 1) * folds]) for n in range(repeats)]
        paths = [[path_of(rest, alphas, targets, whole.std, emphasis) for rest in deal] for deal in rests]
        deals = [Again(_scored, (dealt[n], paths[n], targets)) for n in range(repeats)]
    together = Tally(targets)
    error = np.mean([_count(deal, together, folds) for deal in deals], axis=0)
    found = Sweep.of(path, together, error if one_standard_error else None)
    if not targets.classes:
        return found
    chosen = [(scores[found.best], *rest) for _, scores, *rest in deals[0]]
    return replace(found, temperature=targets.fit_temperature(*map(np.concatenate, zip(*chosen, strict=True))))


def _deal(train: Iterable[FoldBlock], number: int) -> Iterator[FoldBlock]:
    """Yield blocks with the fold numbers of one deal."""
    for x, y, fold, *weights in train:
        yield x, y, fold if fold.ndim == 1 else fold[:, number], *weights


def _scored(deal: Again, paths: Sequence[LinearPath | SpectralPath], targets: Targets) -> Iterator[tuple[Any, ...]]:
    """Yield blocks of one deal scored by the paths of the other folds."""
    scorers = [Scorer(path, targets) if isinstance(path, LinearPath) else path for path in paths]
    for k, x, *rest in _by_fold(deal):
        by = scorers[k]
        yield k, by(x) if isinstance(by, Scorer) else by.squares(x, *rest), *rest


def _held_out(
    kernel: Kernel, coded: np.ndarray, fold: np.ndarray, alphas: np.ndarray, folds: int, *rest: np.ndarray
) -> HeldOut:
    """Return what each fold of a deal scores by the others, from products of samples, and the rest of its samples."""
    _check_folds(np.bincount(fold, minlength=folds))
    scores = kernel.held_out(coded, fold, alphas)
    return [(k, scores[:, fold == k], *(part[fold == k] for part in rest)) for k in range(folds)]


def _count(deal: HeldOut, together: Tally, folds: int) -> np.ndarray:
    """Count the held-out scores of all samples, and return the standard error of the accuracy (A,) over folds."""
    apart = [Tally(together.targets) for _ in range(folds)]
    for k, found, *rest in deal:
        for tally in (together, apart[k]):
            (tally.update if found.ndim == 3 else tally.update_squares)(found, *rest)
    spread = np.std([tally.accuracy() for tally in apart], axis=0, ddof=1)
    return spread / np.sqrt(folds)


def _by_fold(train: Iterable[FoldBlock]) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of each block by their fold: its number, features, labels and perhaps weights."""
    for x, y, fold, *weights in train:
        for k in np.unique(fold).tolist():
            yield k, *(part[fold == k] for part in (x, y, *weights))


def fold_moments(train: Iterable[FoldBlock], targets: Targets, folds: int) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds)."""
    return add_folds([partial_moments(train, targets)], folds)


def partial_moments(train: Iterable[FoldBlock], targets: Targets) -> dict[int, Moments]:
    """Return the moments of every fold that occurs in some blocks: `add_folds` sums those of all parts of the data."""
    accumulators: dict[int, Accumulator] = {}
    for k, x, y, *weights in _by_fold(train):
        if k not in accumulators:
            accumulators[k] = Accumulator(x.shape[1], targets.columns)
        accumulators[k].update(x, targets.encode(y), targets.weights(y, *weights))
    return {k: accumulator.moments() for k, accumulator in accumulators.items()}


def add_folds(parts: Iterable[Mapping[int, Moments]], folds: int) -> list[Moments]:
    """Return the moments of each fold over all parts of the data, added in their order, one held at a time."""
    sums: dict[int, Moments] = {}
    for part in parts:
        for k, moments in part.items():
            sums[k] = sums[k] + moments if k in sums else moments
    _check_folds(np.array([k in sums for k in range(folds)]))
    return [sums[k] for k in range(folds)]


def _check_folds(counts: np.ndarray) -> None:
    if not counts.all():
        raise InputError(f"cross-validation: fold {np.argmin(counts)} of {len(counts)} is empty; use fewer folds")


def deal_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Return the fold of each row, (rows,) of int64; every ``repeat`` is another deal of the same rows.

    Folds differ by one row at most; with class labels (rows,), also within each class. Rows of one group, (rows,) of
    any values, share a fold: the largest groups are dealt first, each to the fold that has fewest of its classes.
    """
    units = rows if groups is None else len(np.unique(groups))
    if not 2 <= folds <= units:
        what = "rows" if groups is None else "groups"
        raise InputError(
            f"cross-validation: {folds} folds of {units} {what}; give at least 2 folds, and {what} for each"
        )
    draw = np.random.default_rng((seed, repeat))
    if groups is not None:
        return _deal_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Dealt in turns, class after class: whoever gets one row more of a class gets one less of the next.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def _deal_groups(draw: np.random.Generator, folds: int, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return folds that keep groups whole, with as even a share of every class as the groups allow."""
    _, number = np.unique(groups, return_inverse=True)
    classes, code = np.unique(labels, return_inverse=True)
    counts = np.zeros((number.max() + 1, len(classes)))
    np.add.at(counts, (number, code), 1)
    shares = counts / counts.sum(axis=0)
    order = draw.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    held, chosen = np.zeros((folds, len(classes))), np.empty(len(counts), np.int64)
    for group in order:
        # The sum of squared shares of all folds grows least where the group meets fewest of its own classes.
        clash = held @ shares[group]
        best = np.flatnonzero(clash <= clash.min() * (1 + 1e-9))
        chosen[group] = best[np.argmin(held[best].sum(axis=1))]
        held[chosen[group]] += counts[group]
    return chosen[number]
