"""Exact ridge readouts of penalties, chosen on valid or by cross-validation; their moments and learning curves."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from reservoir.column import Column, Columns
from reservoir.readouts.linear import Block, FoldBlock, LinearReadout, Readout, RereadableBlocks, Targets
from reservoir.readouts.moments import Moments, accumulate, fold_moments, training_moments
from reservoir.readouts.penalties import prefers_large_penalty
from reservoir.readouts.products import LARGE_MATRIX
from reservoir.readouts.ridge import (
    FewSamples,
    KernelMatrix,
    TrainingData,
    concatenate_if_few,
    gather,
    ridge_path,
)
from reservoir.readouts.sweep import CHOICE_SAMPLES, Sweep, best_penalty_for_subset, cross_sweep, sweep
from reservoir.readouts.tridiagonal import FEW_PENALTIES
from reservoir_pipelines.fitting.fitter import (
    ColumnFit,
    CurveReadout,
    PenaltyFitter,
    column_fit,
    penalty_of,
    targets_of,
)
from reservoir_pipelines.fitting.folds import assign_folds, curve_blocks, fold_blocks
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    ColumnSource,
    KnownSource,
    KnownSplit,
    Labelling,
    Relabelled,
    in_memory_if_small,
)
from reservoir_pipelines.output import meter

# If a system has more equations, some samples tell which penalties are tried on all samples. All penalties of a grid
# need a reduction of the system, which takes five times as long as a factorisation for one of them.
MANY_EQUATIONS = LARGE_MATRIX
# Steps in the grid from a promising penalty to the next that is tried: scores change little between neighbours.
PENALTY_STEP = 2
# Least expected number of samples of each fold among those that choose penalties: of fewer, there may be none.
MIN_IN_FOLD = 16
CURVE_DRAWS = 5  # random draws of the rows, over which a learning curve is averaged
SMALL_WORK = 1e9
"""Multiplications below which moments are not stored: to write and sync their files takes longer than to compute them.

