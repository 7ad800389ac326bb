"""Values of your own data: checked, cut to their rows, and standardised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.task import Scaling


def clean_symbols(where: str, x: np.ndarray, lengths: np.ndarray, vocabulary: int, first_row: int = 0) -> np.ndarray:
    """Return symbols in the smallest sufficient type, zero after each row's end; refuse those outside a vocabulary."""
    real = np.arange(x.shape[1]) < lengths[:, None]
    wrong = real & ((x < 0) | (x >= vocabulary))
    if wrong.any():
        row, token = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: {x[row, token]} in row {first_row + row}, token {token} is no symbol from 0 to {vocabulary - 1}"
        )
    return np.where(real, x, 0).astype(np.min_scalar_type(vocabulary - 1))


def clean_values(where: str, x: np.ndarray, lengths: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Return values as float32 (bytes stay bytes), zero after each row's end; refuse those that are not finite."""
    real = (np.arange(x.shape[1]) < lengths[:, None])[:, :, None]
    with np.errstate(over="ignore"):
        values = np.where(real, x, 0).astype(np.uint8 if x.dtype == np.uint8 else np.float32)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, token, channel = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: x is {x[row, token, channel]} in row {first_row + row}, token {token}, column {channel}; "
            "repair or remove the row, or end it there with lengths"
        )
    return values


def standardisation(stretches: Iterator[np.ndarray]) -> Scaling:
    """Return the per-channel standardisation of tokens that come in stretches.

    Sums are taken around the first stretch's mean, in float64, so that a large constant does not eat the spread.

    Parameters
    ----------
    stretches : iterator of ndarray, (tokens, dim)
        All training tokens.

    Returns
    -------
    Scaling
        Mean and inverse standard deviation; 1 for a channel that does not vary.
    """
    first = next(stretches)
    shift = first.mean(axis=0, dtype=np.float64)
    count, total, squares = 0, np.zeros_like(shift), np.zeros_like(shift)
    for tokens in chain([first], stretches):
        centred = tokens - shift
        count += len(centred)
        total = total + centred.sum(axis=0)
        squares = squares + (centred**2).sum(axis=0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    still = deviation <= 1e-12 * np.maximum(np.abs(shift + mean), 1e-300)
    scale = 1 / np.where(still, 1, deviation)
    return Scaling(offset=(shift + mean).astype(np.float32), scale=scale.astype(np.float32))
