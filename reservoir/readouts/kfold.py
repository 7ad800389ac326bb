"""Selection of a penalty by K-fold cross-validation, without another pass over the features for each fold.

With many samples, the moments of all folds but one are a sum of the folds' moments: K refits cost K small solves, and a
second pass scores each sample by the path that was not fitted on it. With fewer samples than features, the products of
the samples serve all folds. Features are standardised once, over all samples and without the labels, as in the readout
that is chosen. A channel that varies in one fold alone is therefore not scaled up in the other folds, where only its
rounding errors are left.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.gather import RereadableBlocks, head
from reservoir.readouts.kernel import KernelMatrix
from reservoir.readouts.linear import LinearPath, Scorer
from reservoir.readouts.moments import Accumulator, Moments, leave_one_out
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.spectral import SpectralPath, path_of
from reservoir.readouts.sweep import Sweep, Tally
from reservoir.readouts.targets import Targets

FoldBlock = tuple[np.ndarray, ...]
"""Features (m, w), labels (m, outputs), fold numbers, (m,) or (m, repeats), and optional weights (m,) of samples."""

ScoredBlocks = Iterable[tuple[Any, ...]]
"""Blocks of fold, held-out scores (A, m, t) of every penalty, labels (m, outputs) and optional weights of samples.

For many real targets, the sums of squared residuals (A, t) stand in place of the scores.
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
    """Fit a ridge readout for every penalty, and choose one by repeated K-fold cross-validation.

    The accuracy of a penalty is taken over all samples, each scored by the model of the other folds, and averaged over
    the repeats. The returned path is fitted on all samples. The temperature is fitted on the held-out scores of the
    first repeat.

    Parameters
    ----------
    train : iterable of FoldBlock
        The samples; iterated several times. A sample of weight 2 counts as two, in fitting and in accuracy.
    targets : Targets
        Coding of the labels.
    alphas : ndarray, (A,)
        Penalties.
    folds, repeats : int
        Number of folds, and how often the samples are assigned to folds.
    moments : sequence of Moments, optional
        Moments of each fold, repeat after repeat, from an earlier `fold_moments`: one pass less.
    emphasis : ndarray, (w,), optional
        Factors of the standardised features.
    one_standard_error : bool
        Choose the largest penalty whose accuracy is within one standard error (over folds) of the best.

    Raises
    ------
    InputError
        If there are fewer than two folds, or a fold is empty.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    few = None if moments else head(train)[0]
    scored: Sequence[ScoredBlocks]
    if few is not None:
        x, y, fold, *weights = few
        kernel, coded = KernelMatrix.of(x, targets.weights(y, *weights), emphasis), targets.encode(y)
        path = kernel.path(coded, alphas)
        scored = [_score_kernel(kernel, coded, one, alphas, folds, y, *weights) for one in fold.reshape(len(y), -1).T]
    else:
        repeated = [RereadableBlocks(_one_repeat, (train, n)) for n in range(repeats)]
        parts = moments or [part for n in range(repeats) for part in fold_moments(repeated[n], targets, folds)]
        whole = functools.reduce(operator.add, parts[:folds])
        path = path_of(whole, alphas, targets, emphasis=emphasis)
        rests = [leave_one_out(parts[n * folds : (n + 1) * folds]) for n in range(repeats)]
        paths = [[path_of(rest, alphas, targets, whole.std, emphasis) for rest in of_repeat] for of_repeat in rests]
        scored = [RereadableBlocks(_score_blocks, (repeated[n], paths[n], targets)) for n in range(repeats)]
    tally = Tally(targets)
    error = np.mean([_count(blocks, tally, folds) for blocks in scored], axis=0)
    found = Sweep.of(path, tally, error if one_standard_error else None)
    if not targets.classes:
        return found
    chosen = [(scores[found.best], *rest) for _, scores, *rest in scored[0]]
    return replace(found, temperature=targets.fit_temperature(*map(np.concatenate, zip(*chosen, strict=True))))


def _one_repeat(train: Iterable[FoldBlock], number: int) -> Iterator[FoldBlock]:
    """Yield blocks with the fold numbers of one repeat."""
    for x, y, fold, *weights in train:
        yield x, y, fold if fold.ndim == 1 else fold[:, number], *weights


def _score_blocks(
    blocks: RereadableBlocks, paths: Sequence[LinearPath | SpectralPath], targets: Targets
) -> Iterator[tuple[Any, ...]]:
    """Yield blocks of one repeat, each fold scored by the path of the other folds."""
    scorers = [Scorer(path, targets) if isinstance(path, LinearPath) else path for path in paths]
    for k, x, *rest in _by_fold(blocks):
        scorer = scorers[k]
        yield k, scorer(x) if isinstance(scorer, Scorer) else scorer.squares(x, *rest), *rest


def _score_kernel(
    kernel: KernelMatrix, coded: np.ndarray, fold: np.ndarray, alphas: np.ndarray, folds: int, *rest: np.ndarray
) -> ScoredBlocks:
    """Return the held-out scores of each fold of one repeat, from products of samples, and the rest of its samples."""
    _check_folds(np.bincount(fold, minlength=folds))
    scores = kernel.held_out(coded, fold, alphas)
    return [(k, scores[:, fold == k], *(part[fold == k] for part in rest)) for k in range(folds)]


def _count(blocks: ScoredBlocks, total: Tally, folds: int) -> np.ndarray:
    """Add held-out scores to the total, and return the standard error of the accuracy (A,) over folds."""
    tallies = [Tally(total.targets) for _ in range(folds)]
    for k, found, *rest in blocks:
        for tally in (total, tallies[k]):
            (tally.update if found.ndim == 3 else tally.update_squares)(found, *rest)
    spread = np.std([tally.accuracy() for tally in tallies], axis=0, ddof=1)
    return spread / np.sqrt(folds)


def _by_fold(train: Iterable[FoldBlock]) -> Iterator[tuple[Any, ...]]:
    """Yield the samples of each block fold by fold: fold number, features, labels and optional weights."""
    for x, y, fold, *weights in train:
        for k in np.unique(fold).tolist():
            yield k, *(part[fold == k] for part in (x, y, *weights))


def fold_moments(train: Iterable[FoldBlock], targets: Targets, folds: int) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds)."""
    return add_folds([partial_moments(train, targets)], folds)


