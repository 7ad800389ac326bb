"""Selection by K-fold cross-validation from fold moments: every fold's path for the price of one pass.

The moments of all folds but one are a sum, so K refits on all data but a fold cost K small solves, not K passes. A
second pass scores each sample by the path that has not seen it. Memory is of order K w^2.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.gather import Samples, Training, head, solve
from reservoir.readouts.moments import Accumulator, Moments, leave_one_out
from reservoir.readouts.paths import LinearPath, Scorer
from reservoir.readouts.ridge import DEFAULT_ALPHAS, ridge_path
from reservoir.readouts.scoring import Tally
from reservoir.readouts.sweep import Sweep
from reservoir.readouts.targets import Targets

FoldBlock = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features (m, w), labels (m, outputs) and fold numbers, (m,) or (m, repeats), of some samples."""


def cross_sweep(
    train: Iterable[FoldBlock],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    folds: int = 5,
    repeats: int = 1,
    moments: Sequence[Moments] | None = None,
    one_standard_error: bool = False,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by K-fold cross-validation, repeated over several deals.

    The accuracy of a penalty is over all samples, each scored by the model of the other folds, averaged over the deals;
    the path that is returned is fitted on all of them. The temperature comes from held-out scores of the first deal.
    ``train`` is iterated three times, and twice more for each further deal. Moments of each fold, deal after deal, from
    an earlier `fold_moments` save the first pass. By the rule of one standard error, that of the mean over folds, the
    largest penalty is chosen that is no worse than the best by more.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    deals = [_Deal(train, number) for number in range(repeats)]
    stored = [moments and moments[number * folds : (number + 1) * folds] for number in range(repeats)]
    whole, paths = _paths(deals[0], targets, alphas, folds, stored[0])
    scores = [_score(deals[0], targets, paths)]
    for deal, part in zip(deals[1:], stored[1:], strict=True):
        scores.append(_score(deal, targets, _paths(deal, targets, alphas, folds, part)[1]))
    accuracy, error = np.mean(scores, axis=0)
    kept = whole if isinstance(whole, Moments) else None
    found = Sweep.of(solve(whole, alphas), accuracy, targets, kept, error if one_standard_error else None)
    return replace(found, temperature=_temperature(deals[0], targets, paths, found.best))


@dataclass(frozen=True, eq=False)
class _Deal:
    """Blocks with the fold numbers of one deal, as often as they are iterated."""

    train: Iterable[FoldBlock]
    number: int

    def __iter__(self) -> Iterator[FoldBlock]:
        for x, y, fold in self.train:
            yield x, y, fold if fold.ndim == 1 else fold[:, self.number]


def _paths(
    train: _Deal, targets: Targets, alphas: np.ndarray, folds: int, moments: Sequence[Moments] | None
) -> tuple[Training, list[LinearPath]]:
    """Return all training data, and the path fitted on all folds but each: from samples where they are few."""
    few, stream = (None, train) if moments else head(train)
    if few is None:
        moments = moments or fold_moments(stream, targets, folds)
        rests, whole = leave_one_out(moments), functools.reduce(operator.add, moments)
        return whole, [ridge_path(rest, alphas) for rest in rests]
    x, y, fold = few
    _check_folds(np.bincount(fold, minlength=folds))
    samples = Samples(x=x, y=targets.encode(y), weights=targets.weights(y))
    return samples, [solve(samples.rows(fold != k), alphas) for k in range(folds)]


def _score(train: _Deal, targets: Targets, paths: list[LinearPath]) -> tuple[np.ndarray, np.ndarray]:
    """Return the held-out accuracy (A,) of every penalty over all samples, and its standard error over folds."""
    scorers = [Scorer(path, targets) for path in paths]
    together, apart = Tally(targets), [Tally(targets) for _ in paths]
    for x, y, fold in train:
        for k in np.unique(fold):
            scores, labels = scorers[k](x[fold == k]), y[fold == k]
            together.update(scores, labels)
            apart[k].update(scores, labels)
    spread = np.std([tally.accuracy() for tally in apart], axis=0, ddof=1)
    return together.accuracy(), spread / np.sqrt(len(paths))


def fold_moments(train: Iterable[FoldBlock], targets: Targets, folds: int) -> list[Moments]:
    """Return the moments of each fold, from blocks of features, labels and fold numbers in [0, folds)."""
    return add_folds([partial_moments(train, targets)], folds)


def partial_moments(train: Iterable[FoldBlock], targets: Targets) -> dict[int, Moments]:
    """Return the moments of every fold that occurs in some blocks: `add_folds` sums those of all parts of the data."""
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
    """Return the moments of each fold over all parts of the data, added in their order, one held at a time."""
    sums: dict[int, Moments] = {}
    for part in parts:
        for k, moments in part.items():
            sums[k] = sums[k] + moments if k in sums else moments
    _check_folds(np.array([k in sums for k in range(folds)]))
    return [sums[k] for k in range(folds)]


def _check_folds(counts: np.ndarray) -> None:
    """Raise `InputError` naming the first fold without samples."""
    if not counts.all():
        raise InputError(f"cross-validation: fold {np.argmin(counts)} of {len(counts)} is empty; use fewer folds")


def _temperature(train: _Deal, targets: Targets, paths: list[LinearPath], best: int) -> float:
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
