"""Which columns together: greedy forward selection from the moments of their concatenation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.gather import Training, gather, solve
from reservoir.readouts.linear import Scorer
from reservoir.readouts.moments import Block
from reservoir.readouts.ridge import DEFAULT_ALPHAS
from reservoir.readouts.sweep import Sweep, Tally
from reservoir.readouts.targets import Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step of a forward selection: the columns chosen so far, in order, and the sweep over them side by side."""

    columns: tuple[str, ...]
    sweep: Sweep


def forward_selection(
    train: Iterable[Block],
    valid: Iterable[Block],
    columns: Mapping[str, slice],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    limit: int,
) -> list[Step]:
    """Add the column that raises validation accuracy most, until none does or there are ``limit`` of them.

    One pass over train yields the moments of all columns side by side; those of any subset, given by where each column
    lies, are a part of them. Each step then solves every candidate and passes once over valid for all of them. Memory
    is of order the square of the widths' sum, so a long list of columns is first cut to the most accurate ones. There
    is at least one step; the last is the most accurate, and of equally good columns the first is taken.
    """
    if not columns or limit < 1:
        raise InputError(f"columns: at most {limit} of {len(columns)} columns; give at least one of both")
    training = gather(train, targets)
    steps: list[Step] = []
    while len(steps) < min(limit, len(columns)):
        chosen = steps[-1].columns if steps else ()
        candidates = [(*chosen, name) for name in columns if name not in chosen]
        step = max(_try(training, valid, columns, candidates, targets, alphas), key=_accuracy)
        if steps and _accuracy(step) <= _accuracy(steps[-1]):
            break
        steps.append(step)
    return steps


def _accuracy(step: Step) -> float:
    return float(step.sweep.accuracy[step.sweep.best])


def _try(
    training: Training,
    valid: Iterable[Block],
    columns: Mapping[str, slice],
    candidates: list[tuple[str, ...]],
    targets: Targets,
    alphas: np.ndarray,
) -> list[Step]:
    """Return the sweep of every candidate, in one pass over valid."""
    parts = [
        np.concatenate([np.arange(columns[name].start, columns[name].stop) for name in names]) for names in candidates
    ]
    paths = [solve(training.select(part), alphas) for part in parts]
    scorers, tallies = [Scorer(path, targets) for path in paths], [Tally(targets) for _ in paths]
    for x, y in valid:
        for part, scorer, tally in zip(parts, scorers, tallies, strict=True):
            tally.update(scorer(x[:, part]), y)
    return [
        Step(columns=names, sweep=Sweep.of(path, tally))
        for names, path, tally in zip(candidates, paths, tallies, strict=True)
    ]
