"""The folds of cross-validation, whether they can choose a readout, and the draws of a learning curve."""

import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.readouts.linear import Block, FoldBlock, RereadableBlocks, Targets
from reservoir.readouts.prequential import CodeLength, portion_ends, prequential_code
from reservoir.readouts.time_sweep import TimeFold
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, KnownSource, groups_of_splits, held_out_units


def can_choose(labels: np.ndarray, units: np.ndarray) -> bool:
    """Return whether folds can choose among readouts, from the class and the unit (row or group) of each sample, (n,).

    A class of a single unit is never both fitted and held out: all readouts are wrong on it. The
    samples of the other classes must be the majority, and of at least two classes.
    """
    # Each pair of a class and a unit once, (2, pairs), so that the pairs of a class count its units.
    unit_numbers = np.unique(units, return_inverse=True)[1]
    pairs = np.unique(np.stack([labels.astype(np.int64), unit_numbers]), axis=1)
    classes, number_of_units = np.unique(pairs[0], return_counts=True)
    classes_of_several_units = classes[number_of_units > 1]
    are_majority = np.isin(labels, classes_of_several_units).mean() > 0.5
    return len(classes_of_several_units) > 1 and bool(are_majority)


def folds_can_choose(source: KnownSource, classes: int) -> bool:
    """Return whether folds can choose among readouts of a source's samples (see `can_choose`); ``classes`` 0: values.

    Labels that are values have no classes, so folds can choose. If a sample has several labels, they are not checked.
    """
    labels = np.concatenate([source.labels(split) for split in KNOWN_SPLITS])
    has_several_labels = labels.shape[1] > 1
    if not classes or has_several_labels:
        return True
    return can_choose(labels[:, 0], held_out_units(source, KNOWN_SPLITS))


def assign_folds(source: KnownSource, folds: int, classes: int, repeats: int = 1) -> np.ndarray:
    """Return the fold of each sample in train, then valid, (n, repeats); samples of a row or group share a fold.

    Each of the ``repeats`` is another draw. A source that comes with folds keeps these.
    """
    if source.fold_of_sample is not None:
        return source.fold_of_sample
    counts = np.concatenate([source.counts(split) for split in KNOWN_SPLITS])
    labels = np.concatenate([source.labels(split) for split in KNOWN_SPLITS])
    groups = groups_of_splits(source)
    # Rows are assigned, and each sample has the fold of its row. Groups are numbered, so that their names
    # may be of any type.
    group_numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
    class_bytes = _as_bytes(_row_classes(source, labels, classes))
    group_bytes = _as_bytes(group_numbers)
    draws = [
        _cached_folds(len(counts), folds, class_bytes, group_bytes, repeat) for repeat in range(repeats)
    ]
    fold_of_row = np.stack(draws, axis=1)  # (rows, repeats)
    return np.repeat(fold_of_row, counts, axis=0)


# All columns of a fit have the same folds, and those of 100,000 groups take 10 s.
@functools.lru_cache(maxsize=8)
def _cached_folds(
    rows: int, folds: int, labels: bytes | None, groups: bytes | None, repeat: int
) -> np.ndarray:
    """Return what `draw_folds` draws, from the cache if it has been drawn before; the array is read-only.

    The classes and groups of the rows are given as bytes of int64, because the keys of a cache cannot be arrays.
    """
    class_of_row = None if labels is None else np.frombuffer(labels, np.int64)
    group_of_row = None if groups is None else np.frombuffer(groups, np.int64)
    fold_of_row = draw_folds(rows, folds, labels=class_of_row, groups=group_of_row, repeat=repeat)
    # The cache returns the same array to all callers.
    fold_of_row.flags.writeable = False
    return fold_of_row


def _as_bytes(numbers: np.ndarray | None) -> bytes | None:
    """Return numbers as the bytes of int64, for `_cached_folds`; None for None."""
    return None if numbers is None else numbers.astype(np.int64).tobytes()


