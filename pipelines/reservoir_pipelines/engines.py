"""The kinds of readout that ``fit`` can sweep: ridge, logistic, and any scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reservoir import InputError
from reservoir.readouts import (
    LOGISTIC_ALPHAS,
    Moments,
    Targets,
    cross_sweep,
    fold_moments,
    logistic_sweep,
    parse_alphas,
    sweep,
)
from reservoir_pipelines.sources import Source, SplitBlocks, fold_blocks
from reservoir_pipelines.trials import Trial, make_targets, trial_of

if TYPE_CHECKING:
    from reservoir_cache import Entry

    from reservoir.readouts import Sweep

RIDGE_ALPHAS = "1e-2:1e6:25"


class Engine(Protocol):
    """Something that fits one kind of readout under all its settings."""

    def run(self, source: Source, entry: Entry | None = None) -> Trial:
        """Fit and choose; what can be kept for the next sweep is kept in the entry."""
        ...


@dataclass(frozen=True, kw_only=True)
class RidgeEngine:
    """Exact ridge readouts of every penalty.

    Parameters
    ----------
    classes : int
        Classes per output; 0 for regression.
    alphas : ndarray, (A,)
        Penalties on standardised features.
    folds : int, default 0
        0 chooses on the validation split, K >= 2 by K-fold cross-validation over train and valid.
    balanced : bool, default False
        Count all classes the same in fitting.
    """

    classes: int
    alphas: np.ndarray
    folds: int = 0
    balanced: bool = False

    def run(self, source: Source, entry: Entry | None = None) -> Trial:
        """Sweep one source, from stored moments where there are."""
        targets = make_targets(source, self.classes, self.balanced)
        keep = entry if not self.balanced else None
        swept = self._by_folds(source, targets, keep) if self.folds else self._by_valid(source, targets, keep)
        return trial_of("ridge", source, swept)

    def _by_valid(self, source: Source, targets: Targets, entry: Entry | None) -> Sweep:
        name = f"train-{_file_name(source)}"
        stored = _stored(entry, name, source)
        if stored:
            return sweep((), source.blocks("valid"), targets, self.alphas, moments=stored)
        swept = sweep(source.blocks("train"), source.blocks("valid"), targets, self.alphas)
        _keep(entry, name, source, swept.moments)
        return swept

    def _by_folds(self, source: Source, targets: Targets, entry: Entry | None) -> Sweep:
        blocks = _Again(source, self.folds)
        names = [f"cv{self.folds}-{k}-{_file_name(source)}" for k in range(self.folds)]
        moments = [_stored(entry, name, source) for name in names]
        if not all(moments):
            width = next(iter(blocks))[0].shape[1]
            count = sum(len(x) for x, _, _ in blocks)
            if count < 4 * width:  # few samples: the kernel form, or moments larger than what they would spare
                return cross_sweep(blocks, targets, self.alphas, folds=self.folds)
            moments = fold_moments(blocks, targets, self.folds)
            for name, part in zip(names, moments, strict=True):
                _keep(entry, name, source, part)
        return cross_sweep(blocks, targets, self.alphas, folds=self.folds, moments=[m for m in moments if m])


@dataclass(frozen=True, kw_only=True)
class LogisticEngine:
    """Multinomial logistic readouts of every penalty, from passes that serve all of them.

    Parameters
    ----------
    classes : int
        Classes per output.
    alphas : ndarray, (A,)
        Penalties on standardised features, scikit-learn's 1 / C.
    balanced : bool, default False
        Count all classes the same in fitting.
    """

    classes: int
    alphas: np.ndarray
    balanced: bool = False

    def run(self, source: Source, entry: Entry | None = None) -> Trial:
        """Sweep one source."""
        targets = make_targets(source, self.classes, self.balanced)
        swept = logistic_sweep(SplitBlocks(source, "train"), SplitBlocks(source, "valid"), targets, self.alphas)
        return trial_of("logistic", source, swept)


def make_engine(
    readout: str, classes: int, alphas: str | None = None, select: str = "valid", *, balanced: bool = False
) -> Engine:
    """Return the engine of a readout's name.

    Parameters
    ----------
    readout : str
        ``ridge``, ``logistic``, or the import path of a scikit-learn estimator with parameters to try, as in
        ``sklearn.svm.LinearSVC:C=0.1,1``.
    classes : int
        Classes per output; 0 for regression.
    alphas : str, optional
        Penalties LO:HI:N; by default 1e-2:1e6:25 for ridge, 1e-1:1e5:10 for logistic.
    select : str, default "valid"
        ``valid``, or ``cvK`` for K-fold cross-validation (ridge only).
    balanced : bool, default False
        Count all classes the same in fitting.

    Raises
    ------
    InputError
        If there is no such readout, or the settings do not go together.
    """
    folds = _folds(select)
    if balanced and not classes:
        raise InputError("--class-weight balanced: the task has no classes")
    if readout == "ridge":
        return RidgeEngine(classes=classes, alphas=parse_alphas(alphas or RIDGE_ALPHAS), folds=folds, balanced=balanced)
    if folds:
        raise InputError(f"--select {select}: cross-validation is for ridge; choose {readout} on valid")
    if readout == "logistic":
        if not classes:
            raise InputError("--readout logistic: the task has no classes; use ridge")
        values = parse_alphas(alphas) if alphas else LOGISTIC_ALPHAS
        return LogisticEngine(classes=classes, alphas=values, balanced=balanced)
    from reservoir_pipelines.estimators import EstimatorEngine

    if alphas:
        raise InputError(f"--alphas: {readout} takes its parameters after a colon, as in sklearn.svm.LinearSVC:C=0.1,1")
    return EstimatorEngine.parse(readout, classes, balanced=balanced)


@dataclass(frozen=True)
class _Again:
    """The samples with their folds, as often as they are iterated."""

    source: Source
    folds: int

    def __iter__(self) -> Any:
        return fold_blocks(self.source, self.folds)


def _folds(select: str) -> int:
    if select == "valid":
        return 0
    number = select.removeprefix("cv")
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose valid, or cvK with K of at least 2, such as cv5")
    return int(number)


def _file_name(source: Source) -> str:
    return source.name.replace("/", "-")


def _stored(entry: Entry | None, name: str, source: Source) -> Moments | None:
    found = entry.load_arrays(name) if entry and len(source.columns) == 1 else None
    return Moments.from_arrays(found[0]) if found else None


def _keep(entry: Entry | None, name: str, source: Source, moments: Moments | None) -> None:
    # Below this many samples the float64 moments are larger than the float16 features they would spare reading.
    if entry and moments and len(source.columns) == 1 and moments.count > 4 * moments.width:
        entry.save_arrays(name, moments.to_arrays(), {"columns": list(source.columns)})
