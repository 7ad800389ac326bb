"""Some splits of an entry, and no way to the others: what selects gets a view of train and valid only."""

from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from reservoir_cache import Entry, FeatureStore, SplitFeatures

from reservoir.tasks.task import Scaling, Task
from reservoir_pipelines.preparation.prepared import Prepared, PreparedSplit

KnownSplit = Literal["train", "valid"]
TestSplit = Literal["test"]
S = TypeVar("S", bound=str)  # the splits that a view reads

KNOWN: tuple[KnownSplit, ...] = ("train", "valid")  # the splits that choose a readout


class OutOfReachError(LookupError):
    """A programming error: code asked a view for rows of a split that it must not read."""


class EntryView(Generic[S]):
    """Some splits of an entry, with their raw input; asking for another split raises `OutOfReachError`."""

    def __init__(self, store: FeatureStore, splits: tuple[S, ...]) -> None:
        self._store, self.splits = store, splits

    @property
    def entry(self) -> Entry:
        """The entry."""
        return self._store.entry

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
        return self.entry.blocks(split)

    @property
    def has_raw(self) -> bool:
        """Whether the prepared data of the entry is still there."""
        place = self.entry.made_with.get("prepared")  # "" if features were imported without their data
        return bool(place) and Path(place).is_dir()

    @property
    def raw_task(self) -> Task:
        """The task of the prepared data."""
        return self._prepared.task

    @property
    def raw_scaling(self) -> Scaling | None:
        """From stored values of the prepared data to those that the model reads; None for symbols."""
        return self._prepared.scaling

    def raw(self, split: S) -> PreparedSplit:
        """Return the prepared rows of a split."""
        self._require(split)
        return self._prepared.split(split)

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared.open(Path(self.entry.made_with.get("prepared", "")))

    def _require(self, split: str) -> None:
        if split not in self.splits:
            raise OutOfReachError(
                f"{split} rows are out of reach here: this view has {' and '.join(self.splits)}"
            )
