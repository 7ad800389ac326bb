"""Multinomial logistic readouts of every penalty, chosen on valid or by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reservoir.readouts.linear import LinearReadout, RereadableBlocks, Scorer, Tally
from reservoir.readouts.logistic import logistic_path, logistic_sweep
from reservoir.readouts.ridge import gather
from reservoir.readouts.sweep import Sweep
from reservoir_pipelines.fitting.fitter import ColumnFit, PenaltyFitter, all_blocks, column_fit, targets_of
from reservoir_pipelines.fitting.folds import assign_folds
from reservoir_pipelines.fitting.ridge_fitter import stored_moments
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, KnownSource, KnownSplit, RawSource


@dataclass(frozen=True, kw_only=True)
class LogisticFitter(PenaltyFitter):
    """Multinomial logistic readouts, one for each penalty of a grid; a penalty is 1 / C of scikit-learn."""

    kind = "logistic"

    def fit(self, source: KnownSource) -> ColumnFit:
        """Fit every penalty to a source and choose one, on valid or by cross-validation."""
        if self.folds:
            return self._fit_folds(source)
        targets = targets_of(source, self.classes, balanced=self.balanced)
        train, valid = source.stream("train"), source.stream("valid")
        # The solver works along the principal axes of the moments. `stored_moments` returns those of each fold, and
        # without folds a list of one, or None if moments are not stored; then `logistic_sweep` gathers the samples
        # itself.
        moments = stored_moments(source, targets, train)
        moments_of_train = moments[0] if moments else None

        def sweep_of(alphas: np.ndarray) -> Sweep:
            """Fit the penalties of a grid to train, and score them on valid."""
            return logistic_sweep(train, valid, targets, alphas, moments=moments_of_train)

        return self.best_of(source, sweep_of)

    def _fit_train(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of ``alpha``, fitted to train, with targets and temperature of ``chosen``."""
        train, targets = source.stream("train"), chosen.targets
        path = logistic_path(train, targets, np.array([alpha]), gather(train, targets))
        return path.readout(0, targets, chosen.temperature)

    def _fit_all(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of ``alpha``, fitted to train and valid, with targets and temperature of ``chosen``."""
        both = RereadableBlocks(all_blocks, (source,))
        path = logistic_path(both, chosen.targets, np.array([alpha]), gather(both, chosen.targets))
        return path.readout(0, chosen.targets, chosen.temperature)

    def _fit_folds(self, source: KnownSource) -> ColumnFit:
        """Choose by cross-validation over train and valid, with all fitted samples in memory.

        If the source has only some of the rows, readouts are fitted to these, and score all rows.
        """
        # The source of all rows, and which of its samples are fitted: all, or those with these indices.
        source_of_all_rows = source
        fitted: slice | np.ndarray = slice(None)
        if isinstance(source, RawSource) and source.row_numbers:
            source_of_all_rows = replace(source, row_numbers=None)
            fitted = fitted_samples(source, source_of_all_rows)
        targets = targets_of(source, self.classes, balanced=self.balanced, splits=KNOWN_SPLITS)
        fold_of_sample = assign_folds(source_of_all_rows, self.folds, self.classes, self.repeats)
        x, y = map(np.concatenate, zip(*all_blocks(source), strict=True))  # the fitted samples
        labels = np.concatenate([source_of_all_rows.labels(split) for split in KNOWN_SPLITS])
        tally = Tally(targets)
        # Of each repeat, (A, n): what each sample adds to the score of a penalty.
        sample_scores: list[np.ndarray] = []
        scores_of_first_repeat = np.empty(0)  # (A, n, T), once there are some
        for repeat, fold in enumerate(fold_of_sample.T):  # the folds of one repeat, (n,)
            # Fit a path without each fold, and score each sample by the path that was not fitted to its fold.
            scorers: list[Scorer] = []
            for k in range(self.folds):
                in_other_folds = fold[fitted] != k
                train = [(x[in_other_folds], y[in_other_folds])]
                path = logistic_path(train, targets, self.alphas, gather(train, targets))
                scorers.append(Scorer(path))
            scores = _scores_by_fold(scorers, source_of_all_rows, fold, len(self.alphas), targets.columns)
            tally.update(scores, labels)
            sample_scores.append(np.stack([targets.sample_scores(of_alpha, labels) for of_alpha in scores]))
            if repeat == 0:
                scores_of_first_repeat = scores
        # The final path is fitted to all samples. The sweep chooses a penalty by the scores of all repeats; the
        # held-out scores of that penalty, which calibrate the readout, are those of the first repeat.
        path = logistic_path([(x, y)], targets, self.alphas, gather([(x, y)], targets))
        sweep_result = Sweep(path, tally)
        best = sweep_result.best
        held_out = scores_of_first_repeat[best], labels
        sweep_result.held_out = lambda: held_out
        sweep_result.sample_scores = np.mean([of_repeat[best] for of_repeat in sample_scores], axis=0)
        return column_fit(self.kind, source.columns, sweep_result)


def fitted_samples(source: RawSource[KnownSplit], all_rows: RawSource[KnownSplit]) -> np.ndarray:
    """Return the index of each sample of ``source`` among the samples of ``all_rows``, (n,), train before valid.

    ``source`` has some of the rows of ``all_rows``. A row has one sample, or one for each labelled token.
    """
    selected_samples: list[np.ndarray] = []
    first_sample = 0  # index of the first sample of a split
    for split in KNOWN_SPLITS:
        # Cut the indices of the split's samples at the ends of its rows, and take those of the selected rows.
        ends = np.cumsum(all_rows.counts(split))
        samples_of_rows = np.split(first_sample + np.arange(ends[-1]), ends[:-1])
        selected_rows = np.arange(len(ends))[source.selected_rows(split)]
        selected_samples += [samples_of_rows[row] for row in selected_rows]
        first_sample += int(ends[-1])
    return np.concatenate(selected_samples)


def _scores_by_fold(
    scorers: Sequence[Scorer], source: KnownSource, fold: np.ndarray, alphas: int, columns: int
) -> np.ndarray:
    """Return the scores (alphas, n, columns) of all samples, each by the path that was not fitted to its fold.

    ``fold`` (n,) is that of each sample, and ``scorers[k]`` has the path that was not fitted to fold k. ``alphas`` is
    the number of penalties, and ``columns`` that of targets.
    """
    scores = np.empty((alphas, len(fold), columns), np.float32)
    start = 0  # the first sample of a block
    for x, _ in all_blocks(source):
        fold_of_block = fold[start : start + len(x)]
        for k in np.unique(fold_of_block).tolist():
            held_out = np.flatnonzero(fold_of_block == k)
            scores[:, start + held_out] = scorers[k](x[held_out])
        start += len(x)
    return scores
