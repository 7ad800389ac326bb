"""The sources of ``fit``: columns of cached entries and the raw input, as streams of features and labels."""

import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reservoir_cache import Entry, FeatureStore, load_arrays, path_below, save_arrays

from reservoir.errors import InputError, as_input_error, require_path
from reservoir.options import FitOptions
from reservoir.plan import RAW, choose_folds, default_column, readout_candidates
from reservoir.pooling import raw_features
from reservoir.readouts.linear import (
    Block,
    FoldBlock,
    RereadableBlocks,
    Targets,
    balanced_weights,
    has_labels,
    samples,
)
from reservoir.readouts.ridge import Moments, balance_raw, fold_moments, training_moments
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import SPLITS, Task
from reservoir_pipelines.extraction.extract import Extraction
from reservoir_pipelines.files import IMPORTED
from reservoir_pipelines.preparation.prepared import Prepared, scaling_from_json

# What `fit` takes: the result of `extract`, or the folder of an entry.
Features = Extraction | FeatureStore | Path | str
# Row numbers to read, by split; a split that has no row numbers is read whole.
SomeRows = Mapping[str, np.ndarray]
# A function of stored sequences and their lengths that returns features (rows, width) or (rows, tokens, width).
InputFeatures = Callable[[np.ndarray, np.ndarray], np.ndarray]

KNOWN = ("train", "valid")  # the splits that cross-validation reads
RAW_ROWS = 1024
IMAGE_ROWS = 64  # rows of photographs, whose files take megabytes
RACED_COLUMNS = 4  # default columns from which a race saves time
MEMORY_BYTES = 2**28  # largest size of features of a split in memory


class SampleSource(ABC):
    """The samples of each split of an entry, in row order; they can be iterated any number of times."""

    name: str
    store: FeatureStore
    some: SomeRows | None = None
    emphasis: np.ndarray | None = None  # weights of the features, (w,), if some are raw

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, as results show them."""
        return (self.name,)

    @abstractmethod
    def blocks(self, split: str) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""

    def stream(self, split: str) -> RereadableBlocks:
        """Return the blocks of a split as a stream that can be iterated several times."""
        return RereadableBlocks(self.blocks, (split,))

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""

    def width(self) -> int:
        """Return the number of features of a sample."""
        return next(self.blocks("train"))[0].shape[1]

    def kept(self, split: str) -> slice | np.ndarray:
        """Return the rows of a split to read: a slice of all rows, or row numbers."""
        return (self.some or {}).get(split, slice(None))

    def labels(self, split: str) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""
        y = self.store[split].labels[self.kept(split)]
        return y[has_labels(y)] if self.tokens() > 1 else y.reshape(len(y), -1)

    def counts(self, split: str) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""
        y = self.store[split].labels[self.kept(split)]
        return has_labels(y).sum(axis=1) if self.tokens() > 1 else np.ones(len(y), int)

    def targets(self, classes: int, balanced: bool = False, splits: Sequence[str] = ("train",)) -> Targets:
        """Return the coding of the labels; if ``balanced``, with class weights counted over some splits."""
        labels = np.concatenate([self.labels(split) for split in splits])
        if not balanced:
            return Targets(labels.shape[1], classes)
        counts = np.bincount(labels.ravel().astype(int), minlength=classes)
        return Targets(labels.shape[1], classes, balanced_weights(counts))


@dataclass(frozen=True)
class ColumnSource(SampleSource):
    """Samples of one cached column, such as ``block06/mean``, or ``2:block06/mean`` if there are several entries."""

    store: FeatureStore
    name: str
    some: SomeRows | None = field(default=None, compare=False)

    @property
    def column(self) -> str:
        """The name of the column in its entry."""
        return self.name.rpartition(":")[2]

    def blocks(self, split: str) -> Iterator[Block]:
        """Yield the samples of each shard, or of some rows."""
        part, kept = self.store[split], self.kept(split)
        if isinstance(kept, np.ndarray):
            for rows in np.split(kept, range(RAW_ROWS, len(kept), RAW_ROWS)):
                yield samples(part.gather(self.column, rows), part.labels[rows])
            return
        for (low, high), values in zip(
            self.store.entry.blocks(split), part.blocks(self.column), strict=True
        ):
            yield samples(values, part.labels[low:high])

    def width(self) -> int:
        """Return the number of features of a sample."""
        tokens, width = self.store["train"].shape(self.column)
        return tokens * width // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples per row: each readout token of a column of tokens is a sample."""
        part = self.store["train"]
        readout_tokens = part.labels.shape[1]
        return readout_tokens if part.shape(self.column)[0] == readout_tokens else 1


