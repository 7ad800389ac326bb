"""The split of each row, decided by a hash and never by a random state."""

import zlib

import numpy as np

HELD_OUT = 0.1  # share of a training file that becomes the validation split if the publisher has none
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


def stratified(labels: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Return the split of each row: each class, in the order of `row_hash`, is divided in these proportions."""
    order = row_hash(np.arange(len(labels)))
    cuts = np.cumsum(list(shares.values()))[:-1]
    names = np.array(list(shares))
    split = np.empty(len(labels), dtype=names.dtype)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(order[members])]
        edges = np.rint(cuts * len(members)).astype(int)
        for name, part in zip(names, np.split(members, edges), strict=True):
            split[part] = name
    return split


def grouped(groups: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Return the split of each row, (rows,) of str; all rows of a group (rows,) are in one split.

    Groups are ordered by a hash of their names. Each group is added to the first split without its
    full share of the rows, and every split gets a group if there are enough groups.
    """
    names, members = np.unique(groups.astype(str), return_inverse=True)
    sizes = np.bincount(members)
    order = np.argsort(
        row_hash(np.array([zlib.crc32(name.encode()) for name in names.tolist()])), kind="stable"
    )
    ends, place, taken = np.cumsum(list(shares.values())) * len(groups), 0, 0
    split_of = np.zeros(len(names), np.int64)
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        split_of[group] = place
        taken += sizes[group]
        if place < len(shares) - 1 and (taken >= ends[place] or left <= len(shares) - place):
            place += 1
    return np.array(list(shares))[split_of[members]]
