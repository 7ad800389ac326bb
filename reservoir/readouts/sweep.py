"""Choice of a penalty on validation samples or by cross-validation.

Folds need no passes of their own. With many samples, the moments of all folds but one are a sum of
the folds' moments, and a second pass scores each sample by the path that was not fitted on it. With
few samples, their products serve all folds. Features are standardised once, over all samples and
without the labels, because rounding errors of a channel that varies in one fold would be scaled up in
the others.
"""

import functools
import math
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
    tally_scores,
)
from reservoir.readouts.moments import Moments, by_fold, fold_moments
from reservoir.readouts.penalties import DEFAULT_ALPHAS, OutputScores, best_penalty
from reservoir.readouts.ridge import (
    FoldScorer,
    KernelMatrix,
    TrainingData,
    concatenate_if_few,
    gather,
    kernel_fold_scores,
    path_from_moments,
    primal_system,
    ridge_path,
)

# Samples on which penalties are tried first, to try only those near the best one on all samples. On 9,500 generated
# series, penalties in proportion to the samples were the best ones for 500 to 8,000 samples, up to a factor of two.
CHOICE_SAMPLES = 2048


@dataclass(eq=False)
class DeferredPath:
    """The models of every penalty, like a `LinearPath`, but each is solved only when its readout is asked for."""

    alphas: np.ndarray  # (A,)
    solve: Callable[[np.ndarray], LinearPath]  # returns the path of some penalties

    def __post_init__(self) -> None:
        # As in `LinearPath`: every solution has converged, because those of ridge are exact.
        self.converged = np.ones(len(self.alphas), bool)

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        path_of_one = self.solve(self.alphas[[index]])
        return path_of_one.readout(0, targets, temperature)


@dataclass(eq=False)
class Sweep:
    """Result of a sweep over A penalties.

    ``accuracy`` and ``loss`` (A,) are those of the held-out samples, ``best`` is the index of the chosen penalty, and
    ``alpha`` the penalty itself.
    """

    path: LinearPath | DeferredPath  # fitted on all training samples
    tally: Tally  # counts the held-out samples, under every penalty
    # If the largest penalty within one standard error of the best is chosen, the scores that it goes by; else None.
    outputs: OutputScores | None = None
    # Returns the held-out scores (n, T) of the chosen penalty in the order of the samples, their labels, and
    # optional weights; None without cross-validation.
    held_out: Callable[[], tuple[np.ndarray, ...]] | None = None
    # What each sample adds to the accuracy of the chosen penalty, (n,); None without cross-validation.
    sample_scores: np.ndarray | None = None
    kernel: KernelMatrix | None = None  # the kernel matrix that gave the path; None if moments did

    def __post_init__(self) -> None:
        self.accuracy, self.loss = self.tally.accuracy(), self.tally.loss()
        self.best = best_penalty(self.path.alphas, self.accuracy, self.loss, self.outputs)
        self.alpha = float(self.path.alphas[self.best])

    @functools.cached_property
    def temperature(self) -> float:
        """Temperature of the chosen readout; 1 without classes, or without cross-validation."""
        targets = self.tally.targets
        if self.held_out is None or not targets.classes:
            return 1.0
        # Fitted only when it is used, because most sweeps are only compared.
        return targets.fit_temperature(*self.held_out())

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
    valid_samples: float = math.inf,
) -> Sweep:
    """Fit a ridge readout for every penalty on train and choose one on valid; each is iterated once.

    ``training`` is what `gather` returns for train; with it, train is not iterated. ``feature_weights`` (w,) multiply
    the standardised features. ``valid_samples``, the size of valid if it is known, can make a sweep of many targets
    faster.
    """
    if training is None:
        training = gather(train, targets)
    if isinstance(training, Moments):
        scale = training.scale(feature_weights)
        system = primal_system(training, scale)
        if system.rotates_rows(alphas, valid_samples):
            # The few samples of valid are scored without the solutions, of which only the best one is computed. With
            # 1,000 targets, all solutions of 25 penalties took half the time of a fit.
            tally = tally_scores(system.scorer(alphas, valid_samples, targets), valid, targets)
            return Sweep(
                DeferredPath(alphas, functools.partial(path_from_moments, training, scale=scale)), tally
            )
        path = system.path(alphas)
    else:
        path = ridge_path(training, alphas, feature_weights)
    return Sweep(path, score_path(path, valid, targets))


