"""The result of fitting one kind of readout to one source: the score of every setting and the best one's model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.readouts import Tally, Targets, balanced_weights, extended_alphas, metric_name
from reservoir.readouts.evaluation import Readout
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import Source

if TYPE_CHECKING:
    from reservoir.readouts import Sweep


@dataclass(frozen=True, kw_only=True)
class ColumnFit:
    """The score of every setting of one readout on one source, and the best one's index and model."""

    results: tuple[Result, ...]
    best: int
    readout: Readout

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]

    @property
    def at_edge(self) -> bool:
        """Whether the best penalty is an end of the grid, and no other scores as well."""
        alphas = [result.alpha for result in self.results if result.alpha is not None]
        others = [result.valid_score for result in self.results if result is not self.result]
        if not alphas or not others or self.result.alpha not in (min(alphas), max(alphas)):
            return False
        return self.result.valid_score > max(others)


def column_fit(readout: str, columns: tuple[str, ...], swept: Sweep) -> ColumnFit:
    """Return the fit of a sweep over the penalties of a ``readout`` of columns side by side."""
    settings = zip(swept.path.alphas, swept.accuracy, swept.loss, swept.path.converged, strict=True)
    results = tuple(
        Result(
            columns=columns,
            readout=readout,
            metric=metric_of(swept.targets),
            alpha=float(alpha),
            valid_score=float(score),
            valid_loss=float(loss),
            converged=bool(converged),
        )
        for alpha, score, loss, converged in settings
    )
    return ColumnFit(results=results, best=swept.best, readout=swept.readout())


def with_wider_grid(fitted: Callable[[np.ndarray], ColumnFit], alphas: np.ndarray) -> ColumnFit:
    """Return the fit of a grid of penalties, or of a wider one if an end of the grid scores best."""
    found = fitted(alphas)
    wider = extended_alphas(alphas, found.best) if found.at_edge else None
    return found if wider is None else fitted(wider)


def make_targets(source: Source, classes: int, balanced: bool = False, splits: Sequence[str] = ("train",)) -> Targets:
    """Return the coding of a source's labels; if ``balanced``, with class weights counted over some splits."""
    labels = np.concatenate([source.labels(split) for split in splits])
    if not balanced:
        return Targets(labels.shape[1], classes)
    counts = np.bincount(labels.ravel().astype(int), minlength=classes)
    return Targets(labels.shape[1], classes, balanced_weights(counts))


def metric_of(targets: Targets) -> str:
    """Return the metric by which readouts are chosen: accuracy, balanced accuracy with class weights, or R²."""
    return "balanced_accuracy" if targets.class_weights else metric_name(targets.classes)


def score_split(readout: Readout, source: Source, split: str) -> float:
    """Return the score of one readout on a split."""
    tally = Tally(readout.targets)
    for x, y in source.blocks(split):
        tally.update(readout.scores(x)[None], y)
    return float(tally.accuracy()[0])
