"""Whether whole numbers are symbols or values, classes or targets: one rule for files and estimators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SAMPLE = 2**20
"""Tokens at the beginning that the rule looks at."""

MOST_SYMBOLS = 1_000_000
"""Larger whole numbers are values, not symbols: no embedding has a row for each."""

FEWEST_STEPS = 100
"""With fewer changes between neighbours their size is not considered."""

SMOOTH = 0.65
"""An ordered quantity has steps between unlike neighbours below this share of those between any two tokens."""

SMOOTH_MANY = 0.8
"""The same for more different numbers than a byte has."""

BYTE = 256

HEAD = 0.1
"""A vocabulary is used unevenly: the commonest hundredth of it makes up more than this share of the tokens."""

FEW_CLASSES = 20
FEW_ROWS_PER_CLASS = 5
ROWS_PER_CLASS = 50


class Reading(NamedTuple):
    """Whether whole numbers are names (symbols, classes), and why."""

    names: bool
    why: str


def read_integers(x: np.ndarray, lengths: np.ndarray | None = None) -> Reading:
    """Return whether whole numbers are symbols, or values of an ordered quantity.

    Values are those that are negative or beyond a million; those whose neighbours in a sequence are much closer to each
    other than any two tokens are (steps between unlike neighbours, so that long stays do not count); and those with
    more than 256 different numbers, the commonest hundredth of which is not far commoner than the rest, as it is in any
    vocabulary in use. All others are symbols.
    """
    x = x[: max(1, SAMPLE // max(x.shape[1], 1))]
    full = np.full(len(x), x.shape[1]) if lengths is None else lengths[: len(x)]
    real = np.arange(x.shape[1]) < full[:, None]
    tokens = x[real].astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= MOST_SYMBOLS:
        return Reading(False, "some are negative" if tokens.min() < 0 else "some are a million or more")
    numbers, counts = np.unique(tokens, return_counts=True)
    steps = np.abs(np.diff(x.astype(np.int64), axis=1))[real[:, 1:]]
    steps = steps[steps > 0]
    anywhere = np.abs(tokens - np.random.default_rng(0).permutation(tokens))
    if len(steps) >= FEWEST_STEPS:
        share = steps.mean() / anywhere[anywhere > 0].mean()
        if share < (SMOOTH_MANY if len(numbers) > BYTE else SMOOTH):
            return Reading(False, f"neighbours differ by {share:.0%} of what any two tokens do")
    if len(numbers) <= BYTE:
        return Reading(True, f"{len(numbers)} different ones, and no order between neighbours")
    # The ends of a scale are left out: a sensor that overflows is there often.
    head = np.sort(counts[1:-1])[::-1][: len(numbers) // 100 + 1].sum() / len(tokens)
    if head > HEAD:
        return Reading(True, f"the commonest hundredth of {len(numbers):,} makes up {head:.0%}, as words do")
    return Reading(False, f"{len(numbers):,} different ones, about equally common")


def read_labels(y: np.ndarray) -> Reading:
    """Return whether whole-number labels are classes, or targets of a regression.

    Two different numbers are classes. Others are where they are counted through from 0 or 1 and have two labels each,
    up to 20 where they have 5 labels each on average, and more where they have 50.
    """
    numbers = np.unique(y)
    many = f"{len(numbers):,} different ones among {y.size:,}"
    if len(numbers) > 2 and len(numbers) > y.size / 2:
        return Reading(False, many)
    least = FEW_ROWS_PER_CLASS if len(numbers) <= FEW_CLASSES else ROWS_PER_CLASS
    return Reading(len(numbers) <= 2 or counted_through(numbers) or y.size >= least * len(numbers), many)


def counted_through(numbers: np.ndarray) -> bool:
    """Return whether sorted different numbers are 0, 1, 2 ... or 1, 2, 3 ..."""
    return bool(numbers[0] in {0, 1} and numbers[-1] - numbers[0] == len(numbers) - 1)
