"""The entries that a fit reads: opened, and seen as columns of train and valid from which a readout is chosen."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from reservoir_cache import FeatureStore, SplitFeatures, path_below

from reservoir.column import ROLLING, Baseline, Column, Columns, joined_name
from reservoir.errors import InputError, as_input_error, require_path
from reservoir.options import FitOptions
from reservoir.reservoir import Reservoir
from reservoir.tasks import source_of
from reservoir.tasks.task import SPLITS, Task
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.extraction.entries import cache_of
from reservoir_pipelines.extraction.extract import Extraction
from reservoir_pipelines.files import IMPORTED
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    ColumnSource,
    EntrySource,
    EntryView,
    JoinedSource,
    KnownSplit,
    RawSource,
    RowNumbers,
    groups_of_splits,
    stored_units,
)
from reservoir_pipelines.fitting.statistics import rolling_statistics
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.weight_files import caution_if_changed

# The entries that `fit` takes: the result of `extract`, an opened entry, or the folder of one.
Features = Extraction | FeatureStore | Path | str


@dataclass(frozen=True)
class FitData:
    """The opened entries of a fit, with all their rows."""

    stores: tuple[FeatureStore, ...]  # one for each entry, in the order that the user gives
    task: Task  # whose rows the entries hold
    only: tuple[Column, ...] | None = None  # the columns to use; None for all

    @classmethod
    def open_entries(cls, features: "FitData | Features | Sequence[Features]") -> "FitData":
        """Open the features given to `fit`, and print a caution if the weights of a model have changed since.

        Raise `InputError` if an entry is incomplete, if the entries differ in their task or rows, if the rows have no
        labels, or if test rows would choose readouts.
        """
        if isinstance(features, FitData):
            return features
        # A str is a sequence, too, but names a single entry.
        if isinstance(features, str) or not isinstance(features, Sequence):
            features = [features]
        stores = [_open_store(entry) for entry in features]
        if not stores:
            raise InputError("fit: give at least one entry")
        # Columns of several entries stand side by side, so their rows must be the same.
        for store in stores[1:]:
            _require_same_rows(stores[0], store)
        task = Task.from_dict(stores[0].entry.spec.task)
        require_labels(task, "fit")
        # The test rows of some tasks are their validation rows: a readout cannot be chosen and then scored.
        if obstacle := source_of(task).no_selection:
            problem = f"{task.name}: {obstacle.reason}, which choose readouts"
            raise InputError(problem, f"{obstacle.remedy}, and extract it again")
        for store in stores:
            caution_if_changed(store.entry, task)
        return cls(tuple(stores), task)

    def columns(self) -> list[Column]:
        """Return the columns to use that every split of their entry holds, numbered by entry if there are several."""
        columns: list[Column] = []
        for number, store in enumerate(self.stores, start=1):
            in_every_split = set.intersection(*(set(store[split].columns) for split in store.splits))
            names = [name for name in store["train"].columns if name in in_every_split]
            entry = number if len(self.stores) > 1 else None
            columns += [replace(Column.parse(name), entry=entry) for name in names]
        return [column for column in columns if self.only is None or column in self.only]

    @property
    def known(self) -> "Known":
        """What may choose a readout: the columns of train and valid, without the test rows."""
        views: tuple[EntryView[KnownSplit], ...] = tuple(
            EntryView(store, KNOWN_SPLITS) for store in self.stores
        )
        return Known(views, self.task, tuple(self.columns()))


def _open_store(features: Features) -> FeatureStore:
    """Return the features of an entry; raise `InputError` if it is incomplete, or does not record its extraction."""
    if isinstance(features, Extraction):
        return _checked(features.store)
    if isinstance(features, FeatureStore):
        return _checked(features)
    path = Path(require_path(features, "fit: features"))
    if path.is_file():
        raise InputError(
            f"fit: {features} is a file, not an entry of the cache", f"call fit(extract({str(features)!r}))"
        )
    return _checked(FeatureStore(path))


def _require_same_rows(first: FeatureStore, other: FeatureStore) -> None:
    """Raise `InputError` if two entries hold other rows, and say what differs."""
    spec, other_spec = first.entry.spec, other.entry.spec
    names = f"{first.entry.path.name} and {other.entry.path.name}"
    # 1. The task: its name, or what it says of the rows and labels.
    if spec.task_name != other_spec.task_name:
        problem = f"{names} are of the tasks {spec.task_name} and {other_spec.task_name}"
        raise InputError(problem, "give entries of one task")
    if spec.task != other_spec.task:
        keys = sorted(spec.task.keys() | other_spec.task.keys())
        differing = [key for key in keys if spec.task.get(key) != other_spec.task.get(key)]
        problem = f"{names} are of tasks with other {', '.join(differing)}"
        raise InputError(problem, "extract them from the same file with the same options")
    # 2. The data: its digest covers the rows that --limit draws from it.
    if spec.data.digest != other_spec.data.digest:
        if spec.data.rows != other_spec.data.rows:
            raise InputError(f"{names} hold different rows", "extract with the same --limit")
        remedy = "extract them from the same file"
        if spec.data.origin or other_spec.data.origin:
            remedy += ", or import all folders with (or all without) --task"
        raise InputError(f"{names} hold other data", remedy)
    # 3. The words or tokens, which the models divide the same texts into.
    if spec.data != other_spec.data or any(
        _divide_differently(first[split], other[split]) for split in SPLITS
    ):
        raise InputError(
            f"{names}: their models divide the texts differently", "fit the columns of one model"
        )


def _divide_differently(first: SplitFeatures, other: SplitFeatures) -> bool:
    """Return whether the rows of two entries are words or tokens into which texts are divided in different ways."""
    # The rows are no parts of texts, or an import lacks places.
    if first.pointers is None or other.pointers is None:
        return False
    # Each text has as many words or tokens in both, and they stand at the same places.
    have_same_counts = np.array_equal(first.pointers, other.pointers)
    have_same_places = have_same_counts and np.array_equal(first.spans, other.spans)
    return not have_same_places


def _checked(store: FeatureStore) -> FeatureStore:
    """Return an entry's features as they are, if all that a fit needs besides them can be read.

    Raise `InputError` if a split has no features, if the record of the extraction cannot be read, or if the units of
    the input layer are missing, which are saved with the readout.
    """
    entry, remedy = store.entry, "extract its task again"
    record, is_imported = entry.made_with, entry.spec.init.kind == IMPORTED
    # The key does not cover this record, so anyone may have changed it. Its parts are read only later, so each is
    # parsed here as it will be then, and the result is thrown away.
    with as_input_error(f"{entry.path}: spec.json does not record how it was extracted", remedy):
        Path(record.get("prepared", ""))
        float(record.get("kept", {}).get("test", 1.0))
        scaling_from_json(record.get("scaling"), Task.from_dict(entry.spec.task))
        if not is_imported:
            Reservoir(**record["reservoir"])
    splits_without_features = {*SPLITS} - {*store.splits}
    if splits_without_features:
        raise InputError(f"{entry.path.name}: not all of its splits have features", remedy)
    if entry.spec.input.kind == "patches" and not is_imported:
        stored_units(entry)
    return store


@dataclass(frozen=True)
class Known:
    """What is known when a readout is chosen: the columns to choose from, in train and valid.

    Whatever selects takes a `Known`, because nothing in it returns test rows: it has views of entries, which refuse to
    read them, and not the entries themselves. Of several entries, the columns have numbered names.
    """

    views: tuple[EntryView[KnownSplit], ...]  # one for each entry
    task: Task  # whose rows the entries hold
    columns: tuple[Column, ...]  # those that every split of their entry holds
    row_numbers: RowNumbers | None = field(default=None, compare=False)  # the rows to read; None for all

    @property
    def view(self) -> EntryView[KnownSplit]:
        """The rows of the first entry, which are those of all entries."""
        return self.views[0]

    @property
    def title(self) -> str:
        """Name of the entry; for several, name of the first, number of the others, and digest of all names."""
        names = [view.path.name for view in self.views]
        if len(names) == 1:
            return names[0]
        digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:8]
        return f"{names[0]}+{len(names) - 1}-{digest}"

    @property
    def rows(self) -> dict[str, int]:
        """The number of all rows of each split, whether they are to be read or not."""
        return {split: self.view[split].rows for split in KNOWN_SPLITS}

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each row of train, then of valid, (rows,); None if the rows have no groups."""
        return groups_of_splits(self.view)

    @property
    def widths(self) -> dict[Column, int]:
        """The number of features of each column that has one sample per row."""
        sources = [self._column_source(column) for column in self.columns]
        return {source.column: source.width() for source in sources if source.tokens() == 1}

    def folder(self, candidates: Sequence[Columns], options: FitOptions) -> Path:
        """Return the default folder of results: below the cache's ``readouts``, or next to an entry outside a cache.

        A digest of the candidates and the options in its name keeps fits with different settings apart.
        """
        names = [joined_name(columns) for columns in candidates]
        settings = [names, options.readout, options.alphas, options.select, options.class_weight]
        # What a fit shows besides its scores counts only if there is any, so that other folders keep their names.
        if options.curve or options.control or options.mdl:
            settings += [options.curve, options.control, options.mdl]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        # "sklearn.svm.LinearSVC:C=0.1,1" becomes "LinearSVC"; "ridge" stays as it is.
        class_path, _, _settings = options.readout.partition(":")
        kind = class_path.split(".")[-1]
        name = f"{self.title}-{kind}-{digest}"
        cache = cache_of(self.view.path)
        if cache is None:
            return path_below(self.view.path.resolve().parent, name)
        return path_below(cache, "readouts", self.view.spec.task_name, name)

    def source(self, columns: Columns) -> EntrySource:
        """Return the samples of a column, or of several side by side."""
        parts = tuple(self.column(column) for column in columns)
        return parts[0] if len(parts) == 1 else JoinedSource(parts)

    def raw(self) -> RawSource[KnownSplit] | None:
        """Return the raw input of the same rows; None if it has no sequence for each (see `EntryView.has_raw`)."""
        return RawSource(self.view, row_numbers=self.row_numbers) if self.view.has_raw else None

    def column(self, column: Column | Baseline) -> ColumnSource[KnownSplit] | RawSource[KnownSplit]:
        """Return the samples of a single column, of the raw input, or of its rolling statistics.

        Raise `InputError` for a baseline if the prepared data is missing.
        """
        if isinstance(column, Column):
            return self._column_source(column)
        raw = self.raw()
        if raw is None:
            raise InputError(f"{column}: the prepared data is missing", self.view.data_remedy)
        if column == ROLLING:
            return replace(raw, baseline=ROLLING, features=rolling_statistics(raw.task))
        return raw

    def _column_source(self, column: Column) -> ColumnSource[KnownSplit]:
        """Return the samples of a single column of an entry."""
        number_of_entry = column.entry or 1  # entries have numbers only if there are several
        return ColumnSource(self.views[number_of_entry - 1], column, self.row_numbers)
