"""Readouts that are linear and have a penalty: what ridge and logistic readouts have in common."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from reservoir.readouts.linear import LinearReadout, Readout
from reservoir.readouts.penalties import extended_alphas, fixed_penalty
from reservoir.readouts.sweep import Sweep
from reservoir_pipelines.fitting.column_fit import ColumnFit, column_fit
from reservoir_pipelines.fitting.fitter import Fitter
from reservoir_pipelines.fitting.source import Source


@dataclass(frozen=True, kw_only=True)
class PenaltyFitter(Fitter):
    """Linear readouts of every penalty."""

    alphas: np.ndarray
    widens: bool = True  # try further penalties if an end of ``alphas`` scores best

    @property
    def settings(self) -> int:
        """The number of penalties."""
        return len(self.alphas)

    def refit(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout that was chosen on valid, fitted again to train and valid if the fitter ``refits``."""
        if not self.refits:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_all(source, chosen, float(alpha or 1))

    def holdout(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return the chosen readout; one that cross-validation chose is fitted to train alone."""
        if not self.folds:
            return chosen
        assert isinstance(chosen, LinearReadout), "readouts with a penalty are linear"
        return self._fit_train(source, chosen, float(alpha or 1))

    @abstractmethod
    def _fit_all(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout with the targets and the temperature of another, fitted to train and valid."""

    @abstractmethod
    def _fit_train(self, source: Source, chosen: LinearReadout, alpha: float) -> LinearReadout:
        """Return a readout with the targets and the temperature of another, fitted to train."""

    def without_wider_grid(self) -> Self:
        """Return a fitter that tries only its own penalties."""
        return replace(self, widens=False)

    def without_choice(self) -> Self:
        """Return a fitter with the one penalty that is nearest to `FIXED_ALPHA`."""
        return replace(self, alphas=fixed_penalty(self.alphas), widens=False)

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the penalty of a fit."""
        return replace(self, alphas=np.array([fit.result.alpha]), widens=False)

    def best_of(self, source: Source, sweep_of: Callable[[np.ndarray], Sweep]) -> ColumnFit:
        """Return the fit of all penalties to a source; ``sweep_of`` scores a grid of penalties.

        If an end of the grid is best, and better than all others, the grid is widened once.
        """
        fit = column_fit(self.kind, source.columns, sweep_of(self.alphas))
        others = [result.valid_score for result in fit.results if result is not fit.result]
        is_clearly_best = fit.result.valid_score > max(others, default=math.inf)
        wider = extended_alphas(self.alphas, fit.best) if self.widens and is_clearly_best else None
        return fit if wider is None else column_fit(self.kind, source.columns, sweep_of(wider))
