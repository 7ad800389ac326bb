"""The folds of cross-validation, the draws of a learning curve, and the units (rows or groups) that never split."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, FoldBlock
from reservoir_pipelines.fitting.source import KNOWN, EntryView, KnownSplit, SomeRows, Source


def can_choose(labels: np.ndarray, units: np.ndarray) -> bool:
    """Return whether folds can choose among readouts, from the class and the unit (row or group) of each sample, (n,).

    A class of a single unit is never both fitted and held out: all readouts are wrong on it. The
    samples of the other classes must be the majority, and of at least two classes.
    """
    pairs = np.unique(np.stack([labels.astype(np.int64), np.unique(units, return_inverse=True)[1]]), axis=1)
    classes, number = np.unique(pairs[0], return_counts=True)
    held_out = classes[number > 1]
    return len(held_out) > 1 and bool(np.isin(labels, held_out).mean() > 0.5)


def held_out_units(source: Source, splits: Sequence[KnownSplit]) -> np.ndarray:
    """Return the number of the row, or the group, of each sample of some splits, (n,); units are independent."""
    counts = np.concatenate([source.counts(split) for split in splits])
    parts = [source.view[split].groups for split in splits]
    groups = [
        of[source.selected_rows(split)] for of, split in zip(parts, splits, strict=True) if of is not None
    ]
    return np.repeat(np.arange(len(counts)) if len(groups) < len(parts) else np.concatenate(groups), counts)


def groups_of(view: EntryView[KnownSplit], some: SomeRows | None = None) -> np.ndarray | None:
    """Return the group of each row in train, then valid, or of ``some`` rows; None if the rows have no groups."""
    groups = {split: view[split].groups for split in KNOWN}
    if any(of is None for of in groups.values()):
        return None
    return np.concatenate(
        [of[(some or {}).get(split, slice(None))] for split, of in groups.items() if of is not None]
    )


def assign_folds(source: Source, folds: int, classes: int, repeats: int = 1) -> np.ndarray:
    """Return the fold of each sample in train, then valid, (n, repeats); samples of a row or group share a fold."""
    counts, labels = (
        np.concatenate([part(split) for split in KNOWN]) for part in (source.counts, source.labels)
    )
    groups, of = groups_of(source.view, source.some), _row_classes(source, labels, classes)
    draws = [
        draw_folds(len(counts), folds, labels=of, groups=groups, repeat=repeat) for repeat in range(repeats)
    ]
    return np.repeat(np.stack(draws, axis=1), counts, axis=0)


def fold_blocks(source: Source, folds: np.ndarray) -> Iterator[FoldBlock]:
    """Yield all samples of train, then of valid, each block with its part of ``folds`` (see `assign_folds`)."""
    return _with_numbers(itertools.chain.from_iterable(map(source.blocks, KNOWN)), folds)


def stage_blocks(source: Source, sizes: np.ndarray, classes: int, draw: int) -> Iterator[FoldBlock]:
    """Yield blocks of training samples with the number of the first of the ``sizes`` that has each sample, (m,)."""
    counts = source.counts("train")
    ranks = draw_ranks(len(counts), _row_classes(source, source.labels("train"), classes), draw)
    stages = np.repeat(np.searchsorted(sizes, ranks, side="right"), counts)
    for x, y, stage in _with_numbers(source.blocks("train"), stages):
        used = stage < len(sizes)
        if used.any():
            yield x[used], y[used], stage[used]


def _row_classes(source: Source, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """Return the class of each row, (rows,); None if rows have several labels, or values instead of classes."""
    return labels[:, 0] if classes and source.tokens() == labels.shape[1] == 1 else None


def _with_numbers(blocks: Iterable[Block], numbers: np.ndarray) -> Iterator[FoldBlock]:
    """Yield blocks of samples, each with its part of ``numbers`` (n,), one for each sample."""
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

    Fold sizes, also those within each class, differ by one row at most, unless rows of one group
    share a fold.
    """
    units, what = (rows, "rows") if groups is None else (len(np.unique(groups)), "groups")
    if units < 2:
        raise InputError(f"cross-validation needs two {what} or more, but there is {units}", "add some")
    if not 2 <= folds <= units:
        raise InputError(
            f"cross-validation cannot use {folds} folds for {units} {what}", f"use 2 to {units}"
        )
    draw = np.random.default_rng((0, repeat))
    if groups is not None:
        return _assign_groups(draw, folds, np.zeros(rows, int) if labels is None else labels, groups)
    shuffled = draw.permutation(rows)
    order = shuffled if labels is None else shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(rows, np.int64)
    # Rows are assigned to folds in turn, class after class, so fold sizes differ by one row at most.
    fold[order] = draw.permutation(folds)[np.arange(rows) % folds]
    return fold


def draw_ranks(rows: int, labels: np.ndarray | None = None, draw: int = 0) -> np.ndarray:
    """Return the rank of each row in a random order, (rows,), in which any first n rows have the shares of classes."""
    generator = np.random.default_rng((1, draw))
    ranks = generator.permutation(rows)
    if labels is None:
        return ranks
    share = np.empty(rows)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        share[mine] = (ranks[mine].argsort().argsort() + generator.random()) / len(mine)
    return share.argsort().argsort()


def _assign_groups(
    draw: np.random.Generator, folds: int, labels: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """Return folds that never split a group, with shares of every class as even as the groups allow."""
    _, number = np.unique(groups, return_inverse=True)
    classes, code = np.unique(labels, return_inverse=True)
    counts = np.zeros((number.max() + 1, len(classes)))
    np.add.at(counts, (number, code), 1)
    shares = counts / counts.sum(axis=0)
    order = draw.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    held, chosen = np.zeros((folds, len(classes))), np.empty(len(counts), np.int64)
    for group in order:
        # The fold with the fewest rows of the group's classes increases the sum of squared shares least.
        clash = held @ shares[group]
        best = np.flatnonzero(clash <= clash.min() * (1 + 1e-9))
        chosen[group] = best[np.argmin(held[best].sum(axis=1))]
        held[chosen[group]] += counts[group]
    return chosen[number]