@dataclass(frozen=True)
class RawSource(SampleSource):
    """Samples of the raw input, or of other ``features`` of it."""

    prepared: Prepared
    store: FeatureStore
    name: str = RAW
    features: InputFeatures | None = None
    some: SomeRows | None = field(default=None, compare=False)
    _memory: dict[str, Iterable[Any]] = field(init=False, default_factory=dict, compare=False)

    def tokens(self) -> int:
        """Return 1, or the number of tokens if every token has a label."""
        return self.prepared.task.readout_tokens if self.prepared.task.each else 1

    def blocks(self, split: str) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""
        if split not in self._memory:
            self._memory[split] = in_memory_if_small(RereadableBlocks(self._computed, (split,)))
        yield from self._memory[split]

    def _computed(self, split: str) -> Iterator[Block]:
        features = self.features or partial(raw_features, self.prepared.task, self.prepared.scaling)
        labels, start = self.store[split].labels[self.kept(split)], 0
        for x, lengths in self.rows(split):
            found = features(x, lengths)
            yield samples(found if found.ndim == 3 else found[:, None], labels[start : start + len(x)])
            start += len(x)

    def rows(self, split: str) -> Iterator[Block]:
        """Yield stored sequences (rows, tokens, ...) and their lengths (rows,), some at a time."""
        index, whole = self.store[split].index[self.kept(split)], self.prepared.split(split)
        step = IMAGE_ROWS if self.prepared.task.pictures else RAW_ROWS
        for start in range(0, len(index), step):
            read = whole.take(index[start : start + step])
            yield read.x, read.lengths


