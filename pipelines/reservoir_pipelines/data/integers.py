"""Whole numbers as names (symbols, classes) or as amounts (values, targets): rules for arrays without a flag."""

from typing import NamedTuple

import numpy as np

SAMPLE = 2**20
"""Number of tokens, from the first, that `read_integers` looks at."""

MAX_SYMBOLS = 1_000_000
"""Larger whole numbers are values, not symbols: no embedding has a row for each."""

MIN_STEPS = 100
"""With fewer changes between neighbours, the size of the changes is ignored."""

SMOOTH = 0.65
"""Values have a mean step between different neighbours below this share of the mean step between random tokens."""

SMOOTH_MANY = 0.8
"""Replaces `SMOOTH` for more than `BYTE` different numbers."""

BYTE = 256
HEAD = 0.1
"""The most frequent 1% of many symbols make up more than this share of the tokens."""

FEW_CLASSES = 20
FEW_ROWS_PER_CLASS = 5
ROWS_PER_CLASS = 50

INT64 = np.iinfo(np.int64)


class Reading(NamedTuple):
    """Whether whole numbers are names (symbols, classes), and the reason."""

    names: bool
    why: str


def read_integers(x: np.ndarray, lengths: np.ndarray | None = None) -> Reading:
    """Return whether whole numbers (rows, tokens) are symbols, or values of an ordered quantity.

    They are values if one is negative or a million or more, if different neighbours in a sequence are
    much closer to each other than random tokens, or if more than 256 different numbers are about
    equally frequent.
    """
    x = x[: max(1, SAMPLE // max(x.shape[1], 1))]
    full_lengths = np.full(len(x), x.shape[1]) if lengths is None else lengths[: len(x)]
    real = np.arange(x.shape[1]) < full_lengths[:, None]
    tokens = x[real].astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= MAX_SYMBOLS:
        return Reading(False, "some are negative" if tokens.min() < 0 else "some are a million or more")

    # A quantity changes in small steps: neighbours are closer to each other than tokens in random order.
    numbers, counts = np.unique(tokens, return_counts=True)
    steps = np.abs(np.diff(x.astype(np.int64), axis=1))[real[:, 1:]]
    steps = steps[steps > 0]
    random_steps = np.abs(tokens - np.random.default_rng(0).permutation(tokens))
    if len(steps) >= MIN_STEPS:
        share = steps.mean() / random_steps[random_steps > 0].mean()
        if share < (SMOOTH_MANY if len(numbers) > BYTE else SMOOTH):
            return Reading(False, f"neighbours differ only {share:.0%} as much as random tokens")
    if len(numbers) <= BYTE:
        return Reading(True, f"{len(numbers)} different numbers, and no order between neighbours")

    # Some words are far more frequent than most. The smallest and the largest number are left out,
    # because a sensor that overflows repeats them.
    head = np.sort(counts[1:-1])[::-1][: len(numbers) // 100 + 1].sum() / len(tokens)
    if head > HEAD:
        return Reading(
            True, f"the most frequent 1% of {len(numbers):,} numbers are {head:.0%} of x, as in texts"
        )
    return Reading(False, f"{len(numbers):,} different numbers, about equally common")


def read_labels(y: np.ndarray) -> Reading:
    """Return whether whole-number labels are classes, or targets of a regression.

    Two different numbers are classes. More are classes if they count from 0 or 1 and have at least 2
    rows each on average, if up to 20 numbers have at least 5 rows each on average, or if more numbers
    have at least 50.
    """
    numbers = np.unique(y)
    why = f"{len(numbers):,} different numbers among {y.size:,}"
    if len(numbers) > 2 and len(numbers) > y.size / 2:
        return Reading(False, why)
    rows_per_class = FEW_ROWS_PER_CLASS if len(numbers) <= FEW_CLASSES else ROWS_PER_CLASS
    many_rows = y.size >= rows_per_class * len(numbers)
    return Reading(len(numbers) <= 2 or counted_through(numbers) or many_rows, why)


def counted_through(numbers: np.ndarray) -> bool:
    """Return whether sorted distinct numbers are 0, 1, 2 ... or 1, 2, 3 ..."""
    return bool(numbers[0] in {0, 1} and numbers[-1] - numbers[0] == len(numbers) - 1)
