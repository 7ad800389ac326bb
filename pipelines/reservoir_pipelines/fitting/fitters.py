"""The kinds of readout that ``fit`` tries: ridge, logistic, and (in `sklearn_readout`) any scikit-learn estimator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reservoir import InputError
from reservoir.options import FitOptions
from reservoir.plan import AUTO_FOLDS, default_folds, repeats_of
from reservoir.readouts import (
    DEFAULT_ALPHAS,
    LOGISTIC_ALPHAS,
    LinearReadout,
    Moments,
    RereadableBlocks,
    Targets,
    cross_sweep,
    gather,
    logistic_sweep,
    parse_alphas,
    ridge_path,
    solve,
    sweep,
    training_moments,
)
from reservoir_pipelines.fitting.column_fit import ColumnFit, column_fit, make_targets, with_wider_grid
from reservoir_pipelines.fitting.column_moments import ColumnMoments, column_moments, load_or_compute
from reservoir_pipelines.fitting.raw import emphasis_of
from reservoir_pipelines.fitting.sklearn_readout import EstimatorFitter
from reservoir_pipelines.fitting.sources import Source, fold_blocks, in_memory_if_small


class Fitter(Protocol):
    """Fits one kind of readout to a source under all its settings."""

    def cached_moments(self, source: Source) -> ColumnMoments | None:
        """Return the stored moments that it needs of a source; None if it reads the source itself."""
        ...

    def fit(self, source: Source) -> ColumnFit:
        """Fit every setting to a source and choose one."""
        ...


@dataclass(frozen=True, kw_only=True)
class RidgeFitter:
    """Exact ridge readouts of every penalty, chosen on valid, or by cross-validation over train and valid.

    ``folds`` is 0 for a choice on valid. ``refits``: what was chosen on valid is then fitted to train and valid.
    ``widens``: where an end of ``alphas`` scores best, further penalties are tried.
    """

    classes: int
    alphas: np.ndarray
    folds: int = 0
    repeats: int = 1
    refits: bool = False
    balanced: bool = False
    widens: bool = True
    one_standard_error: bool = False

    def cached_moments(self, source: Source) -> ColumnMoments | None:
        """Return the moments of the training samples, or of each fold; those of repeated folds are not stored."""
        if self.repeats > 1:
            return None
        return column_moments(source, self.targets(source), self.folds)

    def targets(self, source: Source) -> Targets:
        """Return the coding of a source's labels; class weights count all rows that the final readout is fitted to."""
        splits = ("train", "valid") if self.folds or self.refits else ("train",)
        return make_targets(source, self.classes, self.balanced, splits)

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        targets = self.targets(source)
        moments = load_or_compute(self.cached_moments(source))
        emphasis = emphasis_of(source)
        train, valid = (RereadableBlocks(source.blocks, (split,)) for split in ("train", "valid"))
        folded = ()
        if self.folds:
            folded = in_memory_if_small(RereadableBlocks(fold_blocks, (source, self.folds, self.classes, self.repeats)))

        def fitted(alphas: np.ndarray) -> ColumnFit:
            if self.folds:
                found = cross_sweep(
                    folded,
                    targets,
                    alphas,
                    folds=self.folds,
                    repeats=self.repeats,
                    one_standard_error=self.one_standard_error,
                    moments=moments,
                    emphasis=emphasis,
                )
            else:
                of_train = moments[0] if moments else None
                found = sweep(train, valid, targets, alphas, moments=of_train, emphasis=emphasis)
            return column_fit("ridge", source.columns, found)

        return with_wider_grid(fitted, self.alphas) if self.widens else fitted(self.alphas)

    def refit(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout that was chosen on valid, fitted to train and valid; its temperature stays as it was."""
        alphas, emphasis = np.array([alpha]), emphasis_of(source)
        moments = load_or_compute(self.cached_moments(source))
        if moments:
            both = moments[0] + training_moments(source.blocks("valid"), chosen.targets)
            path = ridge_path(both, alphas, emphasis=emphasis)
        else:
            blocks = itertools.chain(source.blocks("train"), source.blocks("valid"))
            path = solve(gather(blocks, chosen.targets), alphas, emphasis)
        return path.readout(0, chosen.targets, chosen.temperature)


@dataclass(frozen=True, kw_only=True)
class LogisticFitter:
    """Multinomial logistic readouts of every penalty (1 / C of scikit-learn), chosen on valid."""

    classes: int
    alphas: np.ndarray
    balanced: bool = False
    widens: bool = True

    def cached_moments(self, source: Source) -> ColumnMoments | None:
        """Return the moments of the training samples: their principal axes make the solver fast."""
        return column_moments(source, make_targets(source, self.classes, self.balanced))

    def fit(self, source: Source) -> ColumnFit:
        """Fit every penalty to a source and choose one."""
        targets = make_targets(source, self.classes, self.balanced)
        train, valid = (RereadableBlocks(source.blocks, (split,)) for split in ("train", "valid"))
        moments: list[Moments] | None = load_or_compute(self.cached_moments(source))
        of_train = moments[0] if moments else None

        def fitted(alphas: np.ndarray) -> ColumnFit:
            found = logistic_sweep(train, valid, targets, alphas, moments=of_train)
            return column_fit("logistic", source.columns, found)

        return with_wider_grid(fitted, self.alphas) if self.widens else fitted(self.alphas)


def make_fitter(options: FitOptions, classes: int, rows: Mapping[str, int], groups: int | None = None) -> Fitter:
    """Return the fitter of the options for a task with so many rows in each split, which form so many groups."""
    readout, alphas, balanced = options.readout, options.alphas, options.class_weight == "balanced"
    folds, repeats = _folds(options, rows, groups or rows["train"] + rows["valid"])
    if options.one_standard_error and not folds:
        raise InputError("--one-standard-error needs cross-validation of ridge readouts; add --select cv5")
    if balanced and not classes:
        raise InputError("--class-weight balanced: the task has no classes; leave it out")
    if readout == "ridge":
        return RidgeFitter(
            classes=classes,
            alphas=parse_alphas(alphas) if alphas else DEFAULT_ALPHAS,
            folds=folds,
            repeats=repeats,
            refits=options.select == "auto" and not folds,
            balanced=balanced,
            widens=not alphas,
            one_standard_error=options.one_standard_error,
        )
    if folds:
        raise InputError(f"--select {options.select}: cross-validation is for ridge; choose {readout} on valid")
    if readout == "logistic":
        if not classes:
            raise InputError("--readout logistic: the task has no classes; use ridge")
        values = parse_alphas(alphas) if alphas else LOGISTIC_ALPHAS
        return LogisticFitter(classes=classes, alphas=values, balanced=balanced, widens=not alphas)
    if alphas:
        raise InputError(f"--alphas: {readout} takes its parameters after a colon, as in sklearn.svm.LinearSVC:C=0.1,1")
    return EstimatorFitter.parse(readout, classes, balanced=balanced)


def _folds(options: FitOptions, rows: Mapping[str, int], units: int) -> tuple[int, int]:
    """Return the number of folds, 0 for the validation split, and how often cross-validation is repeated."""
    select = options.select
    if select == "auto":
        if str(options.columns).startswith("best:") or options.readout != "ridge":
            return 0, 1
        if options.one_standard_error:
            return min(AUTO_FOLDS, units), repeats_of(rows["train"])
        folds, repeats = default_folds(rows["train"], rows["valid"])
        return min(folds, units), repeats
    if select == "valid":
        return 0, 1
    number = select.removeprefix("cv")
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose auto, valid, or cvK with K of at least 2, such as cv5")
    return int(number), 1
