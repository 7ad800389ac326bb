"""Choice of a penalty for forecasts, whose models are scored on later samples than those that they are fitted to.

Other cross-validation fits a model to samples on both sides of those that it is scored on, which is
easier than a forecast: between two known stretches of a trend, nothing is new.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from reservoir.readouts.linear import Block, LinearPath, Scorer, Tally, Targets
from reservoir.readouts.ridge import gather, ridge_path
from reservoir.readouts.sweep import DeferredPath, Sweep


@dataclass(frozen=True, eq=False)
class LastValue:
    """Which features are the past values of a series, and which of them is the last value before the forecast.

    A feature is a scaled value: the value of the series is the feature times ``scale``, plus ``offset``.
    """

    number: int  # of the feature that is the last value
    past: slice  # the features of all past values, with the last one
    scale: float
    offset: float

    def changes(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield samples whose past features, and whose labels, have the last value subtracted."""
        for x, y in blocks:
            last_features = x[:, [self.number]]
            relative = x.copy()
            relative[:, self.past] -= last_features
            # Labels are not scaled, so they have the last value in its own units subtracted.
            last_values = last_features.astype(np.float64) * self.scale + self.offset
            yield relative, y - last_values

    def of_values(self, path: LinearPath) -> LinearPath:
        """Return readouts of `changes` as readouts of the features and labels themselves.

        With weights w of the changes x_i - x_last, the forecast is

            x_last scale + offset + sum_i w_i (x_i - x_last)  =  offset + sum_i w_i x_i + (scale - sum_i w_i) x_last .

        The ``path`` is changed in place.
        """
        # The change of the last value is always 0, so its weight in ``path`` is 0 (ridge gives constant features none),
        # and is replaced.
        path.coef[:, self.number] = self.scale - path.coef[:, self.past].sum(axis=1)
        path.intercept = path.intercept + self.offset
        return path


@dataclass(frozen=True)
class TimeFold:
    """A fold of samples in time: a model is fitted to the first ``fitted`` samples, and scored on ``held_out``."""

    fitted: int
    held_out: range  # numbers of samples, all of them later


def time_sweep(
    blocks: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray,
    folds: Sequence[TimeFold],
    *,
    feature_weights: np.ndarray | None = None,
    last_value: LastValue | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty, and choose one by its scores on the later samples of each fold.

    ``blocks``, which are iterated several times, hold the samples from the oldest to the newest. Each
    model standardises features by its own samples, because later ones are unknown to it. The folds
    follow each other, and the last one ends with the newest sample. The returned path is fitted to all
    samples; the scores of the sweep are those of the held-out samples alone.

    With ``last_value``, models are fitted to changes from the last value, so that a penalty draws
    forecasts to the last value and not to the mean. They forecast values in any case.
    """
    path_of = partial(
        _path_of_labels, targets=targets, feature_weights=feature_weights, last_value=last_value
    )
    paths = [path_of(_between(blocks, range(fold.fitted)), alphas) for fold in folds]
    # Score all penalties on the later samples of each fold. The tally of all folds chooses the penalty.
    tally = Tally(targets)
    for fold, path in zip(folds, paths, strict=True):
        scorer = Scorer(path, targets)
        for x, y in _between(blocks, fold.held_out):
            tally.update(scorer(x), y)
    result = Sweep(DeferredPath(alphas, partial(path_of, blocks)), tally)
    # Score once more under the chosen penalty alone, sample by sample, for comparisons with other sweeps.
    chosen_penalty = slice(result.best, result.best + 1)
    scores: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for fold, path in zip(folds, paths, strict=True):
        scorer = Scorer(path, targets)
        for x, y in _between(blocks, fold.held_out):
            scores.append(scorer(x, chosen_penalty)[0])
            labels.append(y)
    held_out = np.concatenate(scores), np.concatenate(labels)
    result.sample_scores = targets.sample_scores(*held_out)
    result.held_out = lambda: held_out
    return result


def _path_of_labels(
    blocks: Iterable[Block],
    alphas: np.ndarray,
    *,
    targets: Targets,
    feature_weights: np.ndarray | None,
    last_value: LastValue | None,
) -> LinearPath:
    """Return the ridge readouts of the labels of every penalty.

    With ``last_value``, they are fitted to the changes of the labels from the last value.
    """
    if last_value is None:
        return ridge_path(gather(blocks, targets), alphas, feature_weights)
    training = gather(last_value.changes(blocks), targets)
    return last_value.of_values(ridge_path(training, alphas, feature_weights))


def _between(blocks: Iterable[Block], numbers: range) -> Iterator[Block]:
    """Yield the samples of a range of ``numbers``, block by block."""
    block_start = 0  # number of the first sample of the block
    for x, y in blocks:
        # A range that begins or ends before the block has negative positions in it.
        rows = slice(max(0, numbers.start - block_start), max(0, numbers.stop - block_start))
        if len(x[rows]):
            yield x[rows], y[rows]
        block_start += len(x)
