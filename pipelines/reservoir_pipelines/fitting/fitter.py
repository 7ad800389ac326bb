"""What `fit` asks of a kind of readout: to fit a source, to refit its choice, and to hold out valid."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar, NamedTuple, Self

import numpy as np

from reservoir.column import RAW, Columns, names_of
from reservoir.readouts.linear import Block, LinearReadout, Readout, Targets, balanced_weights
from reservoir.readouts.penalties import extended_alphas, fixed_penalty
from reservoir.readouts.sweep import Sweep
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    KnownSource,
    KnownSplit,
    Labelling,
    Relabelled,
    held_out_units,
)


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The scores of every setting of one readout on one source, and the index of the best setting."""

    columns: Columns
    results: tuple[Result, ...]  # one for each setting
    best: int  # the index of the best result
    # Returns the model of the best setting. `without_model` sets this and the next two fields to None, to save memory.
    solve: Callable[[], Readout] | None
    # Returns what each held-out sample adds to the best score, (n,). With folds these are the samples of train, then of
    # valid, else those of valid alone.
    sample_scores: Callable[[], np.ndarray] | None = None
    # Returns the scores (n, T) that the best setting gives the samples held out by cross-validation, their labels, and
    # perhaps their weights; None if valid chooses.
    held_out: Callable[[], tuple[np.ndarray, ...]] | None = None

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def readout(self) -> Readout:
        """The model of the best setting, solved anew each time."""
        assert self.solve is not None, "`add_fit` keeps the models of few fits"
        return self.solve()

    def without_model(self) -> "ColumnFit":
        """Return the results alone, because the models of many columns need much memory."""
        return replace(self, solve=None, sample_scores=None, held_out=None)


def column_fit(readout: str, columns: Columns, sweep_result: Sweep) -> ColumnFit:
    """Return the fit of a kind of ``readout`` to columns side by side, from its sweep over penalties."""
    # One result for each penalty, in the order of the sweep.
    path = sweep_result.path
    settings = zip(path.alphas, sweep_result.accuracy, sweep_result.loss, path.converged, strict=True)
    results = tuple(
        Result(
            columns=names_of(columns),
            readout=readout,
            metric=sweep_result.tally.targets.metric,
            alpha=float(alpha),
            valid_score=float(score),
            valid_loss=float(loss),
            converged=bool(converged),
        )
        for alpha, score, loss, converged in settings
    )
    # A `ColumnFit` has a function that returns the scores of single samples. Cross-validation has these scores already.
    # Those on valid are computed only when a comparison asks for them, by a function that `fit_source` adds.
    sample_scores = None
    if sweep_result.sample_scores is not None:
        sample_scores = partial(np.asarray, sweep_result.sample_scores)
    return ColumnFit(
        columns=columns,
        results=results,
        best=sweep_result.best,
        solve=sweep_result.readout,  # a method: the model is solved when it is used
        sample_scores=sample_scores,
        held_out=sweep_result.held_out,
    )


def add_fit(fits: list[ColumnFit], new: ColumnFit) -> None:
    """Append a fit to ``fits``, and drop the models there except those of the first, of the best and of the raw input.

    The first may be the default, and the raw input is a baseline, so both may be needed beside the best.
    """
    # A model that is not solved yet holds the features or their moments in memory.
    fits.append(new)
    best = max(fits, key=lambda fit: fit.result.sort_key)
    for number, fit in enumerate(fits):
        is_needed = number == 0 or fit is best or fit.columns == (RAW,)
        if not is_needed:
            fits[number] = fit.without_model()


class CurveReadout(NamedTuple):
    """A readout of a learning curve, fitted to some of the training rows, with the penalty that is best on valid."""

    rows: int  # number of training rows
    valid_score: float
    readout: LinearReadout


