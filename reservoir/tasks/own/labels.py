"""Labels of your own data: what is a class, what is a number, and what the classes are called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.rows import HELD_OUT, SHARES, stratified

MOST_ROUNDING = 1e-3
"""Share of an output's standard deviation that float32 may change a target by."""


@dataclass(frozen=True)
class Labels:
    """Labels as a task stores them.

    Parameters
    ----------
    y : ndarray, (rows, readout_tokens, outputs)
        Class numbers (int64) or targets (float32).
    classes : int
        Number of classes; 0 for targets.
    names : tuple of str or int
        Names of the classes, where they are not just 0, 1, 2, ...
    """

    y: np.ndarray
    classes: int
    names: tuple[str | int, ...]


def encode_labels(where: str, y: np.ndarray) -> Labels:
    """Return the labels in ``y`` with their classes numbered.

    Floats are targets. Strings, booleans and integers name classes; they are numbered in sorted order, and integers
    that are exactly 0, 1, ..., n - 1 need no names.

    Parameters
    ----------
    where : str
        The file, for messages.
    y : ndarray, (rows,), (rows, outputs) or (rows, readout_tokens, outputs)

    Raises
    ------
    InputError
        For an object array, another number of axes, no labels, classes that are all the same, and targets that are not
        finite or lose their digits in float32.
    """
    if y.dtype.kind not in "biufUS":
        raise InputError(f"{where}: y holds {y.dtype} values; give integers or strings for classes, floats for targets")
    if not 1 <= y.ndim <= 3 or not y.size:
        raise InputError(f"{where}: y has the shape {y.shape}; give (rows,) or (rows, outputs)")
    shaped = y[:, None, None] if y.ndim == 1 else y[:, None] if y.ndim == 2 else y
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            row = int(np.argwhere(~np.isfinite(shaped))[0, 0])
            raise InputError(f"{where}: y is not finite in row {row}; remove the row or give its target")
        return Labels(_single(where, shaped), 0, ())
    found, numbers = np.unique(shaped, return_inverse=True)
    numbers = numbers.reshape(shaped.shape).astype(np.int64)
    names = [name.decode() if isinstance(name, bytes) else name for name in found.tolist()]
    if len(names) == 1:
        raise InputError(f"{where}: all labels are the same ({names[0]!r}); give rows of at least two classes")
    return Labels(numbers, len(names), () if names == list(range(len(names))) else tuple(names))


def _single(where: str, y: np.ndarray) -> np.ndarray:
    """Return finite targets, (rows, readout_tokens, outputs), as float32; refuse those that it is too coarse for."""
    with np.errstate(over="ignore"):
        stored = y.astype(np.float32)
    if not np.isfinite(stored).all():
        row, token, output = (int(i) for i in np.argwhere(~np.isfinite(stored))[0])
        raise InputError(
            f"{where}: y is {y[row, token, output]} in row {row}, too large for float32; divide y by a unit"
        )
    if stored.dtype == y.dtype:
        return stored
    for output in range(y.shape[2]):
        values = y[:, :, output].astype(np.float64)
        rounding = np.abs(values - stored[:, :, output]).max()
        if np.ptp(values) and rounding > MOST_ROUNDING * values.std():
            raise InputError(
                f"{where}: y varies too little for float32 around its mean in output {output} (standard deviation "
                f"{values.std():.3g}, rounding {rounding:.3g}); subtract an offset from it, such as {values.mean():.6g}"
            )
    return stored


def split_rows(where: str, labels: Labels, split: np.ndarray | None) -> np.ndarray:
    """Return the split of each row, dividing what the file does not divide.

    Without ``split`` the rows are divided 60/20/20; where only "valid" is missing, a tenth of "train" becomes it. Both
    are stratified by the first output's class, and fixed by the row numbers.

    Parameters
    ----------
    where : str
        The file, for messages.
    labels : Labels
        Labels of all rows.
    split : ndarray of str, (rows,), optional
        As given in the file.

    Raises
    ------
    InputError
        For an unknown name, a missing split, or fewer rows than splits.
    """
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)
    if split is None:
        names = stratified(classes, SHARES)
    else:
        names = np.array([s.decode() if isinstance(s, bytes) else str(s) for s in split], dtype="U16")
        unknown = ~np.isin(names, list(SHARES))
        if unknown.any():
            row = int(np.argmax(unknown))
            raise InputError(f"{where}: split is {str(names[row])!r} in row {row}; give train, valid or test")
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            names[train] = stratified(classes[train], {"train": 1 - HELD_OUT, "valid": HELD_OUT})
    for name in SHARES:
        if name not in names:
            raise InputError(f"{where}: none of the {len(names)} rows is for the split {name!r}; give more rows")
    return names
