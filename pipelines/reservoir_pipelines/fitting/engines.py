"""The kinds of readout that ``fit`` can sweep: ridge, logistic, and any scikit-learn estimator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from reservoir import InputError
from reservoir.options import FitOptions
from reservoir.plan import AUTO_FOLDS, default_folds, repeats_of
from reservoir.readouts import (
    DEFAULT_ALPHAS,
    LOGISTIC_ALPHAS,
    Again,
    LinearReadout,
    Moments,
    cross_sweep,
    logistic_sweep,
    parse_alphas,
    sweep,
)
from reservoir_pipelines.fitting.column_moments import ColumnMoments, column_moments, compute_moments
from reservoir_pipelines.fitting.raw import emphasis_of
from reservoir_pipelines.fitting.sklearn_readout import EstimatorEngine
from reservoir_pipelines.fitting.sources import Source, fold_blocks, hold
from reservoir_pipelines.fitting.trials import Trial, make_targets, trial_of, widened_trial

FEW_ROWS, FEW_PER_CLASS = 100, 5  # validation rows below which the choice among readouts is left to chance


class Engine(Protocol):
    """Something that fits one kind of readout under all its settings."""

    def moments(self, source: Source) -> ColumnMoments | None:
        """Return which moments of a source it takes and keeps; None where it reads the source itself."""
        ...

    def run(self, source: Source) -> Trial:
        """Fit and choose."""
        ...


@dataclass(frozen=True, kw_only=True)
class RidgeEngine:
    """Exact ridge readouts of every penalty, chosen on valid, or by K folds over train and valid."""

    classes: int
    alphas: np.ndarray
    folds: int = 0
    repeats: int = 1
    refits: bool = False
    balanced: bool = False
    widens: bool = True
    one_standard_error: bool = False

    def moments(self, source: Source) -> ColumnMoments | None:
        """Return the moments of the training samples, or of the folds; those of several deals are not kept."""
        if self.repeats > 1:
            return None
        return column_moments(source, make_targets(source, self.classes, self.balanced), self.folds)

    def run(self, source: Source) -> Trial:
        """Sweep one source, from kept moments where there are."""
        targets = make_targets(source, self.classes, self.balanced)
        moments = _kept(self.moments(source))
        train, valid = (Again(source.blocks, (split,)) for split in ("train", "valid"))
        deals = {"folds": self.folds, "repeats": self.repeats, "one_standard_error": self.one_standard_error}
        emphasis = emphasis_of(source)
        dealt = hold(Again(fold_blocks, (source, self.folds, self.classes, self.repeats))) if self.folds else ()

        def swept(alphas: np.ndarray) -> Trial:
            if self.folds:
                found = cross_sweep(dealt, targets, alphas, moments=moments, emphasis=emphasis, **deals)
            else:
                kept = moments[0] if moments else None
                found = sweep(train, valid, targets, alphas, moments=kept, emphasis=emphasis)
            return trial_of("ridge", source.columns, found)

        return widened_trial(swept, self.alphas, self.widens)

    def refit(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout chosen on valid, fitted to train and valid together; how sure it is stays as it was."""
        both = itertools.chain(source.blocks("train"), source.blocks("valid"))
        swept = sweep(both, source.blocks("valid"), chosen.targets, np.array([alpha]), emphasis=emphasis_of(source))
        return replace(swept.readout(), temperature=chosen.temperature)


@dataclass(frozen=True, kw_only=True)
class LogisticEngine:
    """Multinomial logistic readouts of every penalty (scikit-learn's 1 / C), from passes that serve all of them."""

    classes: int
    alphas: np.ndarray
    balanced: bool = False
    widens: bool = True

    def moments(self, source: Source) -> ColumnMoments | None:
        """Return the moments of the training samples: their principal axes make the solver fast."""
        return column_moments(source, make_targets(source, self.classes, self.balanced))

    def run(self, source: Source) -> Trial:
        """Sweep one source."""
        targets = make_targets(source, self.classes, self.balanced)
        train, valid = (Again(source.blocks, (split,)) for split in ("train", "valid"))
        kept = _kept(self.moments(source))
        moments = kept[0] if kept else None

        def swept(alphas: np.ndarray) -> Trial:
            return trial_of("logistic", source.columns, logistic_sweep(train, valid, targets, alphas, moments=moments))

        return widened_trial(swept, self.alphas, self.widens)


def few_rows(valid: int, classes: int) -> bool:
    """Return whether a validation split has too few rows to choose by."""
    return valid < max(FEW_ROWS, FEW_PER_CLASS * classes)


def make_engine(options: FitOptions, classes: int, rows: Mapping[str, int], groups: int | None = None) -> Engine:
    """Return the engine of a readout's name for a task with so many rows of each split, and so many groups of them."""
    readout, alphas, balanced = options.readout, options.alphas, options.class_weight == "balanced"
    folds, repeats = _folds(options, rows, groups or rows["train"] + rows["valid"])
    if options.one_standard_error and not folds:
        raise InputError("--one-standard-error: it is that over folds; add --select cv5, with ridge readouts")
    if balanced and not classes:
        raise InputError("--class-weight balanced: the task has no classes")
    if readout == "ridge":
        settings = {"folds": folds, "repeats": repeats, "refits": options.select == "auto" and not folds}
        values = parse_alphas(alphas) if alphas else DEFAULT_ALPHAS
        choice = {"one_standard_error": options.one_standard_error, "balanced": balanced, "widens": not alphas}
        return RidgeEngine(classes=classes, alphas=values, **settings, **choice)
    if folds:
        raise InputError(f"--select {options.select}: cross-validation is for ridge; choose {readout} on valid")
    if readout == "logistic":
        if not classes:
            raise InputError("--readout logistic: the task has no classes; use ridge")
        values = parse_alphas(alphas) if alphas else LOGISTIC_ALPHAS
        return LogisticEngine(classes=classes, alphas=values, balanced=balanced, widens=not alphas)
    if alphas:
        raise InputError(f"--alphas: {readout} takes its parameters after a colon, as in sklearn.svm.LinearSVC:C=0.1,1")
    return EstimatorEngine.parse(readout, classes, balanced=balanced)


def _folds(options: FitOptions, rows: Mapping[str, int], units: int) -> tuple[int, int]:
    """Return the folds of cross-validation, 0 for the validation split, and how often rows are dealt to them.

    See `reservoir.plan.default_folds` for what ``auto`` stands for.
    """
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


def _kept(wanted: ColumnMoments | None) -> list[Moments] | None:
    """Return the moments of a column, computed only where they are not kept."""
    if wanted is None:
        return None
    return wanted.load() or next(compute_moments([wanted]))