def fold_blocks(source: KnownSource, folds: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of all samples of train, then of valid, each with the folds of its samples, (m, repeats).

    ``folds`` (n, repeats) are those of all samples (see `assign_folds`). If samples have weights, a block has those of
    its samples, (m,), as a fourth array.
    """
    # Of the two ways to read the samples of a source, `blocks` and `blocks_for_products`, this is the one for matrix
    # products: if a device computes them, features may stay encoded as they are stored, and the device decodes them.
    blocks = itertools.chain.from_iterable(map(source.blocks_for_products, KNOWN_SPLITS))
    if source.sample_weights is None:
        return _with_parts(blocks, folds)
    return _with_parts(blocks, folds, source.sample_weights)


def curve_blocks(source: KnownSource, sizes: np.ndarray, classes: int, draw: int) -> Iterator[FoldBlock]:
    """Yield blocks of the training samples of a learning curve, with the index of the size that adds each sample, (m,).

    Point k of the curve has the first ``sizes[k]`` rows of a random order, which differs from ``draw`` to draw; the
    sizes ascend. A sample has the index k if its row is in point k, but not in point k - 1.
    """
    counts = source.counts("train")
    ranks = draw_ranks(len(counts), _row_classes(source, source.labels("train"), classes), draw)
    # The row of rank r is added by the first size above r. Rows that no size has get the index after the last one.
    index_of_row = np.searchsorted(sizes, ranks, side="right")
    for x, y, indices in _with_parts(source.blocks("train"), np.repeat(index_of_row, counts)):
        is_used = indices < len(sizes)
        if is_used.any():
            yield x[is_used], y[is_used], indices[is_used]


def ranked_blocks(source: KnownSource, first_ranks: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of training samples with the rank of each sample in another order, (m,).

    The samples of a row follow each other in that order, too; ``first_ranks`` (rows,) has the rank of each row's first
    sample.
    """
    counts = source.counts("train")
    # The number of each row's first sample in the order of the source.
    first_samples = np.cumsum(counts) - counts
    ranks = np.arange(counts.sum()) + np.repeat(first_ranks - first_samples, counts)
    yield from _with_parts(source.blocks("train"), ranks)


def code_length(source: KnownSource, classes: int) -> CodeLength:
    """Return the length of a prequential code of a source's training labels, sent row by row in a random order.

    The labels are sent in portions. Those of a group are in one portion, because a readout that was fitted to some rows
    of a group would know the others.
    """
    counts, groups = source.counts("train"), source.groups("train")
    unit_of_row = np.arange(len(counts)) if groups is None else np.unique(groups, return_inverse=True)[1]
    # Draw an order of the units (rows, or groups), with a fixed seed, so that it is the same for all columns. The rows
    # of a unit follow each other in their own order.
    units_in_order = np.random.default_rng(0).permutation(int(unit_of_row.max()) + 1)
    rank_of_unit = np.argsort(units_in_order)
    rows_in_order = np.argsort(rank_of_unit[unit_of_row], kind="stable")
    # The samples of a row follow each other: count how many samples have been sent after and before each row.
    samples_after = np.cumsum(counts[rows_in_order])
    samples_before = np.empty(len(counts), np.int64)
    samples_before[rows_in_order] = samples_after - counts[rows_in_order]
    # A portion ends with the unit in which `portion_ends` would end it. For each unit in order, ``rows_after`` counts
    # the rows that have been sent with it, so the first count that reaches an end is that of its unit.
    units = unit_of_row[rows_in_order]
    is_last_row_of_unit = np.append(units[1:] != units[:-1], True)
    rows_after = np.flatnonzero(is_last_row_of_unit) + 1
    unit_of_portion_end = np.searchsorted(rows_after, portion_ends(len(counts), classes))
    last_row_of_portion = rows_after[unit_of_portion_end] - 1
    ends = np.unique(samples_after[last_row_of_portion])
    blocks = RereadableBlocks(ranked_blocks, (source, samples_before))
    targets = Targets(source.labels("train").shape[1], classes)
    return prequential_code(blocks, ends, targets, source.feature_weights)


def _row_classes(source: KnownSource, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """Return the class of each row, (rows,), from the labels of a source's samples (n, outputs).

    None if rows have several labels, or values instead of classes (``classes`` 0).
    """
    has_one_label = source.tokens() == 1 and labels.shape[1] == 1
    return labels[:, 0] if classes and has_one_label else None


def _with_parts(blocks: Iterable[Block], *arrays: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of samples, each with its part of arrays (n, ...), which have a row for each sample."""
    start = 0  # the first sample of a block
    for x, y in blocks:
        yield x, y, *(array[start : start + len(x)] for array in arrays)
        start += len(x)


def draw_folds(
    rows: int,
    folds: int,
    *,
    labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    repeat: int = 0,
) -> np.ndarray:
    """Return the fold of each row, (rows,) of int64, as scikit-learn draws it; each ``repeat`` is another draw.

    ``labels`` (rows,) are the class of each row, and ``groups`` (rows,) its group, which no two folds share.
    With ``labels``, the folds have equal shares of each class, except in two cases in which
    scikit-learn cannot provide them: every class has fewer rows than there are folds, or
    `StratifiedGroupKFold` leaves a fold empty. The folds are then drawn without regard to classes.
    Raise `InputError` if there are fewer rows, or groups, than folds.
    """
    _check_folds(folds, rows, groups)
    # Folds have equal shares of each class if some class has a row for each fold.
    rows_of_largest_class = 0 if labels is None else int(np.unique(labels, return_counts=True)[1].max())
    stratified_labels = labels if rows_of_largest_class >= folds else None
    # Folds of rows are drawn here as scikit-learn draws them, because its import takes as long as a small fit.
    if groups is None:
        random = np.random.RandomState(repeat)
        if stratified_labels is None:
            return _unstratified(rows, folds, random)
        return _stratified(stratified_labels, folds, random)
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    # scikit-learn repeats folds of rows (RepeatedStratifiedKFold), but not those of groups, so each repeat is a seed.
    settings: dict[str, Any] = {"n_splits": folds, "shuffle": True, "random_state": repeat}
    if stratified_labels is not None:
        fold_of_row = _held_out_in(StratifiedGroupKFold(**settings), stratified_labels, groups)
        if len(np.unique(fold_of_row)) == folds:  # scikit-learn's issue 34828: a fold may be empty
            return fold_of_row
    return _held_out_in(GroupKFold(**settings), np.zeros(rows, np.int64), groups)


def _check_folds(folds: int, rows: int, groups: np.ndarray | None) -> None:
    """Raise `InputError` unless every one of at least two folds can have a row, or a group, of its own."""
    units = rows if groups is None else len(np.unique(groups))
    units_name = "rows" if groups is None else "groups"
    if units < 2:
        raise InputError(
            f"cross-validation needs two {units_name} or more, but there is {units}", "add some"
        )
    if not 2 <= folds <= units:
        raise InputError(
            f"cross-validation cannot use {folds} folds for {units} {units_name}", f"use 2 to {units}"
        )


def _unstratified(rows: int, folds: int, random: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row, (rows,), as scikit-learn's `KFold` draws it: parts of a shuffled order."""
    order = np.arange(rows)
    random.shuffle(order)
    fold_of_row = np.empty(rows, np.int64)
    for number, part in enumerate(np.array_split(order, folds)):
        fold_of_row[part] = number
    return fold_of_row


def _stratified(labels: np.ndarray, folds: int, random: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row, (rows,), as scikit-learn's `StratifiedKFold` draws it, from the rows' classes."""
    # Classes are numbered in the order of their first rows: sorting twice gives the rank of each class.
    _, first_rows, index_of_class = np.unique(labels, return_index=True, return_inverse=True)
    class_numbers = first_rows.argsort().argsort()[index_of_class]
    # Of all rows sorted by class, every k-th row is in the same fold, which gives each fold its share of each class.
    # Within a class, the folds are then shuffled.
    fold_of_sorted = np.arange(len(class_numbers)) % folds
    class_of_sorted = np.sort(class_numbers)
    fold_of_row = np.empty(len(class_numbers), np.int64)
    for number in range(len(first_rows)):
        # scikit-learn shuffles the folds in ascending order, and the result of a shuffle depends on the order.
        folds_of_class = np.sort(fold_of_sorted[class_of_sorted == number])
        random.shuffle(folds_of_class)
        fold_of_row[class_numbers == number] = folds_of_class
    return fold_of_row


def _held_out_in(splitter: Any, labels: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the number of the fold in which a splitter of scikit-learn holds out each row, (rows,)."""
    fold_of_row = np.empty(len(labels), np.int64)
    # scikit-learn warns if some class has fewer rows than there are folds, which `draw_folds` allows.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for number, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
            fold_of_row[held_out] = number
    return fold_of_row


def time_folds(samples: int, folds: int, gap: int) -> list[TimeFold]:
    """Return folds of samples in time, as scikit-learn's ``TimeSeriesSplit`` divides them.

    The folds hold out the newest half of the samples, in stretches of one size that follow each other up to the newest
    sample. The model of a fold is fitted to all samples before its stretch but the last ``gap``.
    """
    # TimeSeriesSplit begins by default with a readout of a small part of the samples, which needs another penalty than
    # one of all of them. Ten folds over the newest half had 11% smaller test errors on 50 forecasts of 240 steps, and
    # 4% smaller ones on 69 forecasts of 700 steps.
    size = max(1, samples // (2 * folds))
    from sklearn.model_selection import TimeSeriesSplit

    with as_input_error(
        f"forecasts: {samples} windows are too few for {folds} folds in time with a gap of {gap}",
        "lower --forecast or --past, or give more steps",
    ):
        splits = [*TimeSeriesSplit(folds, gap=gap, test_size=size).split(np.empty(samples))]
    return [
        TimeFold(len(fitted), range(int(held_out[0]), int(held_out[-1]) + 1)) for fitted, held_out in splits
    ]


def draw_ranks(rows: int, labels: np.ndarray | None = None, draw: int = 0) -> np.ndarray:
    """Return the rank of each row in a random order, (rows,); each ``draw`` gives another order.

    With ``labels``, the class of each row (rows,), any first n rows of the order have about the shares of classes that
    all rows have.
    """
    # Other draws of a fit have a single number as their seed, so that (1, draw) is independent of all of them.
    generator = np.random.default_rng((1, draw))
    ranks = generator.permutation(rows)
    if labels is None:
        return ranks
    # The position of each row within its class, from 0 to 1: up to any position, each class has its share of rows. A
    # random start keeps small classes from always coming first.
    position = np.empty(rows)
    for label in np.unique(labels):
        rows_of_class = np.flatnonzero(labels == label)
        rank_in_class = ranks[rows_of_class].argsort().argsort()  # sorting twice gives ranks
        position[rows_of_class] = (rank_in_class + generator.random()) / len(rows_of_class)
    return position.argsort().argsort()
