"""Which reservoirs side by side: the default or what beats it, then greedily as long as held-out rows gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from reservoir.readouts import HeldOutScore
from reservoir_pipelines.tuning.judge import Judge, Kernel


def beats(new: HeldOutScore, old: HeldOutScore) -> bool:
    """Return whether the loss falls by more than its paired standard error over rows, and the score does not."""
    less = old.losses - new.losses
    noise = less.std(ddof=1) / np.sqrt(len(less)) if len(less) > 1 else 0.0
    return new.score >= old.score and float(less.mean()) > float(noise)


def choose(
    kernels: Mapping[int, Kernel], judge: Judge, most: int, goes_on: Callable[[], bool]
) -> tuple[tuple[int, ...], HeldOutScore]:
    """Start from the best kernel, and add the one that helps most as long as one does and there is time.

    The default, number 0, is where it starts unless the best does better by more than noise: the best of many is so by
    chance too. Joining asks for less, as it takes chance out. Returns the numbers of what was joined, in order, and how
    they do.
    """
    alone = {number: judge([kernel]) for number, kernel in kernels.items()}
    best = max(alone, key=lambda number: alone[number].merit)
    first = best if beats(alone[best], alone[0]) else 0
    chosen: tuple[int, ...] = (first,)
    total, found = kernels[first], alone[first]
    while len(chosen) < most:
        step: tuple[int, HeldOutScore] | None = None
        for key in _others(kernels, chosen):
            if not goes_on():
                break
            judged = judge([total, kernels[key]])
            if judged.merit > (step[1] if step else found).merit:
                step = key, judged
        if step is None:
            break
        chosen, found = (*chosen, step[0]), step[1]
        total = total + kernels[step[0]]
    return chosen, found


def _others(kernels: Mapping[int, Kernel], chosen: Sequence[int]) -> list[int]:
    return [key for key in kernels if key not in chosen]