def best_penalty_for_subset(
    train: Iterable[tuple[np.ndarray, ...]],
    sweep_of: Callable[[Sequence[Any], np.ndarray], Sweep],
    alphas: np.ndarray,
    *,
    samples: int,
) -> int:
    """Return the index of the best penalty of a grid for about `CHOICE_SAMPLES` samples, drawn with a fixed seed.

    ``train`` has ``samples`` samples in all. ``sweep_of(blocks, penalties)`` returns the sweep of the drawn ones. Its
    penalties are smaller than ``alphas``, in proportion to the samples, because ridge adds a penalty to the squared
    errors of all samples.
    """
    generator = np.random.default_rng(0)
    drawn_blocks: list[tuple[np.ndarray, ...]] = []
    for block in train:
        is_drawn = generator.random(len(block[0])) < CHOICE_SAMPLES / samples
        drawn_blocks.append(tuple(array[is_drawn] for array in block))
    drawn = tuple(np.concatenate(arrays) for arrays in zip(*drawn_blocks, strict=True))
    drawn_samples = len(drawn[0])
    return sweep_of([drawn], alphas * (drawn_samples / samples)).best


@dataclass(frozen=True, eq=False)
class _FittedFolds:
    """Everything that cross-validation fits."""

    path: DeferredPath  # fitted to all samples
    scorers: list[list[FoldScorer]]  # of each repeat and fold; fitted to the other folds of the repeat
    # What the scorers take as features, with labels, folds and optional weights.
    samples: Iterable[FoldBlock]
    kernel: KernelMatrix | None = None  # of all samples; None if they were fitted by moments


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
    under which every output is within one standard error (over folds) of the best is chosen.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds", "give at least 2")
    # Fewer samples than features are fitted by their products, more by the moments of each fold in each repeat.
    # ``moments`` are given only for more.
    few_samples = None if moments else concatenate_if_few(train)[0]
    if few_samples is not None:
        fitted = _fit_few(few_samples, targets, alphas, folds, feature_weights, of_first_features)
    else:
        moments_of_folds = moments or [
            of_fold for repeat in range(repeats) for of_fold in fold_moments(train, targets, folds, repeat)
        ]
        fitted = _fit_moments(train, moments_of_folds, targets, alphas, folds, feature_weights)
    tally, outputs = _score_folds(fitted, targets, folds, has_errors=one_standard_error)
    result = Sweep(fitted.path, tally, outputs, kernel=fitted.kernel)
    # Score once more under the chosen penalty alone, sample by sample, for comparisons with other sweeps.
    scores_of_repeats, labels = _scores_of_penalty(fitted.samples, targets, fitted.scorers, result.best)
    result.sample_scores = np.mean(
        [targets.sample_scores(scores, *labels) for scores in scores_of_repeats], axis=0
    )
    held_out = scores_of_repeats[0], *labels  # of the first repeat
    result.held_out = lambda: held_out
    return result


def _score_folds(
    fitted: _FittedFolds, targets: Targets, folds: int, *, has_errors: bool
) -> tuple[Tally, OutputScores | None]:
    """Return the tally of all samples in all repeats, each scored by the models of the other folds.

    With ``has_errors``, also return the accuracy of each output, and its standard error over the folds of a repeat, as
    a mean over repeats; else None.
    """
    tally = Tally(targets)
    errors: list[np.ndarray] = []  # of each repeat
    all_penalties = slice(None)
    for repeat, scorers in enumerate(fitted.scorers):
        fold_tallies = [Tally(targets) for _ in range(folds)]
        for k, x, *labels in by_fold(fitted.samples, repeat):  # labels, and weights if there are any
            scores = scorers[k](x, all_penalties)
            tally.update(scores, *labels)
            if has_errors:
                fold_tallies[k].update(scores, *labels)
        if has_errors:
            accuracies = [fold_tally.output_accuracies() for fold_tally in fold_tallies]
            errors.append(np.std(accuracies, axis=0, ddof=1) / np.sqrt(folds))
    return tally, OutputScores(tally.output_accuracies(), np.mean(errors, axis=0)) if has_errors else None


