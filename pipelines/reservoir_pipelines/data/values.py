"""Values and symbols: which whole numbers are symbols, and checks, padding and standardisation of values."""

import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks import TASKS, named_source
from reservoir.tasks.source import clean_symbols, full_lengths
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir.tasks.texts import are_words, codes_of
from reservoir_pipelines.data.rows import keep_end_spaces

SAMPLE = 2**20
"""Number of tokens of the first rows that `read_integers` looks at."""

MAX_INTEGER_SYMBOLS = 1_000_000
"""Larger whole numbers are values, not symbols: no embedding has a row for each."""

MIN_STEPS = 100
"""With fewer changes between neighbours, the size of the changes is ignored."""

SMOOTH = 0.65
"""Values have a mean step between different neighbours below this share of the mean step between random tokens."""

SMOOTH_MANY = 0.8
"""Replaces `SMOOTH` for more than `BYTE` different numbers."""

BYTE = 256
"""Different values of a byte: up to so many different numbers may be symbols, such as letters."""

HEAD = 0.1
"""The most frequent 1% of many symbols make up more than this share of the tokens."""

FEW_CLASSES = 20
FEW_ROWS_PER_CLASS = 5
ROWS_PER_CLASS = 50
"""Mean number of rows of each class: `FEW_ROWS_PER_CLASS` for up to `FEW_CLASSES` classes, else `ROWS_PER_CLASS`."""

MIN_SIDE = 8
"""Fewest pixels of a side of images in arrays: smaller square arrays are steps of several channels."""

ROW_ALIKE = 0.6
"""Pixels one below the other differ less than this share of what pixels half a row apart do.

It is 0.31 for CIFAR-10 and scikit-learn's digits, and 0.27 for MNIST; for random walks and for symbols in no order it
is 1 or more, and above 0.85 for the beginnings of all sets of the UCR archive that we use for development.
"""

INT64 = np.iinfo(np.int64)


class Reading(NamedTuple):
    """Whether whole numbers are names (symbols, classes) or quantities, and the reason, for a message."""

    are_names: bool
    why: str


class PixelRows(NamedTuple):
    """The size of the square images whose pixels are the values of a row, and the order of their colours."""

    side: int
    channels_first: bool  # all red values before all green ones, as in the files of CIFAR-10


