"""The samples to which a readout is fitted: of cached columns, of the raw input, and of several of them side by side.

A source reads some splits of its entry, through a view that has no way to the others. What selects gets
sources of train and valid; only `evaluate.py` makes sources of test rows.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from reservoir_cache import (
    Encoded,
    Entry,
    FeatureStore,
    Spec,
    SplitFeatures,
    load_arrays,
    load_input,
    save_arrays,
)

from reservoir.column import RAW, Baseline, Column, Columns, joined_name
from reservoir.errors import InputError, as_input_error
from reservoir.inputs.patch_units import UNITS, PatchUnits
from reservoir.raw_input import raw_features, with_tokens
from reservoir.readouts.linear import Block, RereadableBlocks, has_labels, samples
from reservoir.readouts.products import StoredFeatures, arithmetic
from reservoir.readouts.ridge import balance_raw
from reservoir.tasks.task import Scaling, Task
from reservoir_pipelines.extraction.entries import in_order, prepared_folder
from reservoir_pipelines.preparation.prepared import Prepared, PreparedSplit

KnownSplit = Literal["train", "valid"]
TestSplit = Literal["test"]
KNOWN_SPLITS: tuple[KnownSplit, ...] = ("train", "valid")  # the splits that choose a readout
S = TypeVar("S", bound=str)  # the names of the splits that a view reads
T = TypeVar("T", bound=str)  # those of another view, where a function has two
# Ascending numbers of the rows to read, by split; all rows of a split without an item are read.
RowNumbers = Mapping[str, np.ndarray]
# A function of stored sequences and their lengths that returns features (rows, width) or (rows, tokens, width).
InputFeatures = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Threads that read and verify blocks for a GPU: one reads 1.5 GB/s, where decoding leaves 0.4. On a CPU, whose cores
# are busy with products, a thread that reads ahead saved nothing.
READERS = 4
MEMORY_BYTES = 2**28  # largest size of features of a split in memory
# Most rows, or tokens of them, that are read at a time, so that they fit into memory:
RAW_ROWS = 1024  # rows of most kinds of data
IMAGE_ROWS = 64  # rows of photographs, whose files take megabytes
LABELLED_TOKENS = 2**16  # tokens with labels, each of which has hundreds of features


def rows_of_tokens(most_rows: int, longest: int) -> int:
    """Return how many rows to read at a time, if every token has a label: ``most_rows``, or fewer if these are long.

    A row has up to ``longest`` tokens, and the rows together at most `LABELLED_TOKENS`, but at least one row is read.
    """
    return max(1, min(most_rows, LABELLED_TOKENS // longest))


class OutOfReachError(LookupError):
    """A programming error: code asked a view for rows of a split that it must not read."""


def stored_units(entry: Entry) -> PatchUnits:
    """Return the units of the input layer of an entry; raise `InputError` if they are missing or damaged."""
    remedy = "extract its task again"
    arrays = load_input(entry, UNITS)
    if arrays is None:
        raise InputError(f"{entry.path}: the units of its input layer are missing", remedy)
    with as_input_error(f"{entry.path}: the units of its input layer are damaged", remedy):
        return PatchUnits.from_arrays(arrays)


class EntryView(Generic[S]):
    """Some splits of an entry, with their raw input; asking for another split raises `OutOfReachError`.

    It has no public attribute with the entry, because an entry has the rows of all splits.
    """

    def __init__(self, store: FeatureStore, splits: tuple[S, ...]) -> None:
        self._store = store
        self.splits = splits

    @property
    def path(self) -> Path:
        """The folder of the entry."""
        return self._store.entry.path

    @property
    def spec(self) -> Spec:
        """The fields of the entry's key."""
        return self._store.entry.spec

    @property
    def made_with(self) -> Mapping[str, Any]:
        """How the entry was extracted, as it records it."""
        return self._store.entry.made_with

    def load_arrays(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return arrays that were derived from the entry, with their description; see `reservoir_cache.load_arrays`."""
        return load_arrays(self._store.entry, name)

    def save_arrays(self, name: str, arrays: Mapping[str, np.ndarray], description: dict[str, Any]) -> None:
        """Store arrays that were derived from the entry; see `reservoir_cache.save_arrays`."""
        save_arrays(self._store.entry, name, arrays, description)

    def patch_units(self) -> PatchUnits:
        """Return the units of the entry's input layer; see `stored_units`."""
        return stored_units(self._store.entry)

    def __getitem__(self, split: S) -> SplitFeatures:
        """Return the features, labels and groups of a split."""
        self._require(split)
        return self._store[split]

    def groups(self, split: S) -> np.ndarray | None:
        """Return the group of each row of a split, (rows,); None if the rows have no groups."""
        return self[split].groups

    def blocks(self, split: S) -> list[tuple[int, int]]:
        """Return the first row of each block of a split, and the row after its last."""
        self._require(split)
        return self._store.entry.blocks(split)

    @property
    def has_raw(self) -> bool:
        """Whether the prepared data of the entry is still there, with a sequence for each row."""
        # If the rows are words or tokens of texts, the prepared data holds the texts, and so no sequence for each row.
        rows_are_parts_of_texts = Task.from_dict(self.spec.task).labels_text_tokens
        return self.has_prepared and not rows_are_parts_of_texts

    @property
    def has_prepared(self) -> bool:
        """Whether the prepared data of the entry is still there."""
        return self._prepared_folder is not None

    @property
    def data_remedy(self) -> str:
        """What to do if the prepared data is missing: an exported folder that was imported by itself never had any."""
        if self.spec.data.origin is None:
            return "run reservoir prepare"
        # Words and tokens cannot be imported with --task.
        if Task.from_dict(self.spec.task).labels_text_tokens:
            return "extract the task instead of importing a folder"
        return "import the folder with --task to compare with the raw input"

    @property
    def raw_task(self) -> Task:
        """The task of the prepared data."""
        return self._prepared.task

    @property
    def raw_scaling(self) -> Scaling | None:
        """The scaling of stored values to those that the model reads; None for symbols."""
        return self._prepared.scaling

    @property
    def notes_on_repeats(self) -> list[str]:
        """The warning that test rows of the prepared data repeat other rows; empty if none do, or the data is gone."""
        return self._prepared.notes_on_repeats if self.has_prepared else []

    def raw(self, split: S) -> PreparedSplit:
        """Return the prepared rows of a split."""
        self._require(split)
        return self._prepared.split(split)

    @cached_property
    def _prepared_folder(self) -> Path | None:
        """The folder of the prepared data of the entry; None if there is none."""
        return prepared_folder(self._store.entry)

    @cached_property
    def _prepared(self) -> Prepared:
        """The prepared data of the entry, with all its splits; opening it raises `InputError` if it is gone."""
        return Prepared.open(self._prepared_folder or Path(self.made_with.get("prepared", "")))

    def _require(self, split: str) -> None:
        """Raise `OutOfReachError` if the view does not read a split."""
        if split not in self.splits:
            raise OutOfReachError(
                f"{split} rows are out of reach here: this view has {' and '.join(self.splits)}"
            )


class Samples(ABC, Generic[S]):
    """The samples of some splits, in row order; they can be iterated any number of times."""

    feature_weights: np.ndarray | None = None  # (w,); None unless the raw input is one of several columns
    sample_weights: np.ndarray | None = None  # (n,); None if all samples have the same weight
    # (n, repeats), the folds that are decided before the fit; None if `assign_folds` draws them.
    fold_of_sample: np.ndarray | None = None

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """The columns side by side."""

    @property
    def name(self) -> str:
        """The name of the columns, as results show it."""
        return joined_name(self.columns)

    @abstractmethod
    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""

    def stream(self, split: S) -> RereadableBlocks:
        """Return the blocks of a split as a stream that can be iterated several times."""
        return RereadableBlocks(self.blocks, (split,))

    def blocks_for_products(self, split: S) -> Iterator[Any]:
        """Yield the same samples as `blocks`, for matrix products.

        If a device computes these, a subclass may yield features as `StoredFeatures`, which the device decodes.
        """
        return self.blocks(split)

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""

    @abstractmethod
    def width(self) -> int:
        """Return the number of features of a sample."""

    @abstractmethod
    def labels(self, split: S) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""

    @abstractmethod
    def counts(self, split: S) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""

    @abstractmethod
    def groups(self, split: S) -> np.ndarray | None:
        """Return the group of each row, (rows,); None if the rows have no groups."""


KnownSource: TypeAlias = Samples[KnownSplit]
Labelling = Mapping[KnownSplit, np.ndarray]  # other labels (n, outputs) of the samples of each split


class Relabelled(Samples[KnownSplit]):
    """The samples of another source with other labels."""

    def __init__(self, source: KnownSource, labelling: Labelling) -> None:
        self._source = source
        self._labelling = labelling
        # Only samples of entries get other labels, and these have no weights and folds of their own.
        self.feature_weights = source.feature_weights

    @property
    def columns(self) -> Columns:
        """The columns of the other source."""
        return self._source.columns

    def blocks(self, split: KnownSplit) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and other labels (m, outputs)."""
        start = 0  # the first sample of a block
        for x, _ in self._source.blocks(split):
            yield x, self._labelling[split][start : start + len(x)]
            start += len(x)

    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""
        return self._source.tokens()

    def width(self) -> int:
        """Return the number of features of a sample."""
        return self._source.width()

    def labels(self, split: KnownSplit) -> np.ndarray:
        """Return the other labels (n, outputs)."""
        return self._labelling[split]

    def counts(self, split: KnownSplit) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""
        return self._source.counts(split)

    def groups(self, split: KnownSplit) -> np.ndarray | None:
        """Return the group of each row, (rows,); None if the rows have no groups."""
        return self._source.groups(split)


def held_out_units(source: KnownSource, splits: Sequence[KnownSplit]) -> np.ndarray:
    """Return the unit of each sample of some splits, (n,): the group of its row, or without groups the row's number.

    Samples of one unit are not independent of each other, so folds hold them out together.
    """
    counts = np.concatenate([source.counts(split) for split in splits])
    groups = groups_of_splits(source, splits)
    unit_of_row = np.arange(len(counts)) if groups is None else groups
    return np.repeat(unit_of_row, counts)


def groups_of_splits(
    rows: KnownSource | EntryView[KnownSplit], splits: Sequence[KnownSplit] = KNOWN_SPLITS
) -> np.ndarray | None:
    """Return the group of each row in some splits, one after the other; None if the rows have no groups."""
    groups = [groups for split in splits if (groups := rows.groups(split)) is not None]
    all_splits_have_groups = len(groups) == len(splits)
    return np.concatenate(groups) if all_splits_have_groups else None


def balance_of(columns: Columns, widths: Sequence[int]) -> np.ndarray | None:
    """Return the weight of each feature of columns side by side, (w,), by which the raw input has half of the variance.

    None, which weights all features alike, if there is one column, or if none is the raw input. ``widths`` are the
    numbers of features of the columns.
    """
    is_raw = [column == RAW for column in columns]
    if len(columns) == 1 or not any(is_raw):
        return None
    return balance_raw(np.repeat(is_raw, widths))


def in_memory_if_small(stream: RereadableBlocks) -> Iterable[Any]:
    """Return the blocks of a stream as a list if their features fit `MEMORY_BYTES`; else the stream.

    A fit reads the blocks several times, and a list gives them without reading or computing them again.
    """
    blocks: list[Any] = []
    size = 0  # bytes of the features
    for block in stream:
        features = block[0]
        size += features.nbytes
        if size > MEMORY_BYTES:
            return stream
        blocks.append(block)
    return blocks


class EntrySamples(Samples[S]):
    """The samples of some splits of an entry, in row order."""

    view: EntryView[S]  # of the entry; if columns are of several entries, of the first
    row_numbers: RowNumbers | None = None  # the rows to read; None for all

    @abstractmethod
    def on(self, views: Mapping[Path, EntryView[T]]) -> "EntrySamples[T]":
        """Return the samples of all rows of other splits, from views by the path of their entry."""

    def selected_rows(self, split: S) -> slice | np.ndarray:
        """Return what selects the rows of a split to read: a slice of all rows, or row numbers."""
        all_rows = slice(None)
        if self.row_numbers is None:
            return all_rows
        return self.row_numbers.get(split, all_rows)

    def width(self) -> int:
        """Return the number of features of a sample."""
        first_split = self.view.splits[0]
        features, _ = next(self.blocks(first_split))
        return features.shape[1]

    def labels(self, split: S) -> np.ndarray:
        """Return the labels (n, outputs) of all samples, without reading features."""
        y = self._labels_of_rows(split)
        # Each token with labels is a sample, or else each row, with the labels of its tokens side by side.
        return y[has_labels(y)] if self.tokens() > 1 else y.reshape(len(y), -1)

    def counts(self, split: S) -> np.ndarray:
        """Return the number of samples of each row, (rows,)."""
        y = self._labels_of_rows(split)
        return has_labels(y).sum(axis=1) if self.tokens() > 1 else np.ones(len(y), int)

    def groups(self, split: S) -> np.ndarray | None:
        """Return the group of each row, (rows,); None if the rows have no groups."""
        groups = self.view.groups(split)
        return None if groups is None else groups[self.selected_rows(split)]

    def _labels_of_rows(self, split: S) -> np.ndarray:
        """Return the labels of the selected rows as the entry stores them, (rows, readout_tokens, outputs)."""
        return self.view[split].labels[self.selected_rows(split)]


EntrySource: TypeAlias = EntrySamples[KnownSplit]


@dataclass(frozen=True)
class ColumnSource(EntrySamples[S]):
    """Samples of one cached column."""

    view: EntryView[S]
    column: Column
    row_numbers: RowNumbers | None = field(default=None, compare=False)  # as in `EntrySamples`

    @property
    def columns(self) -> Columns:
        """The column alone."""
        return (self.column,)

    def on(self, views: Mapping[Path, EntryView[T]]) -> "ColumnSource[T]":
        """Return the samples of this column in other splits."""
        return ColumnSource(views[self.view.path], self.column)

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield the samples of each block of the entry or, if rows are selected, of up to `RAW_ROWS` of these."""
        split_features = self.view[split]
        selected = self.selected_rows(split)
        if isinstance(selected, np.ndarray):
            for rows in np.split(selected, range(RAW_ROWS, len(selected), RAW_ROWS)):
                yield samples(split_features.gather(self.column.name, rows), split_features.labels[rows])
            return
        row_ranges = self.view.blocks(split)
        for (low, high), values in zip(row_ranges, split_features.blocks(self.column.name), strict=True):
            yield samples(values, split_features.labels[low:high])

    def blocks_for_products(self, split: S) -> Iterator[Any]:
        """Yield the samples of `blocks`; if a device computes products, as `StoredFeatures`, which it decodes."""
        # Selected rows, and tokens that are samples of their own, are decoded here.
        selects_rows = isinstance(self.selected_rows(split), np.ndarray)
        if arithmetic().device is None or selects_rows or self.tokens() > 1:
            yield from self.blocks(split)
            return
        # While the device computes, `READERS` threads read as many blocks in advance.
        split_features = self.view[split]
        row_ranges = self.view.blocks(split)
        calls = (
            partial(split_features.stored, self.column.name, number) for number in range(len(row_ranges))
        )
        with closing(in_order(calls, READERS, READERS)) as encoded_blocks:
            for (low, high), encoded in zip(row_ranges, encoded_blocks, strict=True):
                labels = split_features.labels[low:high].reshape(high - low, -1)
                yield _as_stored(encoded, split_features.offset_rows), labels

    def width(self) -> int:
        """Return the number of features of a sample."""
        stored_tokens, width = self._shape
        # If a row is one sample, its stored tokens stand side by side; else each of them is a sample.
        return stored_tokens * width // self.tokens()

    def tokens(self) -> int:
        """Return the number of samples per row.

        If the column stores as many tokens as have labels, each is a sample. Otherwise the row is one sample.
        """
        stored_tokens, _ = self._shape
        readout_tokens = self.view[self.view.splits[0]].labels.shape[1]
        return readout_tokens if stored_tokens == readout_tokens else 1

    @property
    def _shape(self) -> tuple[int, int]:
        """The number of stored tokens of a row, and the number of features of each, which all splits share."""
        return self.view[self.view.splits[0]].shape(self.column.name)


def _as_stored(encoded: Encoded, offset_rows: int) -> StoredFeatures:
    """Return the values of a block (rows, tokens, width) as stored, with the tokens of a row side by side.

    Neighbouring rows share an offset: rows 0 to ``offset_rows`` - 1 have the first one, and so on.
    """
    rows, tokens, _ = encoded.values.shape
    values = encoded.values.reshape(rows, -1)
    if encoded.offset is None:
        return StoredFeatures(values)
    offsets = np.tile(encoded.offset, (1, tokens))  # all tokens of a row have its offset
    # None means that all rows share the only offset.
    offset_of_row = np.arange(rows) // offset_rows if len(offsets) > 1 else None
    return StoredFeatures(values, offsets, offset_of_row)


@dataclass(frozen=True)
class RawSource(EntrySamples[S]):
    """Samples of the raw input, or of other ``features`` of it."""

    view: EntryView[S]
    baseline: Baseline = RAW  # the name of the features
    features: InputFeatures | None = None  # None for the raw input itself
    row_numbers: RowNumbers | None = field(default=None, compare=False)  # as in `EntrySamples`
    # The blocks of each split that has been read, if they are small, else what computes them again.
    _blocks_of_splits: dict[str, Iterable[Any]] = field(init=False, default_factory=dict, compare=False)

    @property
    def columns(self) -> Columns:
        """The baseline alone."""
        return (self.baseline,)

    @property
    def task(self) -> Task:
        """The task of the prepared data."""
        return self.view.raw_task

    @property
    def scaling(self) -> Scaling | None:
        """The scaling of stored values to those that the model reads; None for symbols."""
        return self.view.raw_scaling

    def on(self, views: Mapping[Path, EntryView[T]]) -> "RawSource[T]":
        """Return the same features of the raw input in other splits."""
        return RawSource(views[self.view.path], self.baseline, self.features)

    def tokens(self) -> int:
        """Return 1, or the number of tokens if every token has a label."""
        return self.task.readout_tokens if self.task.labels_each_token else 1

    def width(self) -> int:
        """Return the number of features of a sample."""
        # All rows have the same number of features, so the first one tells it.
        split = self.view.splits[0]
        first_row = self.view.raw(split).take(self.view[split].index[:1])
        return self._features(first_row.x, first_row.lengths).shape[-1]

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of features (m, width), float32, and labels (m, outputs)."""
        if split not in self._blocks_of_splits:
            stream = RereadableBlocks(self._computed_blocks, (split,))
            self._blocks_of_splits[split] = in_memory_if_small(stream)
        yield from self._blocks_of_splits[split]

    def _computed_blocks(self, split: S) -> Iterator[Block]:
        """Yield the blocks of `blocks`, computed from stored sequences."""
        labels = self._labels_of_rows(split)
        start = 0  # the first row of a block
        for x, lengths in self.rows(split):
            values = self._features(x, lengths)
            labels_of_block = labels[start : start + len(x)]
            if self.task.labels_each_token:
                # Each token with a label needs its features. Features of whole rows are repeated for each token; those
                # of tokens are cut, or padded with zeros: rolling statistics, for example, have features of every
                # stored token, of which there may be more or fewer than labels.
                values = with_tokens(values, labels_of_block.shape[1])
            # `samples` takes (rows, tokens, width): features (rows, width) of whole rows are those of a single token.
            values_of_tokens = values if values.ndim == 3 else values[:, None]
            yield samples(values_of_tokens, labels_of_block)
            start += len(x)

    @property
    def _features(self) -> InputFeatures:
        """The function that computes the features of stored sequences."""
        return self.features or partial(raw_features, self.task, self.scaling)

    def rows(self, split: S) -> Iterator[Block]:
        """Yield blocks of stored sequences (rows, tokens, ...) and their lengths (rows,), of the selected rows."""
        # The entry may have only some of the prepared rows (`--limit`); its index has their numbers.
        prepared_rows = self.view[split].index[self.selected_rows(split)]
        stored = self.view.raw(split)
        rows_at_a_time = IMAGE_ROWS if self.task.pictures else RAW_ROWS
        if self.task.labels_each_token:
            rows_at_a_time = rows_of_tokens(rows_at_a_time, self.task.max_tokens)
        for start in range(0, len(prepared_rows), rows_at_a_time):
            block = stored.take(prepared_rows[start : start + rows_at_a_time])
            yield block.x, block.lengths


@dataclass(frozen=True)
class JoinedSource(EntrySamples[S]):
    """Samples of several columns, concatenated; they may come from several entries of the same rows."""

    parts: tuple[EntrySamples[S], ...]  # the samples of each column
    # Of the first column. All columns have the same rows, so these stand for the groups and labels of all.
    view: EntryView[S] = field(init=False)
    row_numbers: RowNumbers | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        # A frozen dataclass refuses plain assignments, even those of its own derived fields.
        object.__setattr__(self, "view", self.parts[0].view)
        object.__setattr__(self, "row_numbers", self.parts[0].row_numbers)

    @property
    def columns(self) -> Columns:
        """The columns in the order in which they are joined."""
        return tuple(column for part in self.parts for column in part.columns)

    def on(self, views: Mapping[Path, EntryView[T]]) -> "JoinedSource[T]":
        """Return the samples of the same columns in other splits."""
        return JoinedSource(tuple(part.on(views) for part in self.parts))

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield blocks of samples that end where a block of any part ends; raise `InputError` if the samples differ."""
        streams = [part.blocks(split) for part in self.parts]
        while True:
            # Take the next block of each part, and of all these as many samples as the shortest has.
            blocks = [block for stream in streams if (block := next(stream, None)) is not None]
            if not blocks:
                return
            size = min(len(x) for x, _ in blocks)
            # A part that has ended before the others, or other labels, shows that the samples are not the same.
            _, first_labels = blocks[0]
            y = first_labels[:size]
            some_have_ended = len(blocks) < len(streams)
            same_labels = all(np.array_equal(labels[:size], y) for _, labels in blocks)
            if some_have_ended or not same_labels:
                raise InputError(
                    f"{self.name}: the columns have different samples",
                    "join columns of one kind, extracted with the same --limit",
                )
            yield np.concatenate([x[:size] for x, _ in blocks], axis=1), y
            # The samples of a longer block that were not taken come first in the next round.
            for number, (x, labels) in enumerate(blocks):
                if len(x) > size:
                    streams[number] = itertools.chain([(x[size:], labels[size:])], streams[number])

    def width(self) -> int:
        """Return the number of features of a sample."""
        return sum(part.width() for part in self.parts)

    def tokens(self) -> int:
        """Return the number of samples per row; if rows differ, the largest."""
        return self.parts[0].tokens()

    @cached_property
    def feature_weights(self) -> np.ndarray | None:
        """The weight of each feature, (w,), if the raw input is one of several columns; else None."""
        return balance_of(self.columns, [part.width() for part in self.parts])
