"""What `fit` asks of a kind of readout: to fit a source, to refit its choice, and to hold out valid."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar, NamedTuple

import numpy as np

from reservoir.readouts.linear import Block, Readout, Targets, balanced_weights
from reservoir_pipelines.fitting.column_fit import ColumnFit
from reservoir_pipelines.fitting.cost import RidgeSize
from reservoir_pipelines.fitting.entry_view import KNOWN, KnownSplit
from reservoir_pipelines.fitting.learning_curve import CurveReadout
from reservoir_pipelines.fitting.source import Source


@dataclass(frozen=True, kw_only=True)
class Fitter(ABC):
    """A kind of readout with its settings: it fits all settings to a source, and chooses one without test rows."""

    kind: ClassVar[str]
    # Whether the probabilities of a readout that was chosen on valid are calibrated there.
    calibrates: ClassVar[bool] = True
    has_curve: ClassVar[bool] = False  # whether `learning_curve` is defined
    classes: int
    balanced: bool = False
    folds: int = 0  # of cross-validation over train and valid; 0 for a choice on valid
    repeats: int = 1  # of the folds
    refits: bool = False  # whether `refit` fits a readout that was chosen on valid again to train and valid

    @property
    @abstractmethod
    def settings(self) -> int:
        """The number of settings that are tried."""

    @abstractmethod
    def fit(self, source: Source) -> ColumnFit:
        """Fit every setting to a source and choose one."""

    def refit(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the final readout: the chosen one, fitted to all rows that may be used; ``alpha`` is its penalty."""
        return chosen

    def holdout(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the chosen readout as fitted without the rows of valid."""
        return chosen

    @abstractmethod
    def without_wider_grid(self) -> "Fitter":
        """Return a fitter that tries no further settings than its own, for a race."""

    @abstractmethod
    def without_choice(self) -> "Fitter":
        """Return a fitter with one fixed penalty if it has penalties, for data whose folds cannot choose one."""

    @abstractmethod
    def with_setting_of(self, fit: ColumnFit) -> "Fitter":
        """Return a fitter that tries only the setting that a fit of this fitter has chosen."""

    def learning_curve(self, source: Source, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return readouts fitted to each number of training rows."""
        raise NotImplementedError(f"{self.kind} readouts have no learning curve")


def targets_of(
    source: Source, classes: int, *, balanced: bool = False, splits: Sequence[KnownSplit] = ("train",)
) -> Targets:
    """Return the coding of a source's labels; if ``balanced``, with class weights counted over some splits."""
    labels = np.concatenate([source.labels(split) for split in splits])
    if not balanced:
        return Targets(labels.shape[1], classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(labels.shape[1], classes, balanced_weights(counts))


def all_blocks(source: Source) -> Iterator[Block]:
    """Yield the samples of train, then of valid."""
    return chain.from_iterable(map(source.blocks, KNOWN))


class Choice(NamedTuple):
    """A chosen readout: the best setting of a fit, its source, and the fitter that fitted it."""

    fit: ColumnFit
    source: Source
    fitter: Fitter

    @property
    def refit_work(self) -> float:
        """Estimated multiplications of a fit of a single penalty without folds."""
        return replace(size_of(self.source, self.fitter), penalties=1, folds=0).work


def fit_source(fitter: Fitter, source: Source) -> ColumnFit:
    """Return the fit of a source, with the scores of its held-out samples."""
    fit = fitter.fit(source)
    if fit.sample_scores:
        return fit
    return replace(fit, sample_scores=partial(_valid_sample_scores, fit, source))


def _valid_sample_scores(fit: ColumnFit, source: Source) -> np.ndarray:
    readout = fit.readout
    pairs = [(readout.scores(x), y) for x, y in source.blocks("valid")]
    return readout.targets.sample_scores(*map(np.concatenate, zip(*pairs, strict=True)))


def size_of(source: Source, fitter: Fitter) -> RidgeSize:
    """Return the sizes that decide the cost of a fit; for other readouts than ridge, those of a ridge readout."""
    samples = {split: len(source.labels(split)) for split in KNOWN}
    return RidgeSize(
        samples=sum(samples.values()) if fitter.folds else samples["train"],
        held_out=samples["valid"],
        width=source.width(),
        targets=source.labels("train").shape[1] * (fitter.classes if fitter.classes > 2 else 1),
        penalties=fitter.settings,
        folds=fitter.folds,
        repeats=fitter.repeats,
    )
