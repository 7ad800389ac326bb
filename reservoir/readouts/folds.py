"""Selection by cross-validation, without another pass over the features for each fold.

With many samples, the moments of all folds but one are a sum of the folds' moments: K refits cost K small solves, and a
second pass scores each sample by the path that was not fitted on it. With fewer samples than features, the products of
the samples serve all folds. Features are standardised once, over all samples and without the labels, as in the readout
that is chosen. A channel that varies in one fold alone is therefore not scaled up in the other folds, where only its
rounding errors are left.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax

from reservoir.errors import InputError
from reservoir.readouts.linear import LinearPath, Scorer
from reservoir.readouts.moments import Moments, by_fold, check_folds, fold_moments
from reservoir.readouts.ridge import DEFAULT_ALPHAS, KernelMatrix, held_out_scores, ridge_path
from reservoir.readouts.sweep import DeferredPath, Sweep, Tally, head
from reservoir.readouts.targets import Block, FoldBlock, RereadableBlocks, Targets

SCORING_ALPHAS = np.logspace(-2, 6, 13)


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
    known: KernelMatrix | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty, and choose one by repeated K-fold cross-validation.

    The accuracy of a penalty is taken over all samples, each scored by the model of the other folds, and averaged over
    the repeats. The returned path is fitted on all samples. The temperature is fitted on the held-out scores of the
    first repeat. `InputError` says that there are fewer than two folds, or that a fold is empty.

    ``train`` is iterated several times; a sample of weight 2 counts as two, in fitting and in accuracy. ``moments`` of
    each fold, repeat after repeat, from an earlier `fold_moments`, save a pass. ``emphasis`` (w,) holds factors of the
    standardised features, and ``known`` is the matrix of the first features of the same samples, see `KernelMatrix`.
    With ``one_standard_error`` the largest penalty whose accuracy is within one standard error (over folds) of the best
    is chosen.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    few, kernel = None if moments else head(train)[0], None
    # Blocks of fold, held-out scores (A, m, t) of every penalty, labels (m, outputs) and optional weights, by repeat.
    scored: Sequence[Iterable[tuple[Any, ...]]]
    if few is not None:
        x, y, fold, *weights = few
        kernel, coded = KernelMatrix(x, targets.weights(y, *weights), emphasis, known), targets.encode(y)
        path = DeferredPath(alphas, functools.partial(kernel.path, coded))
        scored = [_score_kernel(kernel, coded, one, alphas, folds, y, *weights) for one in fold.reshape(len(y), -1).T]
    else:
        parts = moments or [one for repeat in range(repeats) for one in fold_moments(train, targets, folds, repeat)]
        whole = functools.reduce(operator.add, parts[:folds])
        path = DeferredPath(alphas, functools.partial(ridge_path, whole, emphasis=emphasis))
        scored = []
        for repeat in range(repeats):
            mine = parts[repeat * folds : (repeat + 1) * folds]
            # The moments of the other folds are added: differences from the total would give constant channels some
            # variance.
            rests = [functools.reduce(operator.add, [*mine[:k], *mine[k + 1 :]]) for k in range(folds)]
            paths = [ridge_path(rest, alphas, whole.std, emphasis) for rest in rests]
            scored.append(RereadableBlocks(_score_blocks, (train, repeat, paths, targets)))
    tally, errors = Tally(targets), []
    for blocks in scored:
        of_folds = [Tally(targets) for _ in range(folds)]
        for k, *held_out in blocks:
            tally.update(*held_out)
            of_folds[k].update(*held_out)
        errors.append(np.std([one.accuracy() for one in of_folds], axis=0, ddof=1) / np.sqrt(folds))
    found = Sweep(path, tally, np.mean(errors, axis=0) if one_standard_error else None)
    found.kernel = kernel
    if targets.classes:
        chosen = [(scores[found.best], *rest) for _, scores, *rest in scored[0]]
        found.temperature = targets.fit_temperature(*map(np.concatenate, zip(*chosen, strict=True)))
    return found


def _score_blocks(
    train: Iterable[FoldBlock], repeat: int, paths: Sequence[LinearPath], targets: Targets
) -> Iterator[tuple[Any, ...]]:
    scorers = [Scorer(path, targets) for path in paths]
    for k, x, *rest in by_fold(train, repeat):
        yield k, scorers[k](x), *rest


def _score_kernel(
    kernel: KernelMatrix, coded: np.ndarray, fold: np.ndarray, alphas: np.ndarray, folds: int, *rest: np.ndarray
) -> list[tuple[Any, ...]]:
    """Return the held-out scores of each fold of one repeat, from products of samples, and the rest of its samples."""
    check_folds(np.bincount(fold, minlength=folds))
    scores = held_out_scores(kernel.products, kernel.weights, coded, fold, alphas)
    return [(k, scores[:, fold == k], *(part[fold == k] for part in rest)) for k in range(folds)]


def with_numbers(blocks: Iterable[Block], numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks of samples with the number of each sample, from the numbers (n,) of all samples in order."""
    start = 0
    for x, y in blocks:
        yield x, y, numbers[start : start + len(x)]
        start += len(x)


