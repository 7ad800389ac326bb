"""Values of your own data: checked, cut to their rows, and standardised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.task import Scaling

MOST_ROUNDING = 1e-3
"""Largest error of float32 in a value, as a share of the range of its channel."""


def clean_symbols(where: str, x: np.ndarray, lengths: np.ndarray, vocabulary: int, first_row: int = 0) -> np.ndarray:
    """Return symbols in the smallest sufficient type, zero after each row's end; refuse those outside a vocabulary."""
    real = np.arange(x.shape[1]) < lengths[:, None]
    wrong = real & ~((x >= 0) & (x < vocabulary) & (x == np.rint(x)))
    if wrong.any():
        row, token = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: {x[row, token]} in row {first_row + row}, token {token} is no symbol from 0 to {vocabulary - 1}"
        )
    return np.where(real, x, 0).astype(np.min_scalar_type(vocabulary - 1))


def as_values(where: str, x: np.ndarray, lengths: np.ndarray, missing: str, first_row: int = 0) -> np.ndarray:
    """Return values (rows, tokens, dim) as they are stored; ``missing`` says what happens to NaN.

    With ``mask`` missing values stay NaN, which scaling turns into 0, and as many further channels are 1 where a value
    is missing, else 0.
    """
    if missing == "interpolate" and x.dtype.kind == "f":
        x = _without_gaps(where, x, lengths, first_row)
    if missing != "mask":
        return _clean(where, x, lengths, first_row)
    real = (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    gaps = np.isnan(x) & real
    known = _clean(where, np.where(gaps, 0, x).astype(np.float32), lengths, first_row)
    return np.concatenate([np.where(gaps, np.float32(np.nan), known), gaps.astype(np.float32)], axis=2)


def _clean(where: str, x: np.ndarray, lengths: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Return values as float32 (bytes stay bytes), zero after each row's end; refuse those that are not finite."""
    real = (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    with np.errstate(over="ignore"):
        values = np.where(real, x, 0).astype(np.uint8 if x.dtype == np.uint8 else np.float32)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, token, channel = (int(i) for i in np.argwhere(wrong)[0])
        value = x[row, token, channel]
        fill = ", or pass --missing interpolate or mask" if np.isnan(value) else ""
        raise InputError(
            f"{where}: x is {value} in row {first_row + row}, token {token}, column {channel}; repair or remove the "
            f"row, end it there with lengths{fill}"
        )
    return values


def _without_gaps(where: str, x: np.ndarray, lengths: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Return floats (rows, tokens, dim) with NaN on the line between their neighbours in time, or like the nearest."""
    x = x.copy()
    gaps = np.isnan(x) & (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    for row, channel in np.argwhere(gaps.any(axis=1)):
        series, missing = x[row, : lengths[row], channel], gaps[row, : lengths[row], channel]
        if missing.all():
            raise InputError(f"{where}: no value at all in row {first_row + row}, column {channel}; remove the row")
        series[missing] = np.interp(np.flatnonzero(missing), np.flatnonzero(~missing), series[~missing])
    return x


class Rounding:
    """Measures how much float32 changes the channels of values that come in stretches."""

    def __init__(self) -> None:
        self._found: list[np.ndarray] = []

    def add(self, x: np.ndarray, stored: np.ndarray) -> None:
        """Add tokens (tokens, dim) as they were given, and as they are stored."""
        if len(x) and x.dtype.itemsize > 2 and x.dtype != np.float32:
            x, stored = x.astype(np.float64), stored[:, : x.shape[1]].astype(np.float64)
            self._found.append(np.stack([np.fmax.reduce(np.abs(x - stored)), np.fmin.reduce(x), np.fmax.reduce(x)]))

    def check(self, where: str) -> None:
        """Refuse channels that lose most of their variation."""
        if not self._found:
            return
        moved, least, most = np.stack(self._found, axis=1)
        moved, least, most = moved.max(axis=0), least.min(axis=0), most.max(axis=0)
        coarse = np.flatnonzero(moved > MOST_ROUNDING * (most - least))
        coarse = coarse[most[coarse] > least[coarse]]
        if len(coarse):
            c = int(coarse[0])
            raise InputError(
                f"{where}: x varies too little for float32 in column {c} (from {least[c]:.15g} to {most[c]:.15g}, "
                f"rounded by up to {moved[c]:.3g}); subtract an offset from it, such as {least[c]:.6g}"
            )


def standardisation(where: str, stretches: Iterator[np.ndarray]) -> Scaling:
    """Return the standardisation of tokens that come in stretches (tokens, dim); 1 for a channel that does not vary.

    Sums are taken around the first stretch's mean, in float64, so that a large constant does not eat the spread. What
    is NaN does not count.
    """
    first = next(stretches)
    known = ~np.isnan(first)
    shift = np.where(known, first, 0).sum(axis=0, dtype=np.float64) / np.maximum(known.sum(axis=0), 1)
    count, total, squares = 0, np.zeros_like(shift), np.zeros_like(shift)
    for tokens in chain([first], stretches):
        known = ~np.isnan(tokens)
        centred = np.where(known, tokens - shift, 0)
        count = count + known.sum(axis=0)
        total = total + centred.sum(axis=0)
        squares = squares + (centred**2).sum(axis=0)
    count = np.maximum(count, 1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    still = deviation <= 1e-12 * np.maximum(np.abs(shift + mean), 1e-300)
    scale = 1 / np.where(still, 1, deviation)
    if (scale > np.finfo(np.float32).max).any():
        channel = int(np.argmax(scale))
        raise InputError(
            f"{where}: the values of column {channel} deviate by {deviation[channel]:.3g}, too little for float32; "
            "multiply them by a constant"
        )
    return Scaling(offset=(shift + mean).astype(np.float32), scale=scale.astype(np.float32))