def partial_moments(train: Iterable[FoldBlock], targets: Targets) -> dict[int, Moments]:
    """Return the moments of each fold that occurs in some of the blocks; `add_folds` adds up those of all blocks."""
    accumulators: dict[int, Accumulator] = {}
    for k, x, y, *weights in _by_fold(train):
        if k not in accumulators:
            accumulators[k] = Accumulator(x.shape[1], targets.columns)
        accumulators[k].update(x, targets.encode(y), targets.weights(y, *weights))
    return {k: accumulator.moments() for k, accumulator in accumulators.items()}


def add_folds(parts: Iterable[Mapping[int, Moments]], folds: int) -> list[Moments]:
    """Return the moments of each fold over all parts of the data, added in order, with one part in memory at a time."""
    sums: dict[int, Moments] = {}
    for part in parts:
        for k, moments in part.items():
            sums[k] = sums[k] + moments if k in sums else moments
    _check_folds(np.array([k in sums for k in range(folds)]))
    return [sums[k] for k in range(folds)]


def _check_folds(counts: np.ndarray) -> None:
    if not counts.all():
        raise InputError(f"cross-validation: fold {np.argmin(counts)} of {len(counts)} is empty; use fewer folds")


def draw_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Return the fold of each row, (rows,) of int64; each ``repeat`` is another assignment of the same rows.

    Fold sizes differ by one row at most; with class labels (rows,), this also holds within each class. Rows of one
    group, given as (rows,) of any values, share a fold: the largest groups are assigned first, each to the fold that
    has the fewest rows of its classes.
    """
    units = rows if groups is None else len(np.unique(groups))
    if not 2 <= folds <= units:
        what = "rows" if groups is None else "groups"
        raise InputError(
            f"cross-validation: {folds} folds of {units} {what}; give at least 2 folds, and {what} for each"
        )
    draw = np.random.default_rng((seed, repeat))
    if groups is not None:
        return _assign_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Rows are assigned in turn, class after class: a fold with one row more of a class gets one less of the next.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def _assign_groups(draw: np.random.Generator, folds: int, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
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