@dataclass(frozen=True)
class JoinedSource(SampleSource):
    """Samples of several columns, concatenated; they may come from several entries of the same rows."""

    parts: tuple[SampleSource, ...]
    store: FeatureStore = field(init=False)
    some: SomeRows | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", self.parts[0].store)
        object.__setattr__(self, "some", self.parts[0].some)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order in which they are joined."""
        return tuple(column for part in self.parts for column in part.columns)

    def blocks(self, split: str) -> Iterator[Block]:
        """Yield blocks of samples that end where a shard of any part ends."""
        streams = [part.blocks(split) for part in self.parts]
        while True:
            found = [block for stream in streams if (block := next(stream, None)) is not None]
            if not found:
                return
            rows = min(len(x) for x, _ in found)
            y = found[0][1][:rows]
            if len(found) < len(streams) or any(not np.array_equal(other[:rows], y) for _, other in found):
                problem = f"{'+'.join(self.columns)}: the columns have different samples"
                raise InputError(f"{problem}; join columns of one kind, extracted with the same --limit")
            yield np.concatenate([x[:rows] for x, _ in found], axis=1), y
            for number, (x, labels) in enumerate(found):
                if len(x) > rows:
                    streams[number] = itertools.chain([(x[rows:], labels[rows:])], streams[number])

    def width(self) -> int:
        """Return the number of features of a sample."""
        return sum(part.width() for part in self.parts)

    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""
        return self.parts[0].tokens()

    @cached_property
    def emphasis(self) -> np.ndarray | None:
        """The weight of each feature, (w,), if the raw input is one of the parts."""
        raw = [isinstance(part, RawSource) for part in self.parts]
        return balance_raw(np.repeat(raw, [part.width() for part in self.parts])) if any(raw) else None


@dataclass(frozen=True)
class Pool:
    """The columns to choose from: those of one entry, or of several entries with numbered names."""

    stores: tuple[FeatureStore, ...]
    only: tuple[str, ...] | None = None  # the columns to use, all by default
    some: SomeRows | None = field(default=None, compare=False)  # the rows to read, all by default

    @classmethod
    def of(cls, features: "Pool | Features | Sequence[Features]") -> "Pool":
        """Open the features given to `fit`; raise `InputError` if entries differ in their task or rows."""
        if isinstance(features, Pool):
            return features
        given = [features] if isinstance(features, str) or not isinstance(features, Sequence) else features
        if not given:
            raise InputError("fit: give at least one entry")
        stores = []
        for one in (one.store if isinstance(one, Extraction) else one for one in given):
            path = Path() if isinstance(one, FeatureStore) else Path(require_path(one, "fit: features"))
            if path.is_file():
                raise InputError(
                    f"fit: {one} is a file, not an entry of the cache; call fit(extract({str(one)!r}))"
                )
            store = one if isinstance(one, FeatureStore) else FeatureStore(path)
            # The key does not cover this record, so anyone may have changed it; its parts are read later.
            made, remedy = store.entry.made_with, "extract its task again"
            with as_input_error(
                f"{store.entry.path}: spec.json does not record how it was extracted", remedy
            ):
                Path(made.get("prepared", ""))
                float(made.get("kept", {}).get("test", 1.0))
                scaling_from_json(made.get("scaling"), Task.from_dict(store.entry.spec.task))
                if store.entry.spec.init["kind"] != IMPORTED:
                    Reservoir(**made["reservoir"])
            if not {*SPLITS} <= {*store.splits}:
                raise InputError(f"{store.entry.path.name}: not all of its splits have features; {remedy}")
            stores.append(store)
        specs = [store.entry.spec for store in stores]
        if any((spec.task, spec.data) != (specs[0].task, specs[0].data) for spec in specs):
            names = " and ".join(store.entry.path.name for store in stores)
            raise InputError(f"{names} hold different rows; extract with the same --limit")
        return cls(tuple(stores))

    @property
    def store(self) -> FeatureStore:
        """The first entry's features."""
        return self.stores[0]

    @property
    def entry(self) -> Entry:
        """The first entry."""
        return self.stores[0].entry

    @property
    def task(self) -> Task:
        """The task whose rows the entries hold."""
        return Task.from_dict(self.entry.spec.task)

    @property
    def title(self) -> str:
        """Name of the entry; for several, name of the first, number of the others, and digest of all names."""
        names = [store.entry.path.name for store in self.stores]
        if len(names) == 1:
            return names[0]
        return f"{names[0]}+{len(names) - 1}-{hashlib.sha256('/'.join(names).encode()).hexdigest()[:8]}"

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each split."""
        return {split: self.store[split].rows for split in SPLITS}

    def folder(self, columns: Sequence[str], options: FitOptions) -> Path:
        """Return the default folder of results: below the cache's ``readouts``, or next to an entry outside a cache."""
        settings = [columns, options.readout, options.alphas, options.select, options.class_weight]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        kind, path = options.readout.partition(":")[0].rpartition(".")[2], self.entry.path.resolve()
        name = f"{self.title}-{kind}-{digest}"
        if path.parent.parent.name != "features":
            return path_below(path.parent, name)
        return path_below(path.parents[2], "readouts", self.entry.spec.task["name"], name)

    def columns(self) -> list[str]:
        """Return the names of all columns that every split of an entry holds."""
        found = []
        for number, store in enumerate(self.stores, start=1):
            whole = [
                c
                for c in store["train"].columns
                if all(c in store[split].columns for split in store.splits)
            ]
            found += [f"{number}:{column}" for column in whole] if len(self.stores) > 1 else whole
        return [column for column in found if self.only is None or column in self.only]

    def source(self, name: str) -> SampleSource:
        """Return the samples of a column, or of several side by side, joined by a plus."""
        parts = tuple(self.column(part) for part in name.split("+"))
        return parts[0] if len(parts) == 1 else JoinedSource(parts)

    def raw(self) -> RawSource | None:
        """Return the raw input of the same rows; None if the prepared data was removed."""
        place = Path(self.entry.made_with.get("prepared", ""))
        return RawSource(Prepared.open(place), self.store, some=self.some) if place.is_dir() else None

    def column(self, name: str) -> ColumnSource | RawSource:
        """Return the samples of a single column, or of the raw input."""
        if name == RAW:
            if found := self.raw():
                return found
            raise InputError("raw: the prepared data was removed; run reservoir prepare")
        number, colon, _ = name.partition(":")
        return ColumnSource(self.stores[int(number) - 1] if colon else self.store, name, self.some)