def draw_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
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
    draw = np.random.default_rng((0, repeat))
    if groups is not None:
        return _assign_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Rows are assigned in turn, class after class: a fold with one row more of a class gets one less of the next.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def draw_ranks(rows: int, labels: np.ndarray | None = None, draw: int = 0) -> np.ndarray:
    """Return the place of each row in a random order, (rows,); each ``draw`` is another order of the same rows.

    With class labels (rows,), the first rows of the order, however many, have the shares of classes that all rows have,
    to within one row of each class.
    """
    generator = np.random.default_rng((1, draw))
    ranks = generator.permutation(rows)
    if labels is None:
        return ranks
    share = np.empty(rows)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        share[mine] = (ranks[mine].argsort().argsort() + generator.random()) / len(mine)
    return share.argsort().argsort()


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


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutScore:
    """Score of the best penalty on held-out samples.

    ``score`` is the accuracy, or R². ``loss`` is the cross-entropy at the fitted temperature, or the squared error
    divided by the variance. Both are means over samples and repeats. ``losses`` (n,) holds the loss of each sample.
    """

    alpha: float
    score: float
    loss: float
    losses: np.ndarray

    @property
    def merit(self) -> tuple[float, float]:
        """The sort key: the score, and between equal scores the smaller loss."""
        return self.score, -self.loss


def kernel_matrix(x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix (n, n), float32, of samples x (n, w) whose features are standardised first."""
    return KernelMatrix(x).products.astype(np.float32)


def score_by_kernel(
    kernel: np.ndarray, y: np.ndarray, targets: Targets, folds: np.ndarray, alphas: np.ndarray = SCORING_ALPHAS
) -> HeldOutScore:
    """Return the held-out score of the most accurate penalty; equally accurate ones are compared by their loss.

    ``kernel`` (n, n) is the kernel matrix of the samples; that of columns side by side is the sum of theirs. ``y``
    (n, outputs) are labels, ``folds`` (repeats, n) the fold of each sample in each repeat of the cross-validation.
    """
    products, weights, coded = kernel.astype(np.float64), np.ones(len(y)), targets.encode(y)
    scores = np.stack([held_out_scores(products, weights, coded, fold, alphas) for fold in folds], axis=1)
    tally = Tally(targets)
    for repeat in range(len(folds)):
        tally.update(scores[:, repeat], y)
    accuracies = tally.accuracy()
    equal = [(alphas[n], _losses(scores[n], y, targets)) for n in np.flatnonzero(accuracies == accuracies.max())]
    alpha, losses = min(equal, key=lambda pair: (float(pair[1].mean()), -pair[0]))
    best = float(accuracies.max())
    return HeldOutScore(alpha=float(alpha), score=best, loss=float(losses.mean()), losses=losses)


def _losses(scores: np.ndarray, y: np.ndarray, targets: Targets) -> np.ndarray:
    """Return the loss of each sample, (n,), averaged over repeats, from held-out scores (repeats, n, T)."""
    if not targets.classes:
        variance = np.maximum(y.var(axis=0, dtype=np.float64), np.finfo(np.float64).tiny)
        return (np.square(scores - y) / variance).mean(axis=(0, 2))
    flat, labels = scores.reshape(-1, scores.shape[2]), np.tile(y.astype(np.int64), (len(scores), 1))
    logits = targets.logits(flat) / targets.fit_temperature(flat, labels)
    log_probabilities = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    return -log_probabilities.reshape(len(scores), len(y), -1).mean(axis=(0, 2))
