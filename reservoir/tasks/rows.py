"""The split of each row, decided by a hash and never by a random state."""

import zlib

import numpy as np

HELD_OUT_SHARE = 0.1  # share of a training file that becomes the validation split if the publisher has none
MAX_COUNTS = 2**24  # counts of rows by group and class that fit into memory; else only sizes are balanced
MAX_SWAPPED = 500  # groups up to which all swaps are tried; more groups divide evenly without
SPLIT_SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}  # shares of the splits if a source has none


def row_hash(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a 64-bit hash of each row number, (rows,) of uint64: output ``row`` of SplitMix64 with this seed."""
    # Steele, Lea and Flood (2014): the state grows by the golden ratio times 2**64 with each output, which is its mix.
    golden_ratio = np.uint64(0x9E3779B97F4A7C15)
    first_state = _mix(np.array([seed], np.uint64))
    states = first_state + golden_ratio * (rows.astype(np.uint64) + np.uint64(1))
    return _mix(states)


def _mix(z: np.ndarray) -> np.ndarray:
    """Return SplitMix64's permutation of 64-bit numbers, each of whose bits depends on all bits of the number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def held_out(rows: np.ndarray) -> np.ndarray:
    """Return, for row numbers of a training file, whether each is held out for validation: about `HELD_OUT_SHARE`."""
    return row_hash(rows) < np.uint64(int(HELD_OUT_SHARE * 2**64))


def stratified(labels: np.ndarray, shares: dict[str, float], *, spread: bool = False) -> np.ndarray:
    """Return the split of each row, (rows,) of str: each class, in the order of `row_hash`, is divided by ``shares``.

    The borders between splits are rounded. With ``spread``, they are rounded up in some classes and down in others, so
    that small classes together have these proportions, too; every class keeps a row in the first split.
    """
    hashes = row_hash(np.arange(len(labels)))
    # Where each split but the last ends, as a share of a class.
    borders = np.cumsum(list(shares.values()))[:-1]
    names = np.array(list(shares))
    split = np.empty(len(labels), dtype=names.dtype)
    classes = np.unique(labels)
    # With a phase from 0 to 1, floor(border + phase) rounds up if the fraction of the border is at least 1 - phase. The
    # phases of the classes are equally spaced, so a border of fraction f is rounded up in a share f of the classes.
    phases = (np.arange(len(classes)) + 0.5) / len(classes)
    for label, phase in zip(classes, phases, strict=True):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(hashes[members])]
        exact_ends = borders * len(members)
        rounded_ends = np.floor(exact_ends + phase) if spread else np.rint(exact_ends)
        least_end = 1 if spread else 0  # of the first split
        ends = np.maximum(least_end, rounded_ends).astype(int)
        for name, rows in zip(names, np.split(members, ends), strict=True):
            split[rows] = name
    return split


