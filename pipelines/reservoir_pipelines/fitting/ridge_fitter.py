"""Exact ridge readouts of penalties, chosen on valid or by cross-validation; their moments and learning curves."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from reservoir.column import Columns
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
from reservoir_pipelines.fitting.folds import assign_folds, fold_blocks, stage_blocks
from reservoir_pipelines.fitting.source import (
    KNOWN,
    ColumnSource,
    KnownSplit,
    Labelling,
    Relabelled,
    Source,
    in_memory_if_small,
)
from reservoir_pipelines.output import meter

# Equations of a system from which some samples tell which penalties are tried on all. All penalties of a grid need a
# reduction of the system, which takes eight times as long as a factorisation for one of them.
MANY_EQUATIONS = LARGE_MATRIX
# Numbers from one promising penalty to the next: scores change little between neighbours of the grid.
NEXT = 2
MIN_IN_FOLD = 16  # samples of each fold, expected, that choose penalties: fewer may be none
CURVE_DRAWS = 5  # random draws of the rows
SMALL_WORK = 1e9
"""Multiplications below which moments are not stored: to write and sync their files takes longer than to compute them.

On 2,000 texts and 288 features, the files took four fifths of the time of the moments, and an eighth of that of `fit`.
"""


@dataclass(frozen=True, kw_only=True)
class RidgeFitter(PenaltyFitter):
    """Exact ridge readouts."""

    kind = "ridge"
    coding: Targets | None = None  # of the labels, if it is decided before the fit
    # Whether most penalties are tried on some samples alone if a system has many equations.
    narrows: bool = False
    # The kernel matrix of the last fit, by columns. A fit with more columns adds only that of the new ones.
    _kernels: dict[Columns, KernelMatrix] = field(init=False, default_factory=dict)

    @property
    def one_standard_error(self) -> bool:
        """Whether the largest penalty within one standard error of the best is chosen."""
        return prefers_large_penalty(self.classes, self.repeats)

    def targets(self, source: Source) -> Targets:
        """Return the coding of a source's labels; class weights count all rows to which the final readout is fitted."""
        if self.coding is not None:
            return self.coding
        splits = KNOWN if self.folds or self.refits else ("train",)
        return targets_of(source, self.classes, balanced=self.balanced, splits=splits)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        return self._fit_folds(source) if self.folds else self._fit_valid(source)

    def _fit_valid(self, source: Source) -> ColumnFit:
        """Choose by the score on valid."""
        targets = self.targets(source)
        train, valid = _stream(source, "train"), _stream(source, "valid")
        # No features of train are read again if the grid is widened.
        moments = stored_moments(source, targets, train)
        training = moments[0] if moments else gather(train, targets)  # without folds, a list of one
        weights = source.feature_weights
        sweep_of = partial(sweep, train, valid, targets, training=training, feature_weights=weights)
        samples, width = len(source.labels("train")), source.width()
        if not self.tries_few(samples, width):
            return self.best_of(source, sweep_of)

        def sweep_of_some(some: Sequence[Block], alphas: np.ndarray) -> Sweep:
            return sweep(some, valid, targets, alphas, feature_weights=weights)

        best_of_some = best_penalty_for_subset(train, sweep_of_some, self.alphas, samples=samples)
        return self._fit_around(source, sweep_of, best_of_some)

    def tries_few(self, samples: int, width: int) -> bool:
        """Return whether only the penalties that are promising for some of the training samples are tried on all."""
        has_many = len(self.alphas) > FEW_PENALTIES and min(samples, width) > MANY_EQUATIONS
        return self.narrows and has_many

    def _fit_around(
        self, source: Source, sweep_of: Callable[[np.ndarray], Sweep], number: int
    ) -> ColumnFit:
        """Fit the penalty with a ``number`` in the grid and one on each side, until the middle one is the best."""
        last = len(self.alphas) - 1
        middles: set[int] = set()  # numbers of the penalties that have been in the middle
        while True:
            middles.add(number)
            neighbours = np.unique(np.clip([number - NEXT, number, number + NEXT], 0, last))
            fit = column_fit(self.kind, source.columns, sweep_of(self.alphas[neighbours]))
            best = int(neighbours[fit.best])
            if best in (0, last) and self.widens:  # all penalties, and wider ones, as without samples
                return self.best_of(source, sweep_of)
            if best in middles:
                return fit
            number = best

    def _fit_folds(self, source: Source) -> ColumnFit:
        """Choose by cross-validation over train and valid."""
        targets, feature_weights = self.targets(source), source.feature_weights
        numbers = assign_folds(source, self.folds, self.classes, self.repeats)
        stream = RereadableBlocks(fold_blocks, (source, numbers))
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, stream, numbers) if self.repeats == 1 else None
        blocks = in_memory_if_small(stream)
        samples, width = len(numbers), source.width()
        # The sample of rows must have some of each fold: groups, and so folds, may differ in size.
        expected_in_fold = np.bincount(numbers[:, 0]).min() * CHOICE_SAMPLES / samples
        tries_few = self.tries_few(samples, width) and bool(expected_in_fold >= MIN_IN_FOLD)
        if tries_few and moments is None and samples >= width and self.repeats == 1:
            moments = fold_moments(blocks, targets, self.folds)  # once for all penalties

        def sweep_of(alphas: np.ndarray) -> Sweep:
            """Fit every penalty in each fold, and remember the kernel matrix for the next column."""
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

        if not tries_few:
            return self.best_of(source, sweep_of)

        def sweep_of_some(some: Sequence[FoldBlock], alphas: np.ndarray) -> Sweep:
            return cross_sweep(some, targets, alphas, folds=self.folds, feature_weights=feature_weights)

        best_of_some = best_penalty_for_subset(blocks, sweep_of_some, self.alphas, samples=samples)
        return self._fit_around(source, sweep_of, best_of_some)

    def _kernel_of_first(self, columns: Columns) -> KernelMatrix | None:
        """Return the kernel matrix of the first of some columns, if the last fit left one."""
        for first, kernel in self._kernels.items():
            if columns[: len(first)] == first:
                return kernel
        return None

    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train alone.

        Its temperature is that of ``chosen``, which was fitted to held-out scores; a readout that is fitted to train
        alone has no held-out scores.
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

    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with the targets and temperature of another."""
        if moments := stored_moments(source, self.targets(source), _stream(source, "train")):
            training = moments[0] + training_moments(_stream(source, "valid"), chosen.targets)
        else:
            both = itertools.chain(_stream(source, "train"), _stream(source, "valid"))
            training = gather(both, chosen.targets)
        path = ridge_path(training, np.array([alpha]), source.feature_weights)
        return path.readout(0, chosen.targets, chosen.temperature)

    def refit_labels(
        self, source: Source, chosen: Readout, alpha: float | None, labellings: Sequence[Labelling]
    ) -> list[Readout]:
        """Return a readout of the chosen penalty for each labelling; all share the products of the features."""
        assert isinstance(chosen, LinearReadout), "ridge readouts are linear"
        targets = chosen.targets
        if targets.class_weights:  # the weights of samples, and so the products, depend on the labels
            return super().refit_labels(source, chosen, alpha, labellings)
        # The targets of all labellings stand side by side.
        coded: Labelling = {
            split: np.concatenate([targets.coded(labels[split]) for labels in labellings], axis=1)
            for split in self.fitted_splits
        }
        blocks = RereadableBlocks(_blocks_of_splits, (Relabelled(source, coded), self.fitted_splits))
        # The products of the features: those of train that the entry stores, with those of valid added; or computed
        # here, as moments or, if samples are fewer than features, from the samples themselves.
        if stored := stored_moments(source, self.targets(source), _stream(source, "train")):
            moments = stored[0]
            if "valid" in self.fitted_splits:
                moments += training_moments(_stream(source, "valid"), targets)
            training: TrainingData = moments.with_targets(blocks)
        else:
            few_samples, stream = concatenate_if_few(blocks)
            if few_samples:
                x, y = few_samples
                training = FewSamples(x=x, y=y, weights=None)
            else:
                training = accumulate(stream)
        path = ridge_path(training, np.array([penalty_of(alpha)]), source.feature_weights)
        # The solution has the targets of each labelling in columns of their own.
        parts = np.split(np.arange(path.coef.shape[2]), len(labellings))
        return [
            LinearReadout(coef=path.coef[0][:, part], intercept=path.intercept[0][part], targets=targets)
            for part in parts
        ]

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return a readout for each number of training rows of some random draws; see `ridge_curve`."""
        return ridge_curve(source, sizes, self.targets(source), self.alphas)


