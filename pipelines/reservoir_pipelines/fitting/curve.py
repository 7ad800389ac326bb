"""The learning curve: how scores grow with the training rows, at almost no cost, since moments add."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import numpy as np

from reservoir import InputError
from reservoir.readouts import Sweep, fold_moments, ridge_path, score
from reservoir_pipelines.fitting.engines import RidgeEngine
from reservoir_pipelines.fitting.raw import emphasis_of
from reservoir_pipelines.fitting.sources import Source, strata_blocks
from reservoir_pipelines.fitting.trials import make_targets, score_split


def parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Read ``100,1000,10000`` into ascending numbers of rows; those beyond the rows at hand become all rows, once."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--curve {text}: give numbers of rows, such as 100,1000,10000")
    return tuple(sorted({min(size, rows) for size in sizes}))


def learning_curve(source: Source, engine: RidgeEngine, sizes: Sequence[int]) -> tuple[tuple[int, float, float], ...]:
    """Return rows, validation and test score for growing numbers of training rows, the penalty chosen anew for each.

    The rows are nested draws. One pass over them gives the moments of each stretch, whose sums are the moments of all
    sizes; test is scored once per size, for the penalty that valid chose.
    """
    targets = make_targets(source, engine.classes, engine.balanced)
    stretches = fold_moments(strata_blocks(source, np.asarray(sizes)), targets, len(sizes))
    points, emphasis = [], emphasis_of(source)
    for size, moments in zip(sizes, itertools.accumulate(stretches, operator.add), strict=True):
        path = ridge_path(moments, engine.alphas, emphasis=emphasis)
        swept = Sweep.of(path, score(path, source.blocks("valid"), targets))
        points.append((size, float(swept.accuracy[swept.best]), score_split(swept.readout(), source, "test")))
    return tuple(points)
