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
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import (
    Block,
    FoldBlock,
    LinearPath,
    LinearReadout,
    Tally,
    Targets,
    score_path,
)
from reservoir.readouts.moments import Moments, by_fold, fold_moments
from reservoir.readouts.penalties import DEFAULT_ALPHAS, best_penalty
from reservoir.readouts.ridge import (
    FoldScorer,
    KernelMatrix,
    TrainingData,
    gather,
    head,
    kernel_fold_scores,
    path_from_moments,
    primal_system,
    ridge_path,
)


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


# Samples that tell which penalties to try on all. On 9,500 generated series, penalties in proportion to the samples
# were the best ones for 500 to 8,000 samples, up to a factor of two.
CHOICE_SAMPLES = 2048


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
    sample_scores: np.ndarray | None = None
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
    training: TrainingData | None = None,
    feature_weights: np.ndarray | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by validation; train and valid are iterated once each.

    What `gather` returns for train, ``training``, saves its pass if it is at hand. ``feature_weights`` (w,) multiply
    the standardised features.
    """
    if training is None:
        training = gather(train, targets)
    path = ridge_path(training, alphas, feature_weights)
    return Sweep(path, score_path(path, valid, targets))


def best_for_some(
    train: Iterable[tuple[np.ndarray, ...]],
    sweep_of: Callable[[Sequence[Any], np.ndarray], Sweep],
    alphas: np.ndarray,
    *,
    samples: int,
) -> int:
    """Return the number of the best penalty of a grid for some of the ``samples`` of train, drawn with a fixed seed.

    ``sweep_of`` takes the blocks of some samples, and their penalties. These are smaller in proportion, because the sum
    of squares beside a penalty is one over samples.
    """
    generator = np.random.default_rng(0)
    drawn: list[tuple[np.ndarray, ...]] = []
    for block in train:
        is_drawn = generator.random(len(block[0])) < CHOICE_SAMPLES / samples
        drawn.append(tuple(array[is_drawn] for array in block))
    some = tuple(np.concatenate(arrays) for arrays in zip(*drawn, strict=True))
    return sweep_of([some], alphas * (len(some[0]) / samples)).best


@dataclass(frozen=True, eq=False)
class _FittedFolds:
    """Everything that cross-validation fits: the final path, and what scores each fold in each repeat."""

    path: DeferredPath
    scorers: list[list[FoldScorer]]  # of each repeat and fold
    # What the scorers take as features, with labels, folds and optional weights.
    samples: Iterable[FoldBlock]
    kernel: KernelMatrix | None = None


def cross_sweep(
    train: Iterable[FoldBlock],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    folds: int = 5,
    repeats: int = 1,
    moments: Sequence[Moments] | None = None,
    feature_weights: np.ndarray | None = None,
    one_standard_error: bool = False,
    of_first_features: KernelMatrix | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty, and choose one by repeated K-fold cross-validation.

    The accuracy of a penalty is taken over all samples, each scored by the model of the other folds,
    and averaged over the repeats. The returned path is fitted on all samples, the temperature on the
    held-out scores of the first repeat.

    ``train`` is iterated several times; a sample of weight 2 counts as two. ``moments`` are those
    that `fold_moments` returned before, and save a pass. ``feature_weights`` (w,) and
    ``of_first_features`` are as in `KernelMatrix`. With ``one_standard_error``, the largest penalty
    within one standard error (over folds) of the best accuracy is chosen.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds", "give at least 2")
    # Fewer samples than features are fitted by their products, more by the moments of each fold in each repeat.
    few = None if moments else head(train)[0]
    if few is not None:
        fitted = _fit_few(few, targets, alphas, folds, feature_weights, of_first_features)
    else:
        parts = moments or [
            part for repeat in range(repeats) for part in fold_moments(train, targets, folds, repeat)
        ]
        fitted = _fit_moments(train, parts, targets, alphas, folds, feature_weights)
    # Score each sample under every penalty by the models of the other folds. With the rule of one standard error, the
    # accuracy of each fold is counted, too: the error is that of their mean.
    tally = Tally(targets)
    errors: list[np.ndarray] = []
    for repeat, scorers in enumerate(fitted.scorers):
        fold_tallies = [Tally(targets) for _ in range(folds)]
        for k, x, *labels in by_fold(fitted.samples, repeat):
            scores = scorers[k](x, slice(None))
            tally.update(scores, *labels)
            if one_standard_error:
                fold_tallies[k].update(scores, *labels)
        if one_standard_error:
            accuracies = [fold_tally.accuracy() for fold_tally in fold_tallies]
            errors.append(np.std(accuracies, axis=0, ddof=1) / np.sqrt(folds))
    result = Sweep(fitted.path, tally, np.mean(errors, axis=0) if errors else None, kernel=fitted.kernel)
    # Score once more under the chosen penalty alone, sample by sample, for comparisons with other sweeps.
    scores_of_repeats, labels = _scores_of_penalty(fitted.samples, targets, fitted.scorers, result.best)
    result.sample_scores = np.mean(
        [targets.sample_scores(scores, *labels) for scores in scores_of_repeats], axis=0
    )
    held_out = scores_of_repeats[0], *labels
    result.held_out = lambda: held_out
    return result


def _fit_few(
    few: tuple[np.ndarray, ...],
    targets: Targets,
    alphas: np.ndarray,
    folds: int,
    feature_weights: np.ndarray | None,
    of_first_features: KernelMatrix | None,
) -> _FittedFolds:
    """Fit all folds by the products of the samples, which are fewer than the features."""
    x, y, folds_of_samples, *weights = few  # folds are (n,) or (n, repeats)
    kernel = KernelMatrix(x, targets.weights(y, *weights), feature_weights, of_first_features)
    coded = targets.coded(y)
    scorers: list[list[FoldScorer]] = []
    for fold_of_sample in folds_of_samples.reshape(len(y), -1).T:  # one column for each repeat
        scores = kernel_fold_scores(kernel.products, kernel.weights, coded, fold_of_sample, alphas)
        # Every sample has been scored already, and is looked up by its number, which ``samples`` has as its features.
        scorers.append([lambda n, penalties, scores=scores: scores[penalties, n]] * folds)
    return _FittedFolds(
        path=DeferredPath(alphas, functools.partial(kernel.path, coded)),
        scorers=scorers,
        samples=[(np.arange(len(y)), y, folds_of_samples, *weights)],
        kernel=kernel,
    )


def _fit_moments(
    train: Iterable[FoldBlock],
    parts: Sequence[Moments],
    targets: Targets,
    alphas: np.ndarray,
    folds: int,
    feature_weights: np.ndarray | None,
) -> _FittedFolds:
    """Fit all folds from the moments of each fold in each repeat, ``parts``."""
    # The folds of one repeat have all samples.
    of_all_samples = functools.reduce(operator.add, parts[:folds])
    scale = of_all_samples.scale(feature_weights)
    scorers: list[list[FoldScorer]] = []
    for start in range(0, len(parts), folds):
        of_folds = parts[start : start + folds]  # of one repeat
        # The moments of the other folds are added: differences from the total give constant
        # channels some variance.
        scorers_of_folds: list[FoldScorer] = []
        for k, held_out in enumerate(of_folds):
            fitted = functools.reduce(operator.add, [*of_folds[:k], *of_folds[k + 1 :]])
            scorers_of_folds.append(primal_system(fitted, scale).scorer(alphas, held_out.count, targets))
        scorers.append(scorers_of_folds)
    path = DeferredPath(alphas, functools.partial(path_from_moments, of_all_samples, scale=scale))
    return _FittedFolds(path=path, scorers=scorers, samples=train)


def _scores_of_penalty(
    samples: Iterable[FoldBlock], targets: Targets, scorers: Sequence[Sequence[FoldScorer]], index: int
) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Return the scores (n, T) of one penalty in each repeat, and labels and weights, in the samples' order."""
    one_penalty = slice(index, index + 1)
    scores: list[list[np.ndarray]] = [[] for _ in scorers]  # of each repeat and block
    labels: list[tuple[np.ndarray, ...]] = []
    for x, y, folds, *weights in samples:
        labels.append((y, *weights))
        # ``folds`` is (m,), or (m, repeats); its columns are the folds of the samples in each repeat.
        for repeat, fold_of_sample in enumerate(folds.reshape(len(y), -1).T):
            # Each sample is scored by the readout of the fold that held it out.
            block_scores = np.empty((len(y), targets.columns))
            for k in np.unique(fold_of_sample).tolist():
                is_held_out = fold_of_sample == k
                scores_of_penalties = scorers[repeat][k](x[is_held_out], one_penalty)  # (1, held out, T)
                block_scores[is_held_out] = scores_of_penalties[0]
            scores[repeat].append(block_scores)
    scores_of_repeats = [np.concatenate(blocks) for blocks in scores]
    labels_and_weights = tuple(np.concatenate(blocks) for blocks in zip(*labels, strict=True))
    return scores_of_repeats, labels_and_weights