def _stream(source: Source, split: KnownSplit) -> RereadableBlocks:
    """Return the blocks of a split for moments and scores, as a stream that can be iterated several times."""
    return RereadableBlocks(source.blocks_for_products, (split,))


def _blocks_of_splits(source: Source, splits: Sequence[KnownSplit]) -> Iterator[Block]:
    """Yield the blocks of some splits, one split after the other."""
    return itertools.chain.from_iterable(map(source.blocks, splits))


def stored_moments(
    source: Source, targets: Targets, blocks: Iterable[Any], fold_of_sample: np.ndarray | None = None
) -> list[Moments] | None:
    """Return the moments of a column's training samples, or of each fold; None if they are not worth storing.

    Moments are stored in the column's entry. Those of folds need ``fold_of_sample`` (n, 1), the fold of
    each sample of train, then of valid.
    """
    if not isinstance(source, ColumnSource) or source.some:
        return None
    # With at most four samples per feature, the float64 moments would be larger than the float16 features.
    splits = ("train",) if fold_of_sample is None else KNOWN
    number_of_samples, width = sum(len(source.labels(split)) for split in splits), source.width()
    if number_of_samples <= 4 * width or number_of_samples * width**2 / 2 < SMALL_WORK:
        return None
    # What the moments depend on is in their names: column, class weights and folds.
    weights = targets.class_weights
    column = source.column.name.replace("/", "-")
    # The weights depend on the splits that were counted.
    digest = hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
    suffix = f"-weighted{digest}-{column}" if weights else f"-{column}"
    if fold_of_sample is None:
        folds, names = 0, [f"train{suffix}"]
    else:
        # The digest tells apart the folds of other rows and of other versions of scikit-learn, which draws them.
        folds = int(fold_of_sample.max()) + 1
        folds_digest = hashlib.sha256(fold_of_sample.astype("<i8").tobytes()).hexdigest()[:8]
        names = [f"fold{number}of{folds}-{folds_digest}{suffix}" for number in range(folds)]
    stored = [source.view.load_arrays(name) for name in names]
    if all(stored):
        return [Moments.from_arrays(arrays) for arrays, _ in filter(None, stored)]
    moments = fold_moments(blocks, targets, folds) if folds else [training_moments(blocks, targets)]
    for name, part in zip(names, moments, strict=True):
        source.view.save_arrays(name, part.to_arrays(), {"columns": [source.column.name]})
    return moments