class Tried(NamedTuple):
    """The columns that a fit tries, and the cross-validation that chooses among their readouts."""

    columns: tuple[str, ...]
    default: str | None  # the column that is chosen unless another is clearly better
    folds: int  # 0 for a choice on validation rows
    repeats: int
    groups: np.ndarray | None  # of each row in train, then valid
    races: bool  # whether fits to some of the rows may exclude columns
    chooses: bool  # False if the folds cannot tell readouts apart (see `can_choose`)
    folder: Path  # default folder of the results


def choose_columns(pool: Pool, options: FitOptions) -> Tried:
    """Return the columns to try, and the cross-validation that chooses among their readouts."""
    cached = pool.columns()
    columns = options.columns
    wanted = [c.strip() for c in columns.split(",")] if isinstance(columns, str) else list(columns)
    named = wanted != ["all"]
    sources: dict[str, ColumnSource | RawSource] = {}
    for part in "+".join(wanted).split("+") if named and wanted else cached:
        if part not in (*cached, RAW):
            raise InputError(
                f"column {part!r}: not cached; the cached ones are {', '.join(cached) or 'none'}"
            )
        sources[part] = pool.column(part)
    kinds = {
        name: (one.tokens(), one.width()) for name, one in sources.items() if isinstance(one, ColumnSource)
    }
    groups = groups_of(pool.store)
    folds, repeats = choose_folds(options, pool.rows, None if groups is None else len(np.unique(groups)))
    if not named:
        alone = {name: width for name, (tokens, width) in kinds.items() if tokens == 1}
        native = len(pool.stores) > 1 or pool.entry.spec.input["kind"] == "native"
        rows, by_folds = pool.rows["train"], bool(folds)
        wanted = [
            *readout_candidates(pool.task, cached, alone, rows, cross_validated=by_folds, native=native)
        ]
    if not wanted:
        have = (
            f"name some of {', '.join(cached)}"
            if cached
            else "extract it to the end, or name the key of another entry"
        )
        raise InputError(f"{pool.entry.path}: no columns to fit; {have}")
    names = tuple(dict.fromkeys(wanted))
    folder = pool.folder(names, options)
    source = pool.source(names[0])
    labels = np.concatenate([source.labels(split) for split in KNOWN])
    # With several labels per sample, a row holds out each of them in some class.
    of_classes = pool.task.classes > 0 and labels.shape[1] == 1
    chooses = not (folds and of_classes) or can_choose(labels[:, 0], held_out_units(source, KNOWN))
    names = names if chooses else names[:1]
    races = not named and options.select == "auto" and len(names) >= RACED_COLUMNS
    default = None if named else default_column(names)
    return Tried(names, default, folds, repeats, groups, races, chooses, folder)


def can_choose(labels: np.ndarray, units: np.ndarray) -> bool:
    """Return whether folds can choose among readouts, from the class and the unit (row or group) of each sample, (n,).

    A class of a single unit is never both fitted and held out: all readouts are wrong on it. The
    samples of the other classes must be the majority, and of at least two classes.
    """
    pairs = np.unique(np.stack([labels.astype(np.int64), np.unique(units, return_inverse=True)[1]]), axis=1)
    classes, number = np.unique(pairs[0], return_counts=True)
    held_out = classes[number > 1]
    return len(held_out) > 1 and bool(np.isin(labels, held_out).mean() > 0.5)


def held_out_units(source: SampleSource, splits: Sequence[str]) -> np.ndarray:
    """Return the number of the row, or the group, of each sample of some splits, (n,); units are independent."""
    counts = np.concatenate([source.counts(split) for split in splits])
    parts = [source.store[split].groups for split in splits]
    groups = [of[source.kept(split)] for of, split in zip(parts, splits, strict=True) if of is not None]
    return np.repeat(np.arange(len(counts)) if len(groups) < len(parts) else np.concatenate(groups), counts)


