"""Labels of your own data: classes or numbers, names of the classes, and the splits of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.kinds import FEW_CLASSES, counted_through, read_labels
from reservoir.tasks.own.tables import EMPTY
from reservoir.tasks.rows import HELD_OUT, SHARES, grouped, stratified
from reservoir.tasks.task import MISSING

MOST_ROUNDING = 1e-3
"""Largest error of float32 in a target, as a share of its standard deviation."""


SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
"""Names of splits in folders and datasets, in small letters, and our names for them."""


@dataclass(frozen=True)
class Labels:
    """Labels as a task stores them: class numbers (int64) or targets (float32), (rows, readout_tokens, outputs)."""

    y: np.ndarray
    classes: int  # 0 for targets
    names: tuple[str | int, ...]  # of the classes, where they are not just 0, 1, 2, ...
    notes: tuple[str, ...] = ()


def encode_labels(
    where: str, y: np.ndarray, units: np.ndarray | None = None, *, regression: bool = False, classes: bool = False
) -> Labels:
    """Return labels with their classes numbered.

    Floats are targets, strings and booleans are classes, and `reservoir.tasks.own.kinds.read_labels` decides about
    integers, unless a flag does. Classes are numbered in sorted order; integers 0, 1, ..., n - 1 need no names.

    Parameters
    ----------
    where : str
        Name of the data for messages.
    y : ndarray, (rows,), (rows, outputs) or (rows, readout_tokens, outputs)
        The labels.
    units : ndarray of int, (rows,), optional
        How many tokens or words of each row have a label; those behind are missing: class -1, or NaN.
    regression, classes : bool, default False
        Whether a flag says what the labels are.
    """
    if y.dtype.kind not in "biufUS":
        raise InputError(f"{where}: y holds {y.dtype} values; give integers or strings for classes, floats for targets")
    if not 1 <= y.ndim <= 3 or not y.size:
        raise InputError(f"{where}: y has the shape {y.shape}; give (rows,) or (rows, outputs)")
    if units is not None:
        return _of_units(where, y, units, regression=regression, classes=classes)
    y, notes = _read_as(where, y, regression, classes)
    shaped = y[:, None, None] if y.ndim == 1 else y[:, None] if y.ndim == 2 else y
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            row = int(np.argwhere(~np.isfinite(shaped))[0, 0])
            raise InputError(f"{where}: y is not finite in row {row}; remove the row or give its target")
        return Labels(_single(where, shaped), 0, (), notes)
    found, numbers, counts = np.unique(shaped, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(shaped.shape).astype(np.int64)
    names = [name.decode() if isinstance(name, bytes) else name for name in found.tolist()]
    odd = [name for name in names if str(name).strip().lower() in EMPTY]
    notes += tuple(f"y has a class {name!r}; remove these rows if it stands for a missing label" for name in odd)
    notes += _odd_classes(names, counts)
    if len(names) == 1:
        raise InputError(f"{where}: all labels are the same ({names[0]!r}); give rows of at least two classes")
    if y.dtype.kind in "US" and len(names) == y.size > 2:
        raise InputError(
            f"{where}: each row has a label of its own ({names[0]!r}, ...), as names of rows have; name "
            "the column of the labels with --label"
        )
    return Labels(
        numbers, len(names), () if y.dtype.kind != "b" and names == list(range(len(names))) else tuple(names), notes
    )


def _of_units(where: str, y: np.ndarray, units: np.ndarray, *, regression: bool, classes: bool) -> Labels:
    there = np.arange(y.shape[1]) < units[:, None]
    found = encode_labels(where, y[there], regression=regression, classes=classes)
    full = np.full((*there.shape, found.y.shape[2]), MISSING if found.classes else np.nan, found.y.dtype)
    full[there] = found.y[:, 0]
    return replace(found, y=full)


def _odd_classes(names: Sequence[Any], counts: np.ndarray) -> tuple[str, ...]:
    """Return notes on classes of a single row, and on classes that differ in capitals alone."""
    lone = [str(name) for name, count in zip(names, counts, strict=True) if count == 1]
    problem = "classes of a single row, which cannot be both learnt and tested"
    notes = (f"{problem} ({len(lone)}): {', '.join(lone[:5])}",) if lone else ()
    first = {str(name).lower(): name for name in reversed(names)}
    pairs = [(first[str(name).lower()], name) for name in names if first[str(name).lower()] != name]
    return notes + tuple(
        f"y has the classes {one!r} and {name!r}; spell them the same if they are one class" for one, name in pairs
    )


def _read_as(where: str, y: np.ndarray, regression: bool, classes: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return floats for targets, or integers or strings for classes, and notes on what was decided by rule."""
    if regression and (classes or y.dtype.kind in "US"):
        raise InputError(f"{where}: y holds {y.dtype} values; leave out --regression")
    whole = y.dtype.kind != "f" or bool((np.isfinite(y) & (y == np.rint(y))).all())
    if classes and not whole:
        raise InputError(f"{where}: y holds numbers that are not whole; leave out --classes")
    if regression or classes or y.dtype.kind not in "iuf" or not whole:
        return y.astype(np.float64) if regression else y.astype(np.int64) if y.dtype.kind == "f" and classes else y, ()
    if y.dtype.kind == "f":
        return y, ("y holds whole floats, read as targets of a regression; pass --classes for classes",)
    reading = read_labels(y)
    if not reading.names:
        return y.astype(np.float64), (f"y read as targets of a regression ({reading.why}); pass --classes for classes",)
    numbers = np.unique(y)
    plain = len(numbers) <= FEW_CLASSES and (len(numbers) == 2 or counted_through(numbers))
    return y, () if plain else (f"y read as classes ({reading.why}); pass --regression for targets",)


def _single(where: str, y: np.ndarray) -> np.ndarray:
    """Return finite targets, (rows, readout_tokens, outputs), as float32; refuse those that lose their digits."""
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


def split_rows(where: str, labels: Labels, split: np.ndarray | None, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the split of each row, (rows,) of str.

    Without ``split`` the rows are divided 60/20/20; if only "valid" is missing, a tenth of "train" becomes it. A hash
    of the row numbers decides, stratified by the class of the first output; with ``groups`` a hash of their names, and
    no group is in two splits.
    """
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)

    def divided(rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
        return stratified(classes[rows], shares) if groups is None else grouped(groups[rows], shares)

    every = np.arange(len(classes))
    if split is None:
        names = divided(every, SHARES)
    else:
        names = np.array([s.decode() if isinstance(s, bytes) else str(s) for s in split], dtype="U16")
        unknown = ~np.isin(names, list(SHARES))
        if unknown.any():
            row = int(np.argmax(unknown))
            raise InputError(f"{where}: split is {str(names[row])!r} in row {row}; give train, valid or test")
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            shares = {"train": 1 - HELD_OUT, "valid": HELD_OUT}
            names[train] = divided(train, shares)
            if "valid" not in names and groups is None:  # no class has rows enough for a tenth of its own
                names[train] = stratified(np.zeros(len(train), np.int64), shares)
    for name in SHARES:
        if name not in names:
            raise InputError(f"{where}: none of the {len(names)} rows is for the split {name!r}; give more rows")
    if groups is not None:
        _check_groups(where, groups, names)
    return names


def _check_groups(where: str, groups: np.ndarray, split: np.ndarray) -> None:
    of_group: dict[str, str] = {}
    for group, name in zip(groups.tolist(), split.tolist(), strict=True):
        if of_group.setdefault(group, name) != name:
            both = f"{of_group[group]} and {name}"
            raise InputError(f"{where}: group {group!r} has rows in {both}; leave out split, or groups")
