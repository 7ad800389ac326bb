"""What fitting one kind of readout on one source gives: every setting's result and the best one's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir.readouts import Tally, Targets, balanced_weights
from reservoir_pipelines.fitting.results import Readout, Result
from reservoir_pipelines.fitting.sources import Source

if TYPE_CHECKING:
    from reservoir.readouts import Sweep


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Every setting of one readout on one source, and the model of the best.

    Parameters
    ----------
    results : tuple of Result
        One per setting.
    best : int
        Index of the most accurate; of equal ones the one with the largest penalty.
    readout : LinearReadout or EstimatorReadout
        Its model.
    """

    results: tuple[Result, ...]
    best: int
    readout: Readout

    @property
    def result(self) -> Result:
        """The best setting."""
        return self.results[self.best]


def trial_of(name: str, source: Source, swept: Sweep) -> Trial:
    """Return the trial of a sweep over penalties."""
    results = tuple(
        Result(
            columns=source.columns,
            readout=name,
            alpha=float(alpha),
            valid_accuracy=float(accuracy),
            converged=bool(converged),
        )
        for alpha, accuracy, converged in zip(swept.path.alphas, swept.accuracy, swept.path.converged, strict=True)
    )
    return Trial(results=results, best=swept.best, readout=swept.readout())


def make_targets(source: Source, classes: int, balanced: bool = False) -> Targets:
    """Return the coding of a source's labels, weighted by class where asked."""
    if not balanced:
        return Targets(source.outputs(), classes)
    counts = np.bincount(source.labels("train").ravel().astype(int), minlength=classes)
    return Targets(source.outputs(), classes, balanced_weights(counts))


def score_test(readout: Readout, source: Source) -> float:
    """Return the accuracy of one readout on the test split."""
    tally = Tally(readout.targets)
    for x, y in source.blocks("test"):
        tally.update(readout.scores(x)[None], y)
    return float(tally.accuracy()[0])
