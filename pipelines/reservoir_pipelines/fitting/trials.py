"""What fitting one kind of readout on one source gives: every setting's result and the best one's model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.readouts import Tally, Targets, balanced_weights, metric_name, widened
from reservoir.readouts.evaluation import Readout
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import Source

if TYPE_CHECKING:
    from reservoir.readouts import Sweep


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Every setting of one readout on one source, and the model of the best (of equal ones that of least loss)."""

    results: tuple[Result, ...]
    best: int
    readout: Readout

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def at_edge(self) -> bool:
        """Whether the best penalty is an end of the grid, and no other does as well."""
        alphas = [result.alpha for result in self.results if result.alpha is not None]
        others = [result.valid_score for result in self.results if result is not self.result]
        ends = alphas and len(others) and self.result.alpha in (min(alphas), max(alphas))
        return bool(ends) and self.result.valid_score > max(others)


def trial_of(name: str, columns: tuple[str, ...], swept: Sweep) -> Trial:
    """Return the trial of a sweep over penalties of columns side by side."""
    metric = metric_name(swept.targets.classes)
    fields = ("alpha", "valid_score", "valid_loss", "converged")
    values = (swept.path.alphas, swept.accuracy, swept.loss, swept.path.converged)
    results = tuple(
        Result(columns=columns, readout=name, metric=metric, **dict(zip(fields, found, strict=True)))
        for found in zip(*(value.tolist() for value in values), strict=True)
    )
    return Trial(results=results, best=swept.best, readout=swept.readout())


def widened_trial(swept: Callable[[np.ndarray], Trial], alphas: np.ndarray, widens: bool) -> Trial:
    """Return the trial of a grid of penalties; of one carried on where its end does best, if it may be."""
    trial = swept(alphas)
    wider = widened(alphas, trial.best) if widens and trial.at_edge else None
    return trial if wider is None else swept(wider)


def make_targets(source: Source, classes: int, balanced: bool = False) -> Targets:
    """Return the coding of a source's labels, weighted by class where asked."""
    labels = source.labels("train")
    if not balanced:
        return Targets(labels.shape[1], classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(labels.shape[1], classes, balanced_weights(counts))


def score_split(readout: Readout, source: Source, split: str) -> float:
    """Return the score of one readout on a split."""
    tally = Tally(readout.targets)
    for x, y in source.blocks(split):
        tally.update(readout.scores(x)[None], y)
    return float(tally.accuracy()[0])
