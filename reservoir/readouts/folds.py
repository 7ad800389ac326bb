"""Which fold each row of a K-fold cross-validation belongs to: by chance, even over classes, never cutting a group."""

from __future__ import annotations

import numpy as np

from reservoir.errors import InputError


def deal_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Return the fold of each row, (rows,) of int64; every ``repeat`` is another deal of the same rows.

    Folds differ by one row at most; with class labels (rows,), also within each class. Rows of one group, (rows,) of
    any values, share a fold: the largest groups are dealt first, each to the fold that has fewest of its classes.
    """
    units = rows if groups is None else len(np.unique(groups))
    if not 2 <= folds <= units:
        what = "rows" if groups is None else "groups"
        raise InputError(
            f"cross-validation: {folds} folds of {units} {what}; give at least 2 folds, and {what} for each"
        )
    draw = np.random.default_rng((seed, repeat))
    if groups is not None:
        return _deal_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Dealt in turns, class after class: whoever gets one row more of a class gets one less of the next.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def _deal_groups(draw: np.random.Generator, folds: int, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return folds that keep groups whole, with as even a share of every class as the groups allow."""
    _, number = np.unique(groups, return_inverse=True)
    classes, code = np.unique(labels, return_inverse=True)
    counts = np.zeros((number.max() + 1, len(classes)))
    np.add.at(counts, (number, code), 1)
    shares = counts / counts.sum(axis=0)
    order = draw.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    held, chosen = np.zeros((folds, len(classes))), np.empty(len(counts), np.int64)
    for group in order:
        # The sum of squared shares of all folds grows least where the group meets fewest of its own classes.
        clash = held @ shares[group]
        best = np.flatnonzero(clash <= clash.min() * (1 + 1e-9))
        chosen[group] = best[np.argmin(held[best].sum(axis=1))]
        held[chosen[group]] += counts[group]
    return chosen[number]
