"""Windows of a float sequence as tokens."""

from __future__ import annotations

import numpy as np

from reservoir.errors import InputError


def window_counts(lengths: np.ndarray, patch: int, stride: int) -> np.ndarray:
    """Return how many whole windows fit: ``(length - patch) // stride + 1``; 0 where none does."""
    return np.maximum((lengths - patch) // stride + 1, 0)


def windows(
    x: np.ndarray, lengths: np.ndarray, patch: int, stride: int, first_row: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cut sequences into windows of ``patch`` values every ``stride``, each with all its channels one token.

    Values after the last whole window are left out; tokens that are not wholly inside their row are zeros.

    Parameters
    ----------
    x : ndarray, (rows, tokens, channels)
    lengths : ndarray of int, (rows,)
        Real tokens of each row.
    patch, stride : int
        Values per window, and from the beginning of one to that of the next.
    first_row : int, default 0
        Row number of ``x[0]``, for messages.

    Returns
    -------
    x : ndarray, (rows, windows, patch * channels)
        A token runs over the values of its window, the channels fastest.
    lengths : ndarray of int32, (rows,)

    Raises
    ------
    InputError
        Naming a row that is shorter than a window.
    """
    counts = window_counts(lengths, patch, stride).astype(np.int32)
    if not counts.all():
        row = int(np.argmin(counts))
        raise InputError(
            f"row {first_row + row} has {lengths[row]} values, less than a window of {patch}; take a smaller patch"
        )
    view = np.lib.stride_tricks.sliding_window_view(x, patch, axis=1)[:, ::stride]
    tokens = view.transpose(0, 1, 3, 2).reshape(len(x), view.shape[1], -1)
    real = np.arange(tokens.shape[1]) < counts[:, None]
    return np.where(real[:, :, None], tokens, np.zeros((), x.dtype)), counts
