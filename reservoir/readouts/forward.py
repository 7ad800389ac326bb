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
class SelectionStep:
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
) -> list[SelectionStep]:
    """Add the column that raises validation accuracy most, until none does or ``limit`` columns are chosen.

    One pass over train gives the moments of all columns side by side; the moments of any subset are a part of them.
    Each step then solves every candidate and reads valid once for all of them. Memory grows with the square of the
    total width, so callers cut a long list of columns to the most accurate ones first.

    Parameters
    ----------
    train, valid : iterable of Block
        Features (m, w) and labels (m, outputs), all columns side by side.
    columns : mapping of str to slice
        The features of each column.
    targets : Targets
        Coding of the labels.
    alphas : ndarray, (A,)
        Penalties.
    limit : int
        Largest number of columns.

    Returns
    -------
    list of SelectionStep
        At least one step, with rising accuracy; between equally accurate columns the first one is added.
    """
    if not columns or limit < 1:
        raise InputError(f"columns: at most {limit} of {len(columns)} columns; give at least one of both")
    training = gather(train, targets)
    steps: list[SelectionStep] = []
    while len(steps) < min(limit, len(columns)):
        chosen = steps[-1].columns if steps else ()
        candidates = [(*chosen, name) for name in columns if name not in chosen]
        step = max(_try(training, valid, columns, candidates, targets, alphas), key=_accuracy)
        if steps and _accuracy(step) <= _accuracy(steps[-1]):
            break
        steps.append(step)
    return steps


def _accuracy(step: SelectionStep) -> float:
    return float(step.sweep.accuracy[step.sweep.best])


def _try(
    training: Training,
    valid: Iterable[Block],
    columns: Mapping[str, slice],
    candidates: list[tuple[str, ...]],
    targets: Targets,
    alphas: np.ndarray,
) -> list[SelectionStep]:
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
        SelectionStep(columns=names, sweep=Sweep.of(path, tally))
        for names, path, tally in zip(candidates, paths, tallies, strict=True)
    ]