def ridge_curve(
    source: Source, sizes: Sequence[int], targets: Targets, alphas: np.ndarray
) -> list[CurveReadout]:
    """Return a readout for each number of training rows of each of `CURVE_DRAWS` nested, stratified draws."""
    readouts: list[CurveReadout] = []
    with meter("learning curve", CURVE_DRAWS * len(sizes), unit="fits") as bar:
        for draw in range(CURVE_DRAWS):
            for size, (blocks, moments) in zip(
                sizes, _nested_rows(source, sizes, targets, draw), strict=True
            ):
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
    source: Source, sizes: Sequence[int], targets: Targets, draw: int
) -> Iterator[tuple[Iterable[Block], Moments | None]]:
    """Yield the training samples of each size as arguments of `sweep`.

    They are blocks of samples and None, or no blocks and the moments of the samples.
    """
    # Each sample comes with the number of the size that adds it. A size contains the samples that it and all smaller
    # sizes add. If samples are fewer than features, `concatenate_if_few` returns all of them; else None, and
    # their blocks.
    few_samples, blocks = concatenate_if_few(stage_blocks(source, np.asarray(sizes), targets.classes, draw))
    if few_samples is None:
        # One pass gives the moments of the samples that each size adds; their running sums are those of the sizes.
        added_moments = fold_moments(blocks, targets, len(sizes))
        for moments in itertools.accumulate(added_moments):
            yield (), moments
        return
    # With fewer samples than features, moments would take hours.
    x, y, number_of_size = few_samples
    for number in range(len(sizes)):
        is_in_size = number_of_size <= number
        yield [(x[is_in_size], y[is_in_size])], None
