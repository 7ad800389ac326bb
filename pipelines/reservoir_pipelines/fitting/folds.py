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
from reservoir_pipelines.fitting.source import KNOWN, Source, groups_of_splits, held_out_units


def can_choose(labels: np.ndarray, units: np.ndarray) -> bool:
    """Return whether folds can choose among readouts, from the class and the unit (row or group) of each sample, (n,).

    A class of a single unit is never both fitted and held out: all readouts are wrong on it. The
    samples of the other classes must be the majority, and of at least two classes.
    """
    # Each pair of a class and a unit once, so that the pairs of a class count its units.
    unit_numbers = np.unique(units, return_inverse=True)[1]
    classes_and_units = np.unique(np.stack([labels.astype(np.int64), unit_numbers]), axis=1)
    classes, units_of_class = np.unique(classes_and_units[0], return_counts=True)
    in_several_units = classes[units_of_class > 1]
    are_majority = np.isin(labels, in_several_units).mean() > 0.5
    return len(in_several_units) > 1 and bool(are_majority)


def folds_can_choose(source: Source, classes: int) -> bool:
    """Return whether folds can choose among readouts of the samples of a source (see `can_choose`)."""
    labels = np.concatenate([source.labels(split) for split in KNOWN])
    # Values have no classes. With several labels per sample, a row holds out each of them in some class.
    if not classes or labels.shape[1] > 1:
        return True
    return can_choose(labels[:, 0], held_out_units(source, KNOWN))


def assign_folds(source: Source, folds: int, classes: int, repeats: int = 1) -> np.ndarray:
    """Return the fold of each sample in train, then valid, (n, repeats); samples of a row or group share a fold."""
    if source.fold_of_sample is not None:
        return source.fold_of_sample
    counts = np.concatenate([source.counts(split) for split in KNOWN])
    labels = np.concatenate([source.labels(split) for split in KNOWN])
    groups = groups_of_splits(source)
    # Rows are assigned, and each sample has the fold of its row. Groups are numbered, so that their names
    # may be of any type.
    group_numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
    class_bytes = _as_bytes(_row_classes(source, labels, classes))
    group_bytes = _as_bytes(group_numbers)
    draws = [_draw_once(len(counts), folds, class_bytes, group_bytes, repeat) for repeat in range(repeats)]
    return np.repeat(np.stack(draws, axis=1), counts, axis=0)


# All columns of a fit have the same folds, and those of 100,000 groups take 10 s.
@functools.lru_cache(maxsize=8)
def _draw_once(
    rows: int, folds: int, labels: bytes | None, groups: bytes | None, repeat: int
) -> np.ndarray:
    """Return `draw_folds`; classes and groups are given as bytes of int64, because a cache has no arrays as keys."""
    class_of_row = None if labels is None else np.frombuffer(labels, np.int64)
    group_of_row = None if groups is None else np.frombuffer(groups, np.int64)
    fold_of_row = draw_folds(rows, folds, labels=class_of_row, groups=group_of_row, repeat=repeat)
    # The cache returns the same array to all callers.
    fold_of_row.flags.writeable = False
    return fold_of_row


def _as_bytes(numbers: np.ndarray | None) -> bytes | None:
    return None if numbers is None else numbers.astype(np.int64).tobytes()


def fold_blocks(source: Source, folds: np.ndarray) -> Iterator[FoldBlock]:
    """Yield all samples of train, then of valid, each block with its part of ``folds`` (see `assign_folds`).

    If samples have weights, a block has its part of them too.
    """
    blocks = itertools.chain.from_iterable(map(source.blocks_for_products, KNOWN))
    if source.sample_weights is None:
        return _with_parts(blocks, folds)
    return _with_parts(blocks, folds, source.sample_weights)


def stage_blocks(source: Source, sizes: np.ndarray, classes: int, draw: int) -> Iterator[FoldBlock]:
    """Yield blocks of the training samples of a learning curve, each with the stage (m,) in which a sample is added.

    Stage k has the first ``sizes[k]`` rows of a random order, which differs from ``draw`` to draw; sizes ascend.
    """
    counts = source.counts("train")
    ranks = draw_ranks(len(counts), _row_classes(source, source.labels("train"), classes), draw)
    # The row of rank r is added in the first stage with a size above r. Rows beyond the largest size are in no stage,
    # and get the number after the last.
    stage_of_row = np.searchsorted(sizes, ranks, side="right")
    for x, y, stages in _with_parts(source.blocks("train"), np.repeat(stage_of_row, counts)):
        is_used = stages < len(sizes)
        if is_used.any():
            yield x[is_used], y[is_used], stages[is_used]


