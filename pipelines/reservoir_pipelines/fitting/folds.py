"""The folds of cross-validation, the draws of a learning curve, and the units (rows or groups) that never split."""

import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

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
    groups, classes_of_rows = groups_of(source.view, source.some), _row_classes(source, labels, classes)
    codes = None if groups is None else np.unique(groups, return_inverse=True)[1]
    draws = [
        _draw_once(len(counts), folds, _as_bytes(classes_of_rows), _as_bytes(codes), repeat)
        for repeat in range(repeats)
    ]
    return np.repeat(np.stack(draws, axis=1), counts, axis=0)


# All columns of a fit have the same folds, and those of 100,000 groups take 10 s.
@functools.lru_cache(maxsize=8)
def _draw_once(
    rows: int, folds: int, labels: bytes | None, groups: bytes | None, repeat: int
) -> np.ndarray:
    """Return `draw_folds` for the bytes of the class and the group of each row, both of int64."""
    of_rows = [None if part is None else np.frombuffer(part, np.int64) for part in (labels, groups)]
    fold_of_row = draw_folds(rows, folds, labels=of_rows[0], groups=of_rows[1], repeat=repeat)
    fold_of_row.flags.writeable = False
    return fold_of_row


def _as_bytes(numbers: np.ndarray | None) -> bytes | None:
    return None if numbers is None else numbers.astype(np.int64).tobytes()


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
    """Return the fold of each row, (rows,) of int64, as scikit-learn draws it; each ``repeat`` is another draw.

    With ``labels``, the folds have equal shares of each class, except in two cases in which
    scikit-learn cannot provide them: every class has fewer rows than there are folds, or
    `StratifiedGroupKFold` leaves a fold empty. The folds are then drawn without regard to classes.
    """
    units, what = (rows, "rows") if groups is None else (len(np.unique(groups)), "groups")
    if units < 2:
        raise InputError(f"cross-validation needs two {what} or more, but there is {units}", "add some")
    if not 2 <= folds <= units:
        raise InputError(
            f"cross-validation cannot use {folds} folds for {units} {what}", f"use 2 to {units}"
        )
    # scikit-learn repeats folds of rows (RepeatedStratifiedKFold), but not those of groups, so each repeat is a seed.
    settings: dict[str, Any] = {"n_splits": folds, "shuffle": True, "random_state": repeat}
    if labels is not None and np.unique(labels, return_counts=True)[1].max() >= folds:
        stratified = StratifiedKFold if groups is None else StratifiedGroupKFold
        fold_of_row = _held_out_in(stratified(**settings), labels, groups)
        if len(np.unique(fold_of_row)) == folds:  # scikit-learn's issue 34828: a fold may be empty
            return fold_of_row
    unstratified = KFold if groups is None else GroupKFold
    return _held_out_in(unstratified(**settings), np.zeros(rows, np.int64), groups)


def _held_out_in(splitter: Any, labels: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the number of the fold in which a splitter of scikit-learn holds out each row, (rows,)."""
    fold_of_row = np.empty(len(labels), np.int64)
    with warnings.catch_warnings(
        action="ignore", category=UserWarning
    ):  # some class has fewer rows than folds
        for number, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
            fold_of_row[held_out] = number
    return fold_of_row


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