def _fit_few(
    few_samples: tuple[np.ndarray, ...],
    targets: Targets,
    alphas: np.ndarray,
    folds: int,
    feature_weights: np.ndarray | None,
    of_first_features: KernelMatrix | None,
) -> _FittedFolds:
    """Fit all folds by the products of the samples, which are fewer than the features.

    ``few_samples`` are the arrays of a `FoldBlock` with all of them.
    """
    x, y, folds_of_samples, *weights = few_samples  # folds are (n,) or (n, repeats)
    kernel = KernelMatrix(x, targets.weights(y, *weights), feature_weights, of_first_features)
    coded = targets.coded(y)
    scorers: list[list[FoldScorer]] = []
    for fold_of_sample in folds_of_samples.reshape(len(y), -1).T:  # one column for each repeat
        scores = kernel_fold_scores(kernel.products, kernel.weights, coded, fold_of_sample, alphas)
        # Every sample has been scored by the model of its fold. So one function, which looks up the scores, serves all
        # folds of the repeat. ``samples`` below gives it the numbers of samples in place of features.
        scorers.append([functools.partial(_look_up, scores)] * folds)
    return _FittedFolds(
        path=DeferredPath(alphas, functools.partial(kernel.path, coded)),
        scorers=scorers,
        samples=[(np.arange(len(y)), y, folds_of_samples, *weights)],
        kernel=kernel,
    )


def _look_up(scores: np.ndarray, numbers: np.ndarray, penalties: slice) -> np.ndarray:
    """Return the scores (A, m, t) of samples under some penalties, from all ``scores`` and the samples' ``numbers``."""
    return scores[penalties, numbers]


def _fit_moments(
    train: Iterable[FoldBlock],
    moments_of_folds: Sequence[Moments],
    targets: Targets,
    alphas: np.ndarray,
    folds: int,
    feature_weights: np.ndarray | None,
) -> _FittedFolds:
    """Fit all folds from the moments of each fold, those of the first repeat first."""
    # The folds of one repeat have all samples.
    of_all_samples = functools.reduce(operator.add, moments_of_folds[:folds])
    scale = of_all_samples.scale(feature_weights)
    scorers: list[list[FoldScorer]] = []
    for start in range(0, len(moments_of_folds), folds):
        of_repeat = moments_of_folds[start : start + folds]
        # The model of a fold is fitted to the sum of the other folds' moments. The total minus the moments of the fold
        # would be the same but for rounding errors, which give constant channels some variance.
        scorers_of_folds: list[FoldScorer] = []
        for k, held_out in enumerate(of_repeat):
            fitted = functools.reduce(operator.add, [*of_repeat[:k], *of_repeat[k + 1 :]])
            scorers_of_folds.append(primal_system(fitted, scale).scorer(alphas, held_out.count, targets))
        scorers.append(scorers_of_folds)
    path = DeferredPath(alphas, functools.partial(path_from_moments, of_all_samples, scale=scale))
    return _FittedFolds(path=path, scorers=scorers, samples=train)


def _scores_of_penalty(
    samples: Iterable[FoldBlock], targets: Targets, scorers: Sequence[Sequence[FoldScorer]], index: int
) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Return held-out scores (n, T) of the penalty number ``index`` in each repeat, and labels and optional weights.

    All are in the order of the samples.
    """
    one_penalty = slice(index, index + 1)
    scores: list[list[np.ndarray]] = [[] for _ in scorers]  # of each repeat and block
    labels: list[tuple[np.ndarray, ...]] = []  # labels and optional weights of each block
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