@dataclass(frozen=True, kw_only=True)
class Fitter(ABC):
    """A kind of readout with its settings: it fits all settings to a source, and chooses one without test rows."""

    kind: ClassVar[str]  # the name of the kind, such as "ridge"
    # Whether the probabilities of a readout that was chosen on valid are calibrated there.
    calibrates: ClassVar[bool] = True
    # Whether `code_length` can encode the labels given the features of a source, which it reads by linear readouts.
    has_code: ClassVar[bool] = True
    classes: int  # 0 for values
    balanced: bool = False  # whether all classes have the same weight in sum
    folds: int = 0  # of cross-validation over train and valid; 0 for a choice on valid
    repeats: int = 1  # how often different folds are drawn
    refits: bool = False  # whether `refit` fits a readout that was chosen on valid again to train and valid

    @property
    @abstractmethod
    def settings(self) -> int:
        """The number of settings that are tried."""

    @abstractmethod
    def fit(self, source: KnownSource) -> ColumnFit:
        """Fit every setting to a source and choose one."""

    def refit(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return the final readout: the chosen one, fitted to all rows that may be used; ``alpha`` is its penalty.

        A kind of readout that is not fitted again returns the chosen one, as it does here.
        """
        return chosen

    def fitted_without_valid(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout of the chosen setting that was not fitted to valid; ``alpha`` is its penalty.

        A readout that valid has chosen was fitted to train alone, so it is returned as it is.
        """
        return chosen

    def refit_labels(
        self, source: KnownSource, chosen: Readout, alpha: float | None, labellings: Sequence[Labelling]
    ) -> list[Readout]:
        """Return a readout of the chosen setting for each of several labellings, fitted as the final readout is."""
        raise NotImplementedError(f"{self.kind} readouts are not fitted to other labels")

    def units(self, source: KnownSource) -> np.ndarray:
        """Return the unit, row or group, of each sample in `ColumnFit.sample_scores`, (n,); see `held_out_units`."""
        # Folds hold out all samples of train and valid; without folds, those of valid are held out.
        return held_out_units(source, KNOWN_SPLITS if self.folds else ("valid",))

    @abstractmethod
    def without_wider_grid(self) -> "Fitter":
        """Return a fitter that tries no further settings than its own, for a race."""

    @abstractmethod
    def with_fixed_penalty(self) -> "Fitter":
        """Return a fitter with one fixed penalty if it has penalties, for data whose folds cannot choose one."""

    @abstractmethod
    def with_setting_of(self, fit: ColumnFit) -> "Fitter":
        """Return a fitter that tries only the setting that a fit of this fitter has chosen."""

    def learning_curve(self, source: KnownSource, sizes: Sequence[int]) -> list[CurveReadout]:
        """Return readouts fitted to each of the ``sizes``, which are numbers of training rows."""
        raise NotImplementedError(f"{self.kind} readouts have no learning curve")


def targets_of(
    source: KnownSource, classes: int, *, balanced: bool = False, splits: Sequence[KnownSplit] = ("train",)
) -> Targets:
    """Return the coding of a source's labels; if ``balanced``, with class weights from the counts in the ``splits``."""
    labels = np.concatenate([source.labels(split) for split in splits])
    outputs = labels.shape[1]
    if not balanced:
        return Targets(outputs, classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(outputs, classes, balanced_weights(counts))


def all_blocks(source: KnownSource) -> Iterator[Block]:
    """Yield the samples of train, then of valid."""
    return chain.from_iterable(map(source.blocks, KNOWN_SPLITS))


class Choice(NamedTuple):
    """A chosen readout: the best setting of a fit, its source, and the fitter that fitted it."""

    fit: ColumnFit
    source: KnownSource
    fitter: Fitter


def fit_source(fitter: Fitter, source: KnownSource) -> ColumnFit:
    """Return the fit of a source, with a function for the scores of its held-out samples."""
    fit = fitter.fit(source)
    has_sample_scores = fit.sample_scores is not None  # from cross-validation
    if has_sample_scores:
        return fit
    return replace(fit, sample_scores=partial(_valid_sample_scores, fit, source))


def _valid_sample_scores(fit: ColumnFit, source: KnownSource) -> np.ndarray:
    """Return what each sample of valid adds to the score of the best setting of a fit, (n,)."""
    readout = fit.readout
    scores: list[np.ndarray] = []  # of each block
    labels: list[np.ndarray] = []
    for x, y in source.blocks("valid"):
        scores.append(readout.scores(x))
        labels.append(y)
    return readout.targets.sample_scores(np.concatenate(scores), np.concatenate(labels))


def penalty_of(alpha: float | None) -> float:
    """Return the penalty of a result; 1 for the baseline of a constant feature, which is the same under any penalty."""
    return 1.0 if alpha is None else alpha


@dataclass(frozen=True, kw_only=True)
class PenaltyFitter(Fitter):
    """Linear readouts, one for each penalty of a grid."""

    alphas: np.ndarray  # the grid of penalties, (A,)
    widens: bool = True  # whether further penalties are tried if an end of ``alphas`` scores best

    @property
    def settings(self) -> int:
        """The number of penalties."""
        return len(self.alphas)

    def refit(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout that was chosen on valid, fitted again to train and valid if the fitter ``refits``."""
        if not self.refits:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_all(source, chosen, penalty_of(alpha))

    def fitted_without_valid(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return the chosen readout; one that cross-validation chose is fitted again, to train alone."""
        valid_has_chosen = not self.folds  # the readout, which was then fitted to train alone
        if valid_has_chosen:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_train(source, chosen, penalty_of(alpha))

    @property
    def fitted_splits(self) -> Sequence[KnownSplit]:
        """The splits to which the final readout is fitted."""
        return KNOWN_SPLITS if self.folds or self.refits else ("train",)

    def refit_labels(
        self, source: KnownSource, chosen: Readout, alpha: float | None, labellings: Sequence[Labelling]
    ) -> list[Readout]:
        """Return a readout of the chosen penalty for each of several labellings, fitted as the final readout is."""
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        fit = self._fit_all if "valid" in self.fitted_splits else self._fit_train
        return [fit(Relabelled(source, labels), chosen, penalty_of(alpha)) for labels in labellings]

    @abstractmethod
    def _fit_all(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train and valid, with targets and temperature of ``chosen``."""

    @abstractmethod
    def _fit_train(self, source: KnownSource, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return the readout of a penalty, fitted to train alone, with targets and temperature of ``chosen``."""

    def without_wider_grid(self) -> Self:
        """Return a fitter that tries only its own penalties."""
        return replace(self, widens=False)

    def with_fixed_penalty(self) -> Self:
        """Return a fitter with the one penalty that is nearest to `FIXED_ALPHA`."""
        return replace(self, alphas=fixed_penalty(self.alphas), widens=False)

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the penalty of a fit."""
        return replace(self, alphas=np.array([fit.result.alpha]), widens=False)

    def best_of(self, source: KnownSource, sweep_of: Callable[[np.ndarray], Sweep]) -> ColumnFit:
        """Return the fit of all penalties to a source; ``sweep_of`` fits and scores a grid of penalties.

        If the fitter ``widens``, and an end of the grid is better than all other penalties, a wider grid is tried once.
        """
        fit = column_fit(self.kind, source.columns, sweep_of(self.alphas))
        other_scores = [result.valid_score for result in fit.results if result is not fit.result]
        # A single penalty is never widened: the user, or an earlier step, has chosen it. Without other scores it
        # is compared with infinity, so it is not the best alone.
        is_best_alone = fit.result.valid_score > max(other_scores, default=math.inf)
        if not (self.widens and is_best_alone):
            return fit
        wider_grid = extended_alphas(self.alphas, fit.best)
        if wider_grid is None:  # the best penalty is not at an end, or that end is at its limit
            return fit
        return column_fit(self.kind, source.columns, sweep_of(wider_grid))