On 2,000 texts and 288 features, the files took four fifths of the time of the moments, and an eighth of that of `fit`.
"""


@dataclass(frozen=True, kw_only=True)
class RidgeFitter(PenaltyFitter):
    """Exact ridge readouts."""

    kind = "ridge"
    coding: Targets | None = None  # of the labels; None if it is derived from a source's labels
    # Whether some samples choose the penalties that are tried on all samples, if a system has many equations.
    narrows: bool = False
    # The kernel matrix of the last fit that had one, by its columns, so at most one item. A fit of these and more
    # columns computes only the products of the new ones.
    _kernels: dict[Columns, KernelMatrix] = field(init=False, default_factory=dict)

    @property
    def one_standard_error(self) -> bool:
        """Whether the largest penalty within one standard error of the best is chosen."""
        return prefers_large_penalty(self.classes, self.repeats)

    def targets(self, source: KnownSource) -> Targets:
        """Return the coding of a source's labels; class weights count all rows to which the final readout is fitted."""
        if self.coding is not None:
            return self.coding
        return targets_of(source, self.classes, balanced=self.balanced, splits=self.fitted_splits)

    def fit(self, source: KnownSource) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        return self._fit_folds(source) if self.folds else self._fit_valid(source)

    def _fit_valid(self, source: KnownSource) -> ColumnFit:
        """Fit every penalty to train and choose one by the score on valid."""
        targets = self.targets(source)
        train, valid = _stream(source, "train"), _stream(source, "valid")
        # Train is read once, as moments or as samples, for all sweeps: if the best penalty is at an end of the grid, a
        # wider grid is swept, too. Without folds, `stored_moments` returns a list of one.
        moments = stored_moments(source, targets, train)
        training = moments[0] if moments else gather(train, targets)
        sweep_of_source = partial(
            sweep, feature_weights=source.feature_weights, valid_samples=len(source.labels("valid"))
        )

        def sweep_of(alphas: np.ndarray) -> Sweep:
            """Fit penalties to train, and score them on valid."""
            return sweep_of_source(train, valid, targets, alphas, training=training)

        samples, width = len(source.labels("train")), source.width()
        if not self.tries_few_penalties(samples, width):
            return self.best_of(source, sweep_of)

        def sweep_of_drawn(drawn: Sequence[Block], alphas: np.ndarray) -> Sweep:
            """Fit penalties to some samples, drawn from train, and score them on valid."""
            return sweep_of_source(drawn, valid, targets, alphas)

        best_for_drawn = best_penalty_for_subset(train, sweep_of_drawn, self.alphas, samples=samples)
        return self._fit_around(source, sweep_of, best_for_drawn)

    def tries_few_penalties(self, samples: int, width: int) -> bool:
        """Return whether only penalties that are promising for some of the ``samples`` are tried on all of them.

        ``samples`` are those that readouts are fitted to, with ``width`` features each.
        """
        # Samples or features, whichever are fewer, are the equations of the system.
        has_many_equations = min(samples, width) > MANY_EQUATIONS
        return self.narrows and len(self.alphas) > FEW_PENALTIES and has_many_equations

    def _fit_around(
        self, source: KnownSource, sweep_of: Callable[[np.ndarray], Sweep], middle: int
    ) -> ColumnFit:
        """Return the fit of the best penalty near index ``middle`` of the grid, with those that were tried last.

        The penalty in the middle and one on each side are tried. If a side is best, it is the next middle. If the
        search reaches an end of the grid and the fitter ``widens``, all penalties and wider ones are tried.
        """
        last = len(self.alphas) - 1
        tried_middles: set[int] = set()
        while True:
            tried_middles.add(middle)
            sides_and_middle = [middle - PENALTY_STEP, middle, middle + PENALTY_STEP]
            indices = np.unique(np.clip(sides_and_middle, 0, last))
            fit = column_fit(self.kind, source.columns, sweep_of(self.alphas[indices]))
            best = int(indices[fit.best])
            if best in (0, last) and self.widens:
                return self.best_of(source, sweep_of)
            # The middle is best, or the search would go back to an earlier middle, and so never end.
            if best in tried_middles:
                return fit
            middle = best

    def _fit_folds(self, source: KnownSource) -> ColumnFit:
        """Fit every penalty in each fold of train and valid, and choose one by its scores on the held-out samples."""
        targets, feature_weights = self.targets(source), source.feature_weights
        fold_of_sample = assign_folds(source, self.folds, self.classes, self.repeats)
        stream = RereadableBlocks(fold_blocks, (source, fold_of_sample))
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, stream, fold_of_sample) if self.repeats == 1 else None
        blocks = in_memory_if_small(stream)
        samples, width = len(fold_of_sample), source.width()
        # The samples that are drawn to choose penalties must have some of each fold. Groups, and so folds, may differ
        # in size, so the smallest fold (of the first repeat) decides.
        expected_in_fold = np.bincount(fold_of_sample[:, 0]).min() * CHOICE_SAMPLES / samples
        has_enough_in_folds = bool(expected_in_fold >= MIN_IN_FOLD)
        tries_few_penalties = has_enough_in_folds and self.tries_few_penalties(samples, width)
        # `_fit_around` sweeps several times: compute the moments once for all sweeps. With fewer samples than features,
        # there are none.
        if tries_few_penalties and moments is None and samples >= width and self.repeats == 1:
            moments = fold_moments(blocks, targets, self.folds)

        def sweep_of(alphas: np.ndarray) -> Sweep:
            """Fit penalties in each fold, and remember the kernel matrix for the next column."""
            sweep_result = cross_sweep(
                blocks,
                targets,
                alphas,
                folds=self.folds,
                repeats=self.repeats,
                one_standard_error=self.one_standard_error,
                moments=moments,
                feature_weights=feature_weights,
                of_first_features=self._kernel_of_first(source.columns),
            )
            # The next column may be this one beside others, whose kernel matrix then adds to this one. Weights
            # would make it another matrix.
            if sweep_result.kernel and feature_weights is None:
                self._kernels.clear()
                self._kernels[source.columns] = sweep_result.kernel
            return sweep_result

        if not tries_few_penalties:
            return self.best_of(source, sweep_of)

        def sweep_of_drawn(drawn: Sequence[FoldBlock], alphas: np.ndarray) -> Sweep:
            """Fit penalties to some samples in each fold; one draw of folds is enough to find promising ones."""
            return cross_sweep(drawn, targets, alphas, folds=self.folds, feature_weights=feature_weights)

        best_for_drawn = best_penalty_for_subset(blocks, sweep_of_drawn, self.alphas, samples=samples)
        return self._fit_around(source, sweep_of, best_for_drawn)

    def _kernel_of_first(self, columns: Columns) -> KernelMatrix | None:
        """Return the remembered kernel matrix if its columns are the first of ``columns``; else None."""
        for first_columns, kernel in self._kernels.items():
            if columns[: len(first_columns)] == first_columns:
                return kernel
        return None

    def _fit_train(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train alone.

        Its temperature is that of ``chosen``, which was fitted to held-out scores, because a readout that is fitted to
        train alone has no held-out scores.
        """
        targets, labels = self.targets(source), source.labels("train")
        # The kernel matrix of cross-validation covers train and then valid, so its first rows are those of train,
        # and no features are read.
        if kernel := self._kernels.get(source.columns):
            path = kernel.of_first_rows(len(labels)).path(targets.coded(labels), np.array([alpha]))
        else:
            path = ridge_path(
                gather(_stream(source, "train"), targets), np.array([alpha]), source.feature_weights
            )
        return path.readout(0, targets, chosen.temperature)

    def _fit_all(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with targets and temperature of ``chosen``."""
        # The fit may have stored the moments of train, so that only valid is read; moments of both splits add up.
        if moments_of_train := stored_moments(source, self.targets(source), _stream(source, "train")):
            training = moments_of_train[0] + training_moments(_stream(source, "valid"), chosen.targets)
        else:
            both = itertools.chain(_stream(source, "train"), _stream(source, "valid"))
            training = gather(both, chosen.targets)
        path = ridge_path(training, np.array([alpha]), source.feature_weights)
        return path.readout(0, chosen.targets, chosen.temperature)

    def refit_labels(
        self, source: KnownSource, chosen: Readout, alpha: float | None, labellings: Sequence[Labelling]
    ) -> list[Readout]:
        """Return a readout of the chosen penalty for each labelling; all share the products of the features."""
        assert isinstance(chosen, LinearReadout), "ridge readouts are linear"
        targets = chosen.targets
        # With class weights, the weights of samples, and so the products, depend on the labels: nothing is shared.
        if targets.class_weights:
            return super().refit_labels(source, chosen, alpha, labellings)
        # The targets of all labellings stand side by side, (n, labellings * T), so that one system solves all.
        coded: Labelling = {
            split: np.concatenate([targets.coded(labels[split]) for labels in labellings], axis=1)
            for split in self.fitted_splits
        }
        training = self._training_with(coded, source, targets)
        path = ridge_path(training, np.array([penalty_of(alpha)]), source.feature_weights)
        # Cut the solution of the only penalty, (w, labellings * T), into the targets of each labelling.
        coef, intercept = path.coef[0], path.intercept[0]
        targets_of_labellings = np.split(np.arange(coef.shape[1]), len(labellings))
        return [
            LinearReadout(coef=coef[:, columns], intercept=intercept[columns], targets=targets)
            for columns in targets_of_labellings
        ]

    def _training_with(self, coded: Labelling, source: KnownSource, targets: Targets) -> TrainingData:
        """Return the training data of a source with other labels, which are ``coded`` as targets already.

        ``targets`` code the labels that the source has; they have no class weights.
        """
        blocks = RereadableBlocks(_blocks_of_splits, (Relabelled(source, coded), self.fitted_splits))
        # The entry may store the moments of train, so that the products of its features need not be computed again.
        # They belong to the labels that the source has, and so do those of valid, which are added. `with_targets` then
        # keeps the products of the features, and replaces those with the labels.
        if moments_of_train := stored_moments(source, targets, _stream(source, "train")):
            moments = moments_of_train[0]
            if "valid" in self.fitted_splits:
                moments += training_moments(_stream(source, "valid"), targets)
            return moments.with_targets(blocks)
        # Otherwise the blocks are read here. If samples are fewer than features, the samples themselves are returned;
        # else ``few_samples`` is None, and ``stream`` yields all blocks.
        few_samples, stream = concatenate_if_few(blocks)
        if few_samples:
            x, y = few_samples
            return FewSamples(x=x, y=y, weights=None)
        return accumulate(stream)

    def learning_curve(self, source: KnownSource, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return a readout for each of the ``sizes``, numbers of training rows, in each draw; see `ridge_curve`."""
        return ridge_curve(source, sizes, self.targets(source), self.alphas)


def _stream(source: KnownSource, split: KnownSplit) -> RereadableBlocks:
    """Return the blocks of a split for moments and scores, as a stream that can be iterated several times."""
    return RereadableBlocks(source.blocks_for_products, (split,))


def _blocks_of_splits(source: KnownSource, splits: Sequence[KnownSplit]) -> Iterator[Block]:
    """Yield the blocks of some splits, one split after the other."""
    return itertools.chain.from_iterable(map(source.blocks, splits))


def stored_moments(
    source: KnownSource, targets: Targets, blocks: Iterable[Any], fold_of_sample: np.ndarray | None = None
) -> list[Moments] | None:
    """Return the moments of a column's training samples (a list of one), or of each fold; None if they are not stored.

    Moments are loaded from the column's entry, or else computed from ``blocks`` and stored there, if this is worth its
    time and space. Those of folds need ``fold_of_sample`` (n, 1), the fold of each sample of train, then of valid;
    ``blocks`` then have the folds of their samples.
    """
    # The names below do not tell selected rows from all rows, and only a single column has an entry to itself.
    if not isinstance(source, ColumnSource) or source.row_numbers:
        return None
    splits = ("train",) if fold_of_sample is None else KNOWN_SPLITS
    number_of_samples, width = sum(len(source.labels(split)) for split in splits), source.width()
    # With at most four samples per feature, the float64 moments would be larger than the float16 features.
    are_large = number_of_samples <= 4 * width
    are_fast = number_of_samples * width**2 / 2 < SMALL_WORK
    if are_large or are_fast:
        return None
    # Load the moments if the entry has all of them, else compute and store them.
    names = _names_of_moments(source.column, targets, fold_of_sample)
    stored = [loaded for name in names if (loaded := source.view.load_arrays(name))]
    if len(stored) == len(names):
        return [Moments.from_arrays(arrays) for arrays, _description in stored]
    if fold_of_sample is None:
        moments = [training_moments(blocks, targets)]
    else:
        moments = fold_moments(blocks, targets, len(names))
    for name, of_fold in zip(names, moments, strict=True):
        source.view.save_arrays(name, of_fold.to_arrays(), {"columns": [source.column.name]})
    return moments


def _names_of_moments(column: Column, targets: Targets, fold_of_sample: np.ndarray | None) -> list[str]:
    """Return the names under which an entry stores the moments of train (a list of one), or of each fold.

    The names contain what the moments depend on: the column, the class weights and the folds.
    """
    suffix = f"-{column.name}".replace("/", "-")
    if targets.class_weights:
        # The weights depend on the splits in which classes were counted, so their digest tells these apart.
        weights_digest = hashlib.sha256(repr(targets.class_weights).encode()).hexdigest()[:8]
        suffix = f"-weighted{weights_digest}{suffix}"
    if fold_of_sample is None:
        return [f"train{suffix}"]
    # The digest tells apart the folds of other rows and of other versions of scikit-learn, which draws them.
    folds = int(fold_of_sample.max()) + 1
    folds_digest = hashlib.sha256(fold_of_sample.astype("<i8").tobytes()).hexdigest()[:8]
    return [f"fold{number}of{folds}-{folds_digest}{suffix}" for number in range(folds)]


def ridge_curve(
    source: KnownSource, sizes: Sequence[int], targets: Targets, alphas: np.ndarray
) -> list[CurveReadout]:
    """Return a readout for each of the ``sizes`` in each of `CURVE_DRAWS` random draws of the training rows.

    The rows of a size contain those of all smaller sizes of the same draw, and have about the shares of classes of all
    rows. Valid chooses a penalty for each size of each draw.
    """
    readouts: list[CurveReadout] = []
    with meter("learning curve", CURVE_DRAWS * len(sizes), unit="fits") as bar:
        for draw in range(CURVE_DRAWS):
            training_of_sizes = _nested_rows(source, sizes, targets, draw)
            for size, (blocks, moments) in zip(sizes, training_of_sizes, strict=True):
                # `sweep` fits to the moments if there are some, else to the blocks.
                sweep_result = sweep(
                    blocks,
                    source.stream("valid"),
                    targets,
                    alphas,
                    training=moments,
                    feature_weights=source.feature_weights,
                )
                score = float(sweep_result.accuracy[sweep_result.best])
                readouts.append(CurveReadout(size, score, sweep_result.readout()))
                bar.advance(1)
    return readouts


def _nested_rows(
    source: KnownSource, sizes: Sequence[int], targets: Targets, draw: int
) -> Iterator[tuple[Iterable[Block], Moments | None]]:
    """Yield the training samples of each size, as blocks and None, or as no blocks and the moments of the samples."""
    # Each sample comes with the index of the size that adds it. A size contains the samples that it and all smaller
    # sizes add. ``few_samples`` are all of them if they are fewer than the features; else None.
    few_samples, blocks = concatenate_if_few(curve_blocks(source, np.asarray(sizes), targets.classes, draw))
    if few_samples is None:
        # One pass gives the moments of the samples that each size adds; their running sums are those of the sizes.
        added_moments = fold_moments(blocks, targets, len(sizes))
        for moments in itertools.accumulate(added_moments):
            yield (), moments
        return
    # With fewer samples than features, moments would take hours.
    x, y, index_of_sample = few_samples
    for index in range(len(sizes)):
        is_in_size = index_of_sample <= index
        yield [(x[is_in_size], y[is_in_size])], None
