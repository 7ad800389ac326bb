"""Random assignments of rows: to the folds of a cross-validation, and to an order for a learning curve."""

from collections.abc import Iterable, Iterator

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import Block


def with_numbers(blocks: Iterable[Block], numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks of samples with the number of each sample, from the numbers (n,) of all samples in order."""
    start = 0
    for x, y in blocks:
        yield x, y, numbers[start : start + len(x)]
        start += len(x)


def draw_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
) -> np.ndarray:
    """Return the fold of each row, (rows,) of int64; each ``repeat`` is another assignment of the same rows.

    Fold sizes differ by one row at most; with class labels (rows,), this also holds within each class. Rows of one
    group, given as (rows,) of any values, share a fold: the largest groups are assigned first, each to the fold that
    has the fewest rows of its classes.
    """
    units = rows if groups is None else len(np.unique(groups))
    if not 2 <= folds <= units:
        what = "rows" if groups is None else "groups"
        raise InputError(
            f"cross-validation: {folds} folds of {units} {what}; give at least 2 folds, and {what} for each"
        )
    draw = np.random.default_rng((0, repeat))
    if groups is not None:
        return _assign_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Rows are assigned in turn, class after class: a fold with one row more of a class gets one less of the next.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def draw_ranks(rows: int, labels: np.ndarray | None = None, draw: int = 0) -> np.ndarray:
    """Return the place of each row in a random order, (rows,); each ``draw`` is another order of the same rows.

    With class labels (rows,), the first rows of the order, however many, have the shares of classes that all rows have,
    to within one row of each class.
    """
    generator = np.random.default_rng((1, draw))
    ranks = generator.permutation(rows)
    if labels is None:
        return ranks
    share = np.empty(rows)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        share[mine] = (ranks[mine].argsort().argsort() + generator.random()) / len(mine)
    return share.argsort().argsort()


def _assign_groups(draw: np.random.Generator, folds: int, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
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
