"""The learning curve: scores for growing numbers of training rows, at almost no cost, since moments add up."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import numpy as np

from reservoir import InputError
from reservoir.readouts import Sweep, fold_moments, ridge_path, score
from reservoir_pipelines.fitting.column_fit import score_split
from reservoir_pipelines.fitting.fitters import RidgeFitter
from reservoir_pipelines.fitting.raw import emphasis_of
from reservoir_pipelines.fitting.sources import Source, stage_blocks


def parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Return ``100,1000,10000`` as ascending numbers of rows, none larger than ``rows``."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--curve {text}: give numbers of rows, such as 100,1000,10000")
    return tuple(sorted({min(size, rows) for size in sizes}))


def learning_curve(source: Source, fitter: RidgeFitter, sizes: Sequence[int]) -> tuple[tuple[int, float, float], ...]:
    """Return (rows, validation score, test score) for growing numbers of training rows.

    Each size draws its rows from the next larger one, and has its own penalty, chosen on valid. One pass over the rows
    gives the moments of each stage, whose running sums are the moments of every size.
    """
    targets = fitter.targets(source)
    stages = fold_moments(stage_blocks(source, np.asarray(sizes)), targets, len(sizes))
    points, emphasis = [], emphasis_of(source)
    for size, moments in zip(sizes, itertools.accumulate(stages, operator.add), strict=True):
        path = ridge_path(moments, fitter.alphas, emphasis=emphasis)
        swept = Sweep.of(path, score(path, source.blocks("valid"), targets))
        points.append((size, float(swept.accuracy[swept.best]), score_split(swept.readout(), source, "test")))
    return tuple(points)