def ranked_blocks(source: Source, starts: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of training samples with the rank of each, (m,); ``starts`` (rows,) has that of a row's first."""
    counts = source.counts("train")
    first_samples = np.cumsum(counts) - counts
    ranks = np.arange(counts.sum()) + np.repeat(starts - first_samples, counts)
    yield from _with_parts(source.blocks("train"), ranks)


def code_length(source: Source, classes: int) -> CodeLength:
    """Return the length of a prequential code of a source's training labels, sent row by row in a random order.

    The rows of a group follow each other and are in one portion, because a readout of some of them would know the rest.
    """
    counts, groups = source.counts("train"), source.groups("train")
    unit_of_row = np.arange(len(counts)) if groups is None else np.unique(groups, return_inverse=True)[1]
    # Rows, or groups of rows, in a random order, which is the same for all columns.
    order_of_units = np.random.default_rng(0).permutation(int(unit_of_row.max()) + 1)
    place_of_unit = np.argsort(order_of_units)
    order = np.argsort(place_of_unit[unit_of_row], kind="stable")
    # The samples of a row follow each other, and portions consist of whole rows and whole groups.
    ends_of_rows = np.cumsum(counts[order])
    starts = np.empty(len(counts), np.int64)
    starts[order] = ends_of_rows - counts[order]
    units = unit_of_row[order]
    rows_at_ends = np.flatnonzero(np.append(units[1:] != units[:-1], True)) + 1
    unit_of_portion_end = np.searchsorted(rows_at_ends, portion_ends(len(counts), classes))
    ends = np.unique(ends_of_rows[rows_at_ends[unit_of_portion_end] - 1])
    blocks = RereadableBlocks(ranked_blocks, (source, starts))
    targets = Targets(source.labels("train").shape[1], classes)
    return prequential_code(blocks, ends, targets, source.feature_weights)


def _row_classes(source: Source, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """Return the class of each row, (rows,); None if rows have several labels, or values instead of classes."""
    has_one_label = source.tokens() == 1 and labels.shape[1] == 1
    return labels[:, 0] if classes and has_one_label else None


def _with_parts(blocks: Iterable[Block], *arrays: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of samples, each with its part of arrays (n, ...), which have a row for each sample."""
    start = 0
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

    With ``labels``, the folds have equal shares of each class, except in two cases in which
    scikit-learn cannot provide them: every class has fewer rows than there are folds, or
    `StratifiedGroupKFold` leaves a fold empty. The folds are then drawn without regard to classes.
    """
    # Every fold needs a row, or a group, of its own.
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
    # Folds have equal shares of each class if some class has a row for each fold.
    largest_class = 0 if labels is None else int(np.unique(labels, return_counts=True)[1].max())
    stratified_labels = labels if largest_class >= folds else None
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


def _unstratified(rows: int, folds: int, random: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row, (rows,), as scikit-learn's `KFold` draws it: parts of a shuffled order."""
    order = np.arange(rows)
    random.shuffle(order)
    fold_of_row = np.empty(rows, np.int64)
    for number, part in enumerate(np.array_split(order, folds)):
        fold_of_row[part] = number
    return fold_of_row


def _stratified(labels: np.ndarray, folds: int, random: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row, (rows,), as scikit-learn's `StratifiedKFold` draws it."""
    # Classes are numbered by their first row: sorting twice gives the rank of each class.
    _, first_rows, sorted_classes = np.unique(labels, return_index=True, return_inverse=True)
    classes = first_rows.argsort().argsort()[sorted_classes]
    # Each fold takes every k-th row of all rows sorted by class, which gives it its share of each class.
    fold_of_sorted = np.arange(len(classes)) % folds
    class_of_sorted = np.sort(classes)
    fold_of_row = np.empty(len(classes), np.int64)
    for number in range(len(first_rows)):
        folds_of_class = np.sort(fold_of_sorted[class_of_sorted == number])
        random.shuffle(folds_of_class)
        fold_of_row[classes == number] = folds_of_class
    return fold_of_row


def _held_out_in(splitter: Any, labels: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the number of the fold in which a splitter of scikit-learn holds out each row, (rows,)."""
    fold_of_row = np.empty(len(labels), np.int64)
    # Some class may have fewer rows than folds.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for number, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
            fold_of_row[held_out] = number
    return fold_of_row


def time_folds(samples: int, folds: int, gap: int) -> list[TimeFold]:
    """Return folds of samples in time, as scikit-learn's ``TimeSeriesSplit`` divides them.

    The held-out samples of the folds are the newest half: they are of one size, follow each other, and end
    with the newest sample. A model is fitted to all samples before them but the last ``gap``.
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
    """Return the rank of each row in a random order, (rows,), in which any first n rows have the shares of classes."""
    generator = np.random.default_rng((1, draw))
    ranks = generator.permutation(rows)
    if labels is None:
        return ranks
    # The place of each row within its class, from 0 to 1: up to any place, each class has its share of rows. A
    # random start keeps small classes from always coming first.
    place = np.empty(rows)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        rank_in_class = ranks[of_class].argsort().argsort()  # sorting twice gives ranks
        place[of_class] = (rank_in_class + generator.random()) / len(of_class)
    return place.argsort().argsort()
