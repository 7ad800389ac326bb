"""Learning curves: ridge readouts that are fitted to some of the training rows, and chosen on valid."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.readouts.moments import Moments, fold_moments
from reservoir.readouts.ridge import head
from reservoir.readouts.sweep import sweep
from reservoir_pipelines.fitting.folds import stage_blocks
from reservoir_pipelines.fitting.source import Source
from reservoir_pipelines.output import meter

CURVE_DRAWS = 5  # random draws of the rows


class CurveReadout(NamedTuple):
    """A readout of a learning curve, fitted to some of the training rows and chosen on valid."""

    rows: int
    valid_score: float
    readout: LinearReadout


def ridge_curve(
    source: Source, sizes: Sequence[int], targets: Targets, alphas: np.ndarray
) -> list[CurveReadout]:
    """Return a readout for each number of training rows of each of `CURVE_DRAWS` nested, stratified draws."""
    readouts: list[CurveReadout] = []
    with meter("learning curve", CURVE_DRAWS * len(sizes), unit="fits") as bar:
        for draw in range(CURVE_DRAWS):
            for size, (blocks, moments) in zip(
                sizes, _nested_rows(source, sizes, targets, draw), strict=True
            ):
                sweep_result = sweep(
                    blocks,
                    source.blocks("valid"),
                    targets,
                    alphas,
                    moments=moments,
                    feature_weights=source.feature_weights,
                )
                score = float(sweep_result.accuracy[sweep_result.best])
                readouts.append(CurveReadout(size, score, sweep_result.readout()))
                bar.advance(1)
    return readouts


def _nested_rows(
    source: Source, sizes: Sequence[int], targets: Targets, draw: int
) -> Iterator[tuple[Iterable[Any], Moments | None]]:
    """Yield the training rows of each size: their blocks, or their moments."""
    few, blocks = head(stage_blocks(source, np.asarray(sizes), targets.classes, draw))
    if few is None:
        # One pass gives the moments of the rows that each size adds; running sums are those of a size.
        for moments in itertools.accumulate(fold_moments(blocks, targets, len(sizes))):
            yield (), moments
        return
    # With fewer samples than features, moments would take hours.
    x, y, stage = few
    for last in range(len(sizes)):
        is_used = stage <= last
        yield [(x[is_used], y[is_used])], None
