"""Choice of a penalty on validation samples or by cross-validation.

Folds need no passes of their own. With many samples, the moments of all folds but one are a sum of
the folds' moments, and a second pass scores each sample by the path that was not fitted on it. With
few samples, their products serve all folds. Features are standardised once, over all samples and
without the labels, because rounding errors of a channel that varies in one fold would be scaled up in
the others.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import (
    Block,
    FoldBlock,
    LinearReadout,
    Tally,
    Targets,
    best_penalty,
)
from reservoir.readouts.ridge import (
    DEFAULT_ALPHAS,
    FoldScorer,
    KernelMatrix,
    LinearPath,
    Moments,
    by_fold,
    fold_moments,
    gather,
    head,
    held_out_scores,
    ridge_path,
    score,
    solve,
)

MAX_ALPHAS = 1000  # the models of all penalties are in memory at once
ALPHA_LIMITS = 1e-6, 1e10


@dataclass(eq=False)
class DeferredPath:
    """The models of penalties, each solved when it is used: ``solve`` returns the path of some penalties."""

    alphas: np.ndarray
    solve: Callable[[np.ndarray], LinearPath]

    def __post_init__(self) -> None:
        self.converged = np.ones(len(self.alphas), bool)

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return self.solve(self.alphas[[index]]).readout(0, targets, temperature)


@dataclass(eq=False)
class Sweep:
    """Result of a sweep over penalties: their ``accuracy`` and ``loss`` (A,), and the index of the ``best``."""

    path: LinearPath | DeferredPath  # fitted on all training samples
    tally: Tally
    errors: np.ndarray | None = None  # (A,): the largest penalty within this error is chosen
    # Returns the held-out scores (n, T) of the chosen penalty in the order of the samples, their labels, and
    # optional weights; None without cross-validation.
    held_out: Callable[[], tuple[np.ndarray, ...]] | None = None
    # What each sample adds to the accuracy of the chosen penalty, (n,); only for cross-validation.
    merits: np.ndarray | None = None
    kernel: KernelMatrix | None = None  # what gave the path, if that was a kernel matrix

    def __post_init__(self) -> None:
        self.accuracy, self.loss = self.tally.accuracy(), self.tally.loss()
        self.best = best_penalty(self.path.alphas, self.accuracy, self.loss, self.errors)
        self.alpha = float(self.path.alphas[self.best])

    @functools.cached_property
    def temperature(self) -> float:
        """Temperature of the chosen readout, fitted when it is used, because most sweeps are only compared."""
        targets = self.tally.targets
        return targets.fit_temperature(*self.held_out()) if self.held_out and targets.classes else 1.0

    def readout(self) -> LinearReadout:
        """Return the readout of the chosen penalty."""
        return self.path.readout(self.best, self.tally.targets, self.temperature)


def sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    moments: Moments | None = None,
    emphasis: np.ndarray | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by validation; train and valid are iterated once each.

    Known ``moments`` of train save its pass. ``emphasis`` (w,) holds factors of the standardised
    features.
    """
    path = solve(gather(train, targets) if moments is None else moments, alphas, emphasis)
    return Sweep(path, score(path, valid, targets))


def parse_alphas(text: str) -> np.ndarray:
    """Return the penalties of ``LO:HI:N``: N values from LO to HI in equal ratios."""
    try:
        low, high, number = text.split(":")
        lo, hi, n = float(low), float(high), int(number)
    except ValueError:
        lo, hi, n = 0.0, 0.0, 0
    if not (0 < lo <= hi < np.inf and 1 <= n <= MAX_ALPHAS) or (n == 1 and lo != hi):
        remedy = f"give LO:HI:N with 0 < LO <= HI and N from 1 to {MAX_ALPHAS:,}, such as 1e-2:1e6:25"
        raise InputError(f"penalties {text!r}: {remedy}", "N is 1 only if LO = HI")
    return np.geomspace(lo, hi, n)


