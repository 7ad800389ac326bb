"""The split of each row, decided by a hash and never by a random state."""

import zlib

import numpy as np

HELD_OUT = 0.1  # share of a training file that becomes the validation split if the publisher has none
MAX_COUNTS = 2**24  # counts of rows by group and class that fit into memory; else only sizes are balanced
MAX_SWAPPED = 500  # groups up to which all swaps are tried; more groups divide evenly without
SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}  # shares of the splits if a source has none


def row_hash(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a 64-bit hash of each row number: output ``row`` of SplitMix64 (Steele, Lea and Flood 2014)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return _mix(_mix(np.array([seed], np.uint64)) + golden * (rows.astype(np.uint64) + np.uint64(1)))


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def held_out(rows: np.ndarray) -> np.ndarray:
    """Return True for the rows of a training file that form the validation split, about `HELD_OUT` of them."""
    return row_hash(rows) < np.uint64(int(HELD_OUT * 2**64))


def stratified(labels: np.ndarray, shares: dict[str, float], *, spread: bool = False) -> np.ndarray:
    """Return the split of each row: each class, in the order of `row_hash`, is divided in these proportions.

    The borders between splits are rounded. With ``spread``, they are rounded up in some classes and down in others, so
    that small classes together have these proportions, too; every class keeps a row in the first split.
    """
    order = row_hash(np.arange(len(labels)))
    cuts = np.cumsum(list(shares.values()))[:-1]
    names = np.array(list(shares))
    split = np.empty(len(labels), dtype=names.dtype)
    classes = np.unique(labels)
    # A border is rounded up in a share of the classes that is its fraction, because the phases are equally spaced.
    phases = (np.arange(len(classes)) + 0.5) / len(classes)
    for label, phase in zip(classes, phases, strict=True):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(order[members])]
        exact = cuts * len(members)
        edges = np.maximum(1, np.floor(exact + phase)).astype(int) if spread else np.rint(exact).astype(int)
        for name, part in zip(names, np.split(members, edges), strict=True):
            split[part] = name
    return split


def grouped(groups: np.ndarray, classes: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Return the split of each row, (rows,) of str; all rows of a group (rows,) are in one split.

    Each split gets about its share of all rows and of the rows of each class (rows,), as evenly as
    groups allow, and every split gets a group if there are enough groups. A hash of the groups' names
    decides among groups of one size, and the order of the rows decides nothing.
    """
    # The number of the group of each row, and the rows of each group.
    names, group_of_row, sizes = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    hashes = row_hash(np.array([zlib.crc32(name.encode()) for name in names.tolist()]))
    largest_first = np.lexsort((hashes, -sizes))
    labels, class_of_row = np.unique(classes, return_inverse=True)
    if len(names) * len(labels) > MAX_COUNTS:
        # Too many to count, such as a class for each row: all rows are one class, so only sizes are balanced.
        labels, class_of_row = labels[:1], np.zeros_like(class_of_row)
    # The rows of each group by class, and in the last place all of its rows.
    cells = len(names) * len(labels)
    cell_of_row = group_of_row * len(labels) + class_of_row
    counts = np.bincount(cell_of_row, minlength=cells).reshape(len(names), -1)
    rows = np.concatenate([counts, sizes[:, None]], axis=1)[largest_first].astype(float)
    # How far a split is from its share: chi-squared, in which the sizes weigh as much as all classes.
    target = np.array(list(shares.values()))[:, None] * rows.sum(axis=0)
    weights = 1 / target
    weights[:, -1] *= len(labels)
    # Large groups are divided first, because small ones can even out what is left. Swaps then improve the division.
    filled = _filled(rows, target, weights)
    split_of_group = np.zeros(len(names), np.int64)
    split_of_group[largest_first] = _swapped(rows, target, weights, filled)
    return np.array(list(shares))[split_of_group[group_of_row]]


def _filled(rows: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the split of each group: group by group, where the distance of the splits from their target grows least.

    ``rows`` (groups, counts) and ``target`` (splits, counts) count the rows of each class, and all rows.
    The distance is the sum of ``weights * (counts - target)**2``.
    """
    counts = np.zeros_like(target)  # rows that a split has so far
    split_of = np.zeros(len(rows), np.int64)
    occupied = np.zeros(len(target), bool)
    for group, row in enumerate(rows):
        # (c + r - t)^2 - (c - t)^2 = r (2 (c - t) + r)
        growth = _exact_sum(weights * row * (2 * (counts - target) + row))
        if len(rows) - group <= (~occupied).sum():  # each of the last groups is needed for an empty split
            growth[occupied] = np.iinfo(np.int64).max
        split = int(np.argmin(growth))
        split_of[group] = split
        occupied[split] = True
        counts[split] += row
    return split_of


def _swapped(rows: np.ndarray, target: np.ndarray, weights: np.ndarray, split_of: np.ndarray) -> np.ndarray:
    """Return the splits after swaps of two groups, as long as they lower the distance of `_filled`.

    ``rows`` (groups, counts) and ``target`` (splits, counts) are those of `_filled`. More than `MAX_SWAPPED`
    groups stay where they are, because all pairs are compared.
    """
    if len(rows) > MAX_SWAPPED:
        return split_of
    split_of = split_of.copy()
    # How many rows each split has above its target; a swap changes it by the difference of the two groups.
    over = np.stack([rows[split_of == split].sum(axis=0) for split in range(len(target))]) - target
    # `_exact_sum` rounds each of these terms to a whole number. A larger gain is real, so no swap is ever undone.
    rounding = rows.shape[1]
    improved = True
    while improved:
        improved = False
        for group in range(len(rows)):
            # The change of the sum of squares if this group swaps places with each other group: a split that is
            # over its target by o and gains m rows changes by (o + m)^2 - o^2 = m (2 o + m).
            here = split_of[group]
            moved = rows - rows[group]
            change = weights[here] * moved * (2 * over[here] + moved)
            change += weights[split_of] * moved * (moved - 2 * over[split_of])
            total = np.where(split_of == here, 0, _exact_sum(change))
            other = int(np.argmin(total))
            if total[other] < -rounding:
                partner = split_of[other]
                over[here] += moved[other]
                over[partner] -= moved[other]
                split_of[group] = partner
                split_of[other] = here
                improved = True
    return split_of


def _exact_sum(terms: np.ndarray) -> np.ndarray:
    """Return the sums of each row in millionths as integers, which are the same on every processor."""
    return np.rint(1e6 * terms).astype(np.int64).sum(axis=1)