def side_and_channels(values: int) -> tuple[int, int] | None:
    """Return the side in pixels and the channels, 1 or 3, of a square image with so many values; None if none has."""
    for channels in (1, 3):
        side = math.isqrt(values // channels)
        if side >= MIN_SIDE and side**2 * channels == values:
            return side, channels
    return None


def read_pixel_rows(x: np.ndarray) -> PixelRows | None:
    """Return how rows of values (rows, values) hold images; None if they probably do not.

    In an image, a pixel is like the one below it, and less like one that is half a row apart. In a series, the
    difference grows with the distance.
    """
    size = side_and_channels(x.shape[1])
    if size is None:
        return None
    may_be_pixels = x.min() >= 0 and np.isfinite(x.max())  # both are false with NaN
    if not may_be_pixels:
        return None
    side, channels = size
    # The change from a pixel to the one below it, as a share of that over half a row, for each order of the colours:
    # the values of a pixel side by side, or those of each channel one after the other. Grey images have one order.
    share_by_order: dict[bool, float] = {}
    for channels_first in [False] if channels == 1 else [False, True]:
        pixel_distance = 1 if channels_first else channels  # values from a pixel to the next
        half_a_row = _change_at(x, pixel_distance * (side // 2))
        one_below = _change_at(x, pixel_distance * side)
        share_by_order[channels_first] = one_below / half_a_row if half_a_row else np.inf
    likely_order = min(share_by_order, key=share_by_order.__getitem__)
    return PixelRows(side, likely_order) if share_by_order[likely_order] < ROW_ALIKE else None


def _change_at(x: np.ndarray, distance: int) -> float:
    """Return the mean absolute difference of values (rows, values) at a distance from each other."""
    return float(np.abs(x[:, distance:].astype(np.float64) - x[:, :-distance]).mean())


def read_integers(x: np.ndarray, lengths: np.ndarray | None = None) -> Reading:
    """Return whether whole numbers (rows, tokens) are symbols, or values of an ordered quantity.

    They are values if one is negative or a million or more, if different neighbours in a sequence are
    much closer to each other than random tokens, if the rows are probably images, or if more than 256 different
    numbers are about equally frequent.
    """
    # Look at the tokens of the first rows, without the padding after their ends.
    sampled_rows = max(1, SAMPLE // max(x.shape[1], 1))
    x = x[:sampled_rows]
    row_lengths = np.full(len(x), x.shape[1]) if lengths is None else lengths[: len(x)]
    is_token = np.arange(x.shape[1]) < row_lengths[:, None]
    tokens = x[is_token].astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= MAX_INTEGER_SYMBOLS:
        return Reading(False, "some are negative" if tokens.min() < 0 else "some are a million or more")

    # A quantity changes in small steps: neighbours are closer to each other than tokens in random order. Neighbours
    # that are equal, and random pairs that are, say nothing about the size of steps.
    numbers, counts = np.unique(tokens, return_counts=True)
    steps = np.abs(np.diff(x.astype(np.int64), axis=1))[is_token[:, 1:]]
    steps = steps[steps > 0]
    random_steps = np.abs(tokens - np.random.default_rng(0).permutation(tokens))
    if len(steps) >= MIN_STEPS:
        share = steps.mean() / random_steps[random_steps > 0].mean()
        if share < (SMOOTH_MANY if len(numbers) > BYTE else SMOOTH):
            return Reading(False, f"neighbours differ only {share:.0%} as much as random tokens")
    no_row_is_padded = bool(is_token.all())
    if no_row_is_padded and read_pixel_rows(x) is not None:
        return Reading(False, "values one row of pixels apart are alike, as in images")
    if len(numbers) <= BYTE:
        return Reading(True, f"{len(numbers)} different numbers, and no order between neighbours")

    # Some words are far more frequent than most. The smallest and the largest number are left out,
    # because a sensor that overflows repeats them.
    most_frequent_first = np.sort(counts[1:-1])[::-1]
    one_percent = len(numbers) // 100 + 1
    head_share = most_frequent_first[:one_percent].sum() / len(tokens)
    if head_share > HEAD:
        return Reading(
            True, f"the most frequent 1% of {len(numbers):,} numbers are {head_share:.0%} of x, as in texts"
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
    if len(numbers) <= 2:
        return Reading(True, why)
    if len(numbers) > y.size / 2:  # fewer than 2 rows each on average
        return Reading(False, why)
    rows_per_class = FEW_ROWS_PER_CLASS if len(numbers) <= FEW_CLASSES else ROWS_PER_CLASS
    have_many_rows = y.size >= rows_per_class * len(numbers)
    return Reading(counted_through(numbers) or have_many_rows, why)


def counted_through(numbers: np.ndarray) -> bool:
    """Return whether sorted distinct whole numbers are 0, 1, 2 ... or 1, 2, 3 ..."""
    none_is_missing = numbers[-1] - numbers[0] == len(numbers) - 1
    return bool(numbers[0] in {0, 1} and none_is_missing)


# ---- stored values


SAMPLED_TOKENS = 10_000
"""About as many tokens of a piece have their median taken, because a sort of all would take longer."""

MAX_LOST = 0.1  # largest error of float32 in a difference from the mean, as a share of the median distance
MAX_ROUNDING = 1e-3  # largest error of float32 in a value, as a share of its channel's range


def as_values(
    where: str,
    x: np.ndarray,
    lengths: np.ndarray,
    missing: str,
    first_row: int = 0,
    or_fill: str = "",
    names: np.ndarray | None = None,
) -> np.ndarray:
    """Return values as they are stored: float32 (bytes stay bytes), zero after each row's end.

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    x : np.ndarray
        Values (rows, tokens, dim).
    lengths : np.ndarray
        Number of tokens of each row, (rows,).
    missing : str
        What to do about NaN: ``refuse``, ``interpolate`` linearly in time, or ``mask``, which keeps NaN (scaling turns
        it into 0) and adds a channel for each channel, with 1 at missing values.
    first_row : int
        The number of the first of these rows in the data, for messages.
    or_fill : str
        Added to the remedy for NaN; empty if ``missing`` cannot be changed, because a readout has been fitted.
    names : np.ndarray, optional
        What names each row, (rows,), for messages: texts, or numbers, which say no more than that of the row.
    """
    # ``is_gap`` is where a value is missing, within the rows' ends. Integers have no NaN.
    is_token = (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    may_have_gaps = missing != "refuse" and x.dtype.kind == "f"
    is_gap = np.isnan(x) & is_token if may_have_gaps else np.zeros(x.shape, bool)
    if missing == "interpolate" and is_gap.any():
        row_texts = _row_texts(len(x), first_row, names)
        _refuse_empty_channels(where, is_gap, lengths, row_texts, or_mask=bool(or_fill))
        x = _interpolated(x, lengths, is_gap)
    stay_bytes = x.dtype == np.uint8 and missing != "mask"
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is refused
        values = np.where(is_token, x, 0).astype(np.uint8 if stay_bytes else np.float32)
    # Gaps may stay NaN only if they are masked.
    is_allowed = is_gap if missing == "mask" else np.zeros_like(is_gap)
    is_wrong = ~np.isfinite(values) & ~is_allowed
    if is_wrong.any():
        row, token, channel = (int(index) for index in np.argwhere(is_wrong)[0])
        value = x[row, token, channel]  # as it was given: in ``values``, a large one is infinite
        fill = or_fill if np.isnan(value) else ""
        row_text = _row_texts(len(x), first_row, names)[row]
        raise InputError(
            f"{where}: x is {value} in row {row_text}, token {token}, column {channel}",
            f"repair or remove the row, or end it before this token with lengths{fill}",
        )
    if missing != "mask":
        return values
    values[is_gap] = np.nan  # the same bit pattern for every NaN, so that equal data has equal checksums
    return np.concatenate([values, is_gap.astype(np.float32)], axis=2)


def _row_texts(rows: int, first_row: int, names: np.ndarray | None) -> list[str]:
    """Return what messages call each row: its number, and its name if that is a text."""
    numbers = [str(first_row + row) for row in range(rows)]
    if names is None or names.dtype.kind in "iu":
        return numbers
    return [f"{number} ({name})" for number, name in zip(numbers, names.tolist(), strict=True)]


def _refuse_empty_channels(
    where: str, is_gap: np.ndarray, lengths: np.ndarray, row_texts: Sequence[str], *, or_mask: bool
) -> None:
    """Raise `InputError` for a channel of a row without any value, between which nothing can be interpolated.

    ``is_gap`` (rows, tokens, dim) says which values are missing. With ``or_mask`` the remedy names ``--missing mask``.
    """
    empty = np.argwhere(is_gap.sum(axis=1) == lengths[:, None])
    if len(empty):
        row, channel = empty[0]
        remedy = "remove the row" + (", or pass --skip-bad-rows or --missing mask" if or_mask else "")
        raise InputError(f"{where}: no value at all in row {row_texts[row]}, column {channel}", remedy)


def _interpolated(x: np.ndarray, lengths: np.ndarray, is_gap: np.ndarray) -> np.ndarray:
    """Return values (rows, tokens, dim) with each gap on the line between its neighbours in time.

    ``is_gap`` has the shape of ``x``. A gap at an end of a row gets the nearest value; each channel of a row has one.
    """
    x = x.copy()  # the caller's array may be that of the user
    for row, channel in np.argwhere(is_gap.any(axis=1)):
        series = x[row, : lengths[row], channel]  # a view, so that x changes
        missing = is_gap[row, : lengths[row], channel]
        series[missing] = np.interp(np.flatnonzero(missing), np.flatnonzero(~missing), series[~missing])
    return x


def rounding(x: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Return the largest rounding error of float32, the minimum and the maximum of each channel, (3, dim).

    ``x`` (tokens, dim) are the values of the data, and ``stored`` (tokens, dim or more) those in float32, which may be
    followed by channels that mark missing values.
    """
    x = x.astype(np.float64)
    errors = np.abs(x - stored[:, : x.shape[1]])
    return np.stack([np.fmax.reduce(errors), np.fmin.reduce(x), np.fmax.reduce(x)])  # these ignore NaN


def check_rounding(where: str, pieces: Sequence[np.ndarray], name: str = "x") -> None:
    """Refuse channels whose rounding errors are large relative to their range.

    ``pieces`` are the results (3, dim) of `rounding` for each piece of the data, and ``name`` is what messages call
    these.
    """
    # Each of the three is (pieces, dim), and becomes (dim,).
    errors, minima, maxima = np.stack(pieces, axis=1)
    error, low, high = errors.max(axis=0), minima.min(axis=0), maxima.max(axis=0)
    is_coarse = (error > MAX_ROUNDING * (high - low)) & (high > low)
    if is_coarse.any():
        channel = int(np.argmax(is_coarse))
        raise InputError(
            f"{where}: {name} varies too little for float32 in column {channel} (from {low[channel]:.15g} "
            f"to {high[channel]:.15g}, rounded by up to {error[channel]:.3g})",
            f"subtract an offset from it, such as {low[channel]:.6g}",
        )


def centre_and_spread(tokens: np.ndarray) -> np.ndarray:
    """Return the median of each channel of some tokens (tokens, dim), and that of the distances from it, (2, dim)."""
    every = len(tokens) // SAMPLED_TOKENS + 1
    sample = tokens[::every].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a channel may have no value at all
        centre = np.nanmedian(sample, axis=0)
        return np.stack([centre, np.nanmedian(np.abs(sample - centre), axis=0)])


def check_outliers(where: str, pieces: Sequence[np.ndarray], offset: np.ndarray) -> None:
    """Refuse channels whose mean is so far from the usual values that float32 loses these when it is subtracted.

    ``pieces`` are the results (2, dim) of `centre_and_spread` for each piece of the data, and ``offset`` (dim,) is the
    mean of the standardisation. One value of 1e12 among thousands near 1 moves the mean that far.
    """
    # The medians of the pieces' centres and spreads, (dim,) each.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a channel may have no value at all
        centre, spread = np.nanmedian(np.stack(pieces, axis=1), axis=1)
    error = np.abs(offset - centre) * float(np.finfo(np.float32).eps)
    is_lost = (error > MAX_LOST * spread) & (spread > 0)
    if is_lost.any():
        channel = int(np.argmax(is_lost))
        raise InputError(
            f"{where}: outliers move the mean of x in column {channel} to {offset[channel]:.6g}, but half of the "
            f"values are within {spread[channel]:.3g} of {centre[channel]:.6g}, and float32 loses these differences",
            "repair or remove the rows with the largest and the smallest values of this column",
        )


def standardisation(where: str, batches: Iterator[np.ndarray]) -> Scaling:
    """Return the standardisation of batches of tokens (tokens, dim), ignoring NaN; constant channels have scale 1."""
    # Sums are taken around the first batch's mean, in float64, so that a large constant does not hide the deviation.
    first = next(batches)
    present = ~np.isnan(first)
    shift = np.where(present, first, 0).sum(axis=0, dtype=np.float64) / np.maximum(present.sum(axis=0), 1)
    count = 0
    total = np.zeros_like(shift)
    squares = np.zeros_like(shift)
    for tokens in chain([first], batches):
        present = ~np.isnan(tokens)
        centred = np.where(present, tokens - shift, 0)
        count = count + present.sum(axis=0)
        total = total + centred.sum(axis=0)
        squares = squares + (centred**2).sum(axis=0)
    # The mean relative to ``shift``, and the deviation, whose square is the mean square less the square of the mean. A
    # channel without any value has the mean 0.
    count = np.maximum(count, 1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    # A constant channel has a deviation of about the rounding error of its sums, not exactly 0.
    is_constant = deviation <= 1e-12 * np.maximum(np.abs(shift + mean), 1e-300)
    scale = 1 / np.where(is_constant, 1, deviation)
    if (scale > np.finfo(np.float32).max).any():
        channel = int(np.argmax(scale))
        raise InputError(
            f"{where}: the values of column {channel} deviate by {deviation[channel]:.3g}, too little for float32",
            "multiply them by a constant",
        )
    return Scaling(offset=(shift + mean).astype(np.float32), scale=scale.astype(np.float32))


def clean_lengths(where: str, lengths: np.ndarray, rows: int, tokens: int, fewest: int = 1) -> np.ndarray:
    """Return lengths (rows,) as int32; refuse lengths that are not integers from ``fewest`` to ``tokens``.

    ``rows`` and ``tokens`` are the shape of the array of which these are the lengths of the rows.
    """
    if lengths.dtype.kind not in "ui" or lengths.shape != (rows,):
        raise InputError(
            f"{where}: lengths hold {lengths.dtype} of shape {lengths.shape}", f"give integers ({rows},)"
        )
    is_wrong = (lengths < fewest) | (lengths > tokens)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(
            f"{where}: length {lengths[row]} in row {row} is not between {fewest} and {tokens}", "fix it"
        )
    return lengths.astype(np.int32)


def encode_values(
    task: Task,
    x: np.ndarray,
    lengths: np.ndarray | None = None,
    where: str = "",
    names: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs of a task as stored sequences, (rows, tokens) or (rows, tokens, dim), and their lengths (rows,).

    Inputs are raw, or sequences with ``lengths`` (rows,). ``where`` names them in messages; by default the task does.
    ``names`` (rows,) name the rows there, if there are any.
    """
    if task.name not in TASKS:
        return _encode_own(task, x, lengths, where or f"task {task.name!r}", names)
    stored, stored_lengths = named_source(task).encode(x, lengths)
    if lengths is not None:
        clean_lengths(task.name, lengths, *stored.shape[:2])
    return stored, stored_lengths


def _encode_own(
    task: Task, x: np.ndarray, lengths: np.ndarray | None, where: str, names: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return new inputs of a task of own data, in the form of its file, as stored sequences and their lengths."""
    if task.pictures:  # bytes of files, which are stored as they are; each image has as many patches
        return x, np.full(x.shape[0], task.max_tokens, np.int32)
    # The type and the shape that the task reads; a series of one channel may be (rows, tokens). The kinds are NumPy's:
    # U is text, u and i are integers, f are floats.
    missing = task.parameters.get("missing", "refuse")
    kind = x.dtype.kind
    if task.alphabet:
        expected = "texts (rows,)"
        fits = kind == "U" and x.ndim == 1
    elif isinstance(task.form, Tokens):
        expected = "integers (rows, tokens)"
        fits = kind in "ui" and x.ndim == 2
    else:
        x = x[:, :, None] if x.ndim == 2 else x
        dim = task.form.dim // (2 if missing == "mask" else 1)  # masks are channels of the task
        expected = f"numbers (rows, tokens, {dim})"
        fits = kind in "uif" and x.ndim == 3 and x.shape[2] == dim
    if not fits or not x.size:
        inputs = "texts" if kind == "U" else f"inputs of shape {x.shape} and type {x.dtype}"
        raise InputError(
            f"{where}: {inputs}, but the model reads {expected}, as made from {task.name!r}",
            "give data of the same kind",
        )
    if task.alphabet:
        texts = x.tolist()
        if not keep_end_spaces(task.parameters.get("each"), words=are_words(task.alphabet)):
            texts = [text.strip() for text in texts]
        return codes_of(where, texts)
    lengths = full_lengths(x) if lengths is None else lengths
    # The last ``readout_tokens`` tokens of a sequence have a label, so it needs that many, unless every token has one.
    fewest = 1 if task.labels_each_token else task.readout_tokens
    lengths = clean_lengths(where, lengths, *x.shape[:2], fewest=fewest)
    if isinstance(task.form, Tokens):
        return clean_symbols(where, x, lengths, task.form.vocabulary), lengths
    return as_values(where, x, lengths, missing, names=names), lengths