def extended_alphas(alphas: np.ndarray, best: int) -> np.ndarray | None:
    """Return the grid extended to 1e-6 or 1e10 if the best penalty is at its end; None if nothing can be added."""
    low, high = float(np.min(alphas)), float(np.max(alphas))
    # New penalties continue the ratio of the grid, or a third of a decade if that is larger.
    ratio = max(10 ** (1 / 3), (high / low) ** (1 / max(1, len(alphas) - 1)))
    ends = low / ALPHA_LIMITS[0], ALPHA_LIMITS[1] / high
    below, above = (int(np.log(max(1, end)) / np.log(ratio) + 1e-9) for end in ends)
    less = low / ratio ** np.arange(below, 0, -1) if alphas[best] == low else []
    more = high * ratio ** np.arange(1, above + 1) if alphas[best] == high else []
    return np.concatenate([less, np.sort(alphas), more]) if len(less) + len(more) else None


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

    The accuracy of a penalty is taken over all samples, each scored by the model of the other folds,
    and averaged over the repeats. The returned path is fitted on all samples, the temperature on the
    held-out scores of the first repeat.

    ``train`` is iterated several times; a sample of weight 2 counts as two. ``moments`` are those
    that `fold_moments` returned before, and save a pass. ``emphasis`` (w,) and ``known`` are as in
    `KernelMatrix`. With ``one_standard_error``, the largest penalty within one standard error (over
    folds) of the best accuracy is chosen.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds", "give at least 2")
    few, kernel = None if moments else head(train)[0], None
    scorers: list[list[FoldScorer]] = []  # of each repeat and fold
    if few is not None:
        x, y, fold, *weights = few
        kernel, coded = KernelMatrix(x, targets.weights(y, *weights), emphasis, known), targets.encode(y)
        path = DeferredPath(alphas, functools.partial(kernel.path, coded))
        train = [(np.arange(len(y)), y, fold, *weights)]  # samples are looked up by their numbers
        for one in fold.reshape(len(y), -1).T:
            scores = held_out_scores(kernel.products, kernel.weights, coded, one, alphas)
            scorers.append([lambda n, chosen, scores=scores: scores[chosen, n]] * folds)
    else:
        parts = moments or [
            one for repeat in range(repeats) for one in fold_moments(train, targets, folds, repeat)
        ]
        whole = functools.reduce(operator.add, parts[:folds])
        scale = whole.scale(emphasis)
        path = DeferredPath(alphas, functools.partial(ridge_path, whole, scale=scale))
        for repeat in range(repeats):
            mine = parts[repeat * folds : (repeat + 1) * folds]
            # The moments of the other folds are added: differences from the total give constant
            # channels some variance.
            of_folds = []
            for k, one in enumerate(mine):
                rest = functools.reduce(operator.add, [*mine[:k], *mine[k + 1 :]])
                of_folds.append(rest.system(scale).scorer(alphas, one.count, targets))
            scorers.append(of_folds)
    tally, errors = Tally(targets), []
    for repeat, of_folds in enumerate(scorers):
        tallies = [Tally(targets) for _ in range(folds)]
        for k, x, *labels in by_fold(train, repeat):
            scores = of_folds[k](x, slice(None))
            tally.update(scores, *labels)
            if one_standard_error:
                tallies[k].update(scores, *labels)
        if one_standard_error:
            errors.append(np.std([one.accuracy() for one in tallies], axis=0, ddof=1) / np.sqrt(folds))
    found = Sweep(path, tally, np.mean(errors, axis=0) if errors else None, kernel=kernel)
    scores, labels = _held_out_scores(train, targets, scorers, found.best)
    found.merits = np.mean([targets.merits(part, *labels) for part in scores], axis=0)
    first_repeat = (scores[0], *labels)
    found.held_out = lambda: first_repeat
    return found


def _held_out_scores(
    train: Iterable[FoldBlock], targets: Targets, scorers: Sequence[Sequence[FoldScorer]], best: int
) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Return the scores (n, T) of the best penalty in each repeat, and labels and weights, in the samples' order."""
    chosen = slice(best, best + 1)
    scores: list[list[np.ndarray]] = [[] for _ in scorers]  # of each repeat and block
    labels: list[tuple[np.ndarray, ...]] = []
    for x, y, fold, *weights in train:
        labels.append((y, *weights))
        for repeat, number in enumerate(fold.reshape(len(y), -1).T):
            block = np.empty((len(y), targets.columns))
            for k in np.unique(number).tolist():
                held = number == k
                block[held] = scorers[repeat][k](x[held], chosen)[0]
            scores[repeat].append(block)
    return [*map(np.concatenate, scores)], tuple(map(np.concatenate, zip(*labels, strict=True)))