def grouped(groups: np.ndarray, classes: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Return the split of each row, (rows,) of str; all rows of a group (rows,) are in one split.

    Each split gets about its share of all rows and of the rows of each class (rows,), as evenly as
    groups allow, and every split gets a group if there are enough groups. A hash of the groups' names
    decides among groups of one size, and the order of the rows decides nothing.
    """
    # The number of the group of each row, and the number of rows of each group.
    names, group_of_row, sizes = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    hashes = row_hash(np.array([zlib.crc32(name.encode()) for name in names.tolist()]))
    largest_first = np.lexsort((hashes, -sizes))
    labels, class_of_row = np.unique(classes, return_inverse=True)
    if len(names) * len(labels) > MAX_COUNTS:
        # Too many to count, such as a class for each row: all rows are one class, so only sizes are balanced.
        labels, class_of_row = labels[:1], np.zeros_like(class_of_row)
    # The rows of each group by class, and in the last place all of its rows: (groups, classes + 1).
    cells = len(names) * len(labels)
    cell_of_row = group_of_row * len(labels) + class_of_row
    class_counts = np.bincount(cell_of_row, minlength=cells).reshape(len(names), -1)
    counts = np.concatenate([class_counts, sizes[:, None]], axis=1)[largest_first].astype(float)
    # How far a split is from its share: chi-squared, in which the sizes weigh as much as all classes.
    target = np.array(list(shares.values()))[:, None] * counts.sum(axis=0)  # (splits, classes + 1)
    weights = 1 / target
    weights[:, -1] *= len(labels)
    # Large groups are divided first, because small ones can even out what is left. Swaps then improve the division.
    filled = _filled(counts, target, weights)
    split_of_group = np.zeros(len(names), np.int64)
    split_of_group[largest_first] = _swapped(counts, target, weights, filled)
    return np.array(list(shares))[split_of_group[group_of_row]]


def _filled(group_counts: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the split of each group, (groups,): one after the other, where the distance from the target grows least.

    ``group_counts`` (groups, counts) are the rows of each group, by class and in all, and ``target`` (splits, counts)
    those that a split should have. The distance is the sum of ``weights * (counts of the splits - target)**2``.
    """
    counts = np.zeros_like(target)  # rows that each split has so far
    split_of_group = np.zeros(len(group_counts), np.int64)
    is_occupied = np.zeros(len(target), bool)
    for group, added in enumerate(group_counts):
        # How the distance grows if a split with counts c and target t gets a group with counts r:
        # (c + r - t)^2 - (c - t)^2 = r (2 (c - t) + r)
        growth = _exact_sum(weights * added * (2 * (counts - target) + added))
        groups_left = len(group_counts) - group
        empty_splits = (~is_occupied).sum()
        if groups_left <= empty_splits:  # each of them is needed for an empty split
            growth[is_occupied] = np.iinfo(np.int64).max
        split = int(np.argmin(growth))
        split_of_group[group] = split
        is_occupied[split] = True
        counts[split] += added
    return split_of_group


def _swapped(
    group_counts: np.ndarray, target: np.ndarray, weights: np.ndarray, split_of_group: np.ndarray
) -> np.ndarray:
    """Return the split of each group, (groups,), after swaps of two groups as long as they lower the distance.

    The distance and the first three arguments are those of `_filled`. More than `MAX_SWAPPED` groups stay where they
    are, because all pairs are compared.
    """
    if len(group_counts) > MAX_SWAPPED:
        return split_of_group
    split_of_group = split_of_group.copy()
    # How many rows each split has above its target; a swap changes it by the difference of the two groups.
    counts = [group_counts[split_of_group == split].sum(axis=0) for split in range(len(target))]
    excess = np.stack(counts) - target
    # `_exact_sum` rounds each term to a whole number, and there are so many terms. A larger gain is real, so no swap is
    # ever undone.
    largest_error = group_counts.shape[1]
    has_improved = True
    while has_improved:
        has_improved = False
        for group in range(len(group_counts)):
            # How the distance changes if this group swaps places with each other group: a split that is over its
            # target by e and gains g rows changes by (e + g)^2 - e^2 = g (2 e + g). The other split loses them.
            split = split_of_group[group]
            gain = group_counts - group_counts[group]
            change = weights[split] * gain * (2 * excess[split] + gain)
            change += weights[split_of_group] * gain * (gain - 2 * excess[split_of_group])
            total_change = np.where(split_of_group == split, 0, _exact_sum(change))
            best = int(np.argmin(total_change))
            if total_change[best] < -largest_error:
                split_of_best = split_of_group[best]
                excess[split] += gain[best]
                excess[split_of_best] -= gain[best]
                split_of_group[group] = split_of_best
                split_of_group[best] = split
                has_improved = True
    return split_of_group


def _exact_sum(terms: np.ndarray) -> np.ndarray:
    """Return the sum of each row of terms (rows, terms) in millionths, (rows,) of int64.

    Sums of integers are the same on every processor, whatever their order.
    """
    return np.rint(1e6 * terms).astype(np.int64).sum(axis=1)
