"""Exact ridge readouts of every penalty, chosen on valid or by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from reservoir.column import Columns
from reservoir.readouts.linear import LinearReadout, RereadableBlocks, Targets
from reservoir.readouts.moments import training_moments
from reservoir.readouts.penalties import prefers_large_penalty
from reservoir.readouts.ridge import KernelMatrix, gather, ridge_path
from reservoir.readouts.sweep import Sweep, cross_sweep, sweep
from reservoir_pipelines.fitting.column_fit import ColumnFit
from reservoir_pipelines.fitting.entry_view import KNOWN
from reservoir_pipelines.fitting.fitter import all_blocks, targets_of
from reservoir_pipelines.fitting.folds import assign_folds, fold_blocks
from reservoir_pipelines.fitting.learning_curve import CurveReadout, ridge_curve
from reservoir_pipelines.fitting.penalty_fitter import PenaltyFitter
from reservoir_pipelines.fitting.source import Source, in_memory_if_small
from reservoir_pipelines.fitting.stored_moments import stored_moments


@dataclass(frozen=True, kw_only=True)
class RidgeFitter(PenaltyFitter):
    """Exact ridge readouts."""

    kind = "ridge"
    has_curve = True
    coding: Targets | None = None  # of the labels, if it is decided before the fit
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
        train, valid = source.stream("train"), source.stream("valid")
        moments = stored_moments(source, targets, train)
        sweep_of = partial(
            sweep,
            train,
            valid,
            targets,
            moments=moments[0] if moments else None,
            feature_weights=source.feature_weights,
        )
        return self.best_of(source, sweep_of)

    def _fit_folds(self, source: Source) -> ColumnFit:
        """Choose by cross-validation over train and valid."""
        targets, feature_weights = self.targets(source), source.feature_weights
        numbers = assign_folds(source, self.folds, self.classes, self.repeats)
        stream = RereadableBlocks(fold_blocks, (source, numbers))
        # Moments of repeated folds are not stored.
        moments = stored_moments(source, targets, stream, numbers) if self.repeats == 1 else None
        blocks = in_memory_if_small(stream)

        def sweep_of(alphas: np.ndarray) -> Sweep:
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
            if sweep_result.kernel and feature_weights is None:
                self._kernels.clear()
                self._kernels[source.columns] = sweep_result.kernel
            return sweep_result

        return self.best_of(source, sweep_of)

    def _kernel_of_first(self, columns: Columns) -> KernelMatrix | None:
        """Return the kernel matrix of the first of some columns, if the last fit left one."""
        for first, kernel in self._kernels.items():
            if columns[: len(first)] == first:
                return kernel
        return None

    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train, with the temperature of another."""
        targets, labels = self.targets(source), source.labels("train")
        # The kernel matrix of cross-validation covers train and valid, so no features are read.
        if kernel := self._kernels.get(source.columns):
            path = kernel.of_first_rows(len(labels)).path(targets.coded(labels), np.array([alpha]))
        else:
            path = ridge_path(
                gather(source.stream("train"), targets), np.array([alpha]), source.feature_weights
            )
        return path.readout(0, targets, chosen.temperature)

    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with the targets and temperature of another."""
        if moments := stored_moments(source, self.targets(source), source.stream("train")):
            training = moments[0] + training_moments(source.blocks("valid"), chosen.targets)
        else:
            training = gather(all_blocks(source), chosen.targets)
        path = ridge_path(training, np.array([alpha]), source.feature_weights)
        return path.readout(0, chosen.targets, chosen.temperature)

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return a readout for each number of training rows of some random draws; see `ridge_curve`."""
        return ridge_curve(source, sizes, self.targets(source), self.alphas)