def groups_of(store: FeatureStore, some: SomeRows | None = None) -> np.ndarray | None:
    """Return the group of each row in train, then valid, or of ``some`` rows; None if the rows have no groups."""
    groups = {split: store[split].groups for split in KNOWN}
    if any(of is None for of in groups.values()):
        return None
    return np.concatenate(
        [of[(some or {}).get(split, slice(None))] for split, of in groups.items() if of is not None]
    )


def assign_folds(source: SampleSource, folds: int, classes: int, repeats: int = 1) -> np.ndarray:
    """Return the fold of each sample in train, then valid, (n, repeats); samples of a row or group share a fold."""
    counts, labels = (
        np.concatenate([part(split) for split in KNOWN]) for part in (source.counts, source.labels)
    )
    groups, of = groups_of(source.store, source.some), _row_classes(source, labels, classes)
    found = [
        draw_folds(len(counts), folds, labels=of, groups=groups, repeat=repeat) for repeat in range(repeats)
    ]
    return np.repeat(np.stack(found, axis=1), counts, axis=0)


def fold_blocks(source: SampleSource, folds: np.ndarray) -> Iterator[FoldBlock]:
    """Yield all samples of train, then of valid, each block with its part of ``folds`` (see `assign_folds`)."""
    return _with_numbers(itertools.chain.from_iterable(map(source.blocks, KNOWN)), folds)


def stored_moments(
    source: SampleSource, targets: Targets, blocks: Iterable[Any], folds: int = 0
) -> list[Moments] | None:
    """Return the moments of a column's training samples or folds, stored in its entry; None if none are stored."""
    if not isinstance(source, ColumnSource) or source.some:
        return None
    # With at most four samples per feature, the float64 moments would be larger than the float16 features.
    if sum(len(source.labels(split)) for split in (KNOWN if folds else ("train",))) <= 4 * source.width():
        return None
    weights, column, entry = targets.class_weights, source.column.replace("/", "-"), source.store.entry
    # The weights depend on the splits that were counted, so moments of other weights have other names.
    digest = hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
    end = f"-weighted{digest}-{column}" if weights else f"-{column}"
    names = [f"fold{k}of{folds}{end}" for k in range(folds)] or [f"train{end}"]
    found = [load_arrays(entry, name) for name in names]
    if all(found):
        return [Moments.from_arrays(part[0]) for part in found if part]
    moments = fold_moments(blocks, targets, folds) if folds else [training_moments(blocks, targets)]
    for name, part in zip(names, moments, strict=True):
        save_arrays(entry, name, part.to_arrays(), {"columns": [source.column]})
    return moments


def in_memory_if_small(stream: RereadableBlocks) -> Iterable[Any]:
    """Return the blocks of a stream as a list if they fit `MEMORY_BYTES`, because a fit reads them often."""
    blocks, size = [], 0
    for block in stream:
        size += block[0].nbytes
        if size > MEMORY_BYTES:
            return stream
        blocks.append(block)
    return blocks


def stage_blocks(source: SampleSource, sizes: np.ndarray, classes: int, draw: int) -> Iterator[FoldBlock]:
    """Yield blocks of training samples with the number of the first of the ``sizes`` that has each sample, (m,)."""
    counts = source.counts("train")
    ranks = draw_ranks(len(counts), _row_classes(source, source.labels("train"), classes), draw)
    stages = np.repeat(np.searchsorted(sizes, ranks, side="right"), counts)
    for x, y, stage in _with_numbers(source.blocks("train"), stages):
        used = stage < len(sizes)
        if used.any():
            yield x[used], y[used], stage[used]


def _row_classes(source: SampleSource, labels: np.ndarray, classes: int) -> np.ndarray | None:
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
        raise InputError(f"cross-validation needs two {what} or more, but there is {units}; add some")
    if not 2 <= folds <= units:
        raise InputError(f"cross-validation cannot use {folds} folds for {units} {what}; use 2 to {units}")
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
