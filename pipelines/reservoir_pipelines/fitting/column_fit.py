"""The fit of one readout to the columns of one source: the scores of every setting, and the best model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reservoir.column import RAW, Columns, names_of
from reservoir.readouts.linear import Readout
from reservoir.readouts.sweep import Sweep
from reservoir_pipelines.fitting.result import Result


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The scores of every setting of one readout on one source, and the index of the best setting."""

    columns: Columns
    results: tuple[Result, ...]
    best: int
    solve: Callable[[], Readout] | None  # returns the best model; None after `add_fit` has got a better fit
    # Returns what each held-out sample adds to the best score, (n,): those of train and valid for folds, else of valid.
    sample_scores: Callable[[], np.ndarray] | None = None
    # As in `Sweep`: held-out scores of cross-validation, kept as long as the model.
    held_out: Callable[[], tuple[np.ndarray, ...]] | None = None

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def readout(self) -> Readout:
        """The model of the best setting, solved anew each time."""
        assert self.solve is not None, "only the best fit keeps its model"
        return self.solve()


def column_fit(readout: str, columns: Columns, sweep_result: Sweep) -> ColumnFit:
    """Return the fit of columns side by side by a kind of ``readout``, from its sweep over penalties."""
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
    sample_scores = None
    if sweep_result.sample_scores is not None:
        sample_scores = partial(np.asarray, sweep_result.sample_scores)
    return ColumnFit(
        columns=columns,
        results=results,
        best=sweep_result.best,
        solve=sweep_result.readout,
        sample_scores=sample_scores,
        held_out=sweep_result.held_out,
    )


def add_fit(fits: list[ColumnFit], new: ColumnFit) -> None:
    """Append a fit; only the first, the best and that of the raw input keep their models."""
    # Solving takes time, and a model that is not solved yet holds the features or their moments in memory.
    fits.append(new)
    best = max(fits, key=lambda fit: fit.result.sort_key)
    for number, fit in enumerate(fits[1:], start=1):
        if fit is not best and fit.columns != (RAW,):
            fits[number] = replace(fit, solve=None, sample_scores=None, held_out=None)
