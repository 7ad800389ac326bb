"""The samples of arrays in memory, to which scikit-learn's estimators are fitted; none of them are test rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reservoir.column import RAW, Baseline, Column, Columns
from reservoir.readouts.linear import Block
from reservoir_pipelines.fitting.entry_view import KNOWN, KnownSplit, OutOfReachError
from reservoir_pipelines.fitting.source import Samples, balance_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayColumns:
    """Columns to choose from, of rows in memory, with everything that belongs to the rows."""

    features: Callable[[Column | Baseline], np.ndarray]  # returns the features (n, width) of a column
    y: np.ndarray  # labels (n, outputs) as numbers
    units: np.ndarray  # (n,): the number of the row, or of its group
    fold_of_sample: np.ndarray  # (n, repeats)
    weights: np.ndarray | None  # (n,), all above 0

    def source(self, columns: Columns) -> "ArraySource":
        """Return the samples of a column, or of several side by side."""
        return ArraySource(self, columns)

    def raw(self) -> "ArraySource":
        """Return the raw input of the same rows."""
        return ArraySource(self, (RAW,))


class ArraySource(Samples[KnownSplit]):
    """Samples of arrays; all are training samples, because cross-validation chooses a readout."""

    def __init__(self, known: ArrayColumns, columns: Columns) -> None:
        self._known = known
        self._columns = columns
        self.sample_weights = known.weights
        self.fold_of_sample = known.fold_of_sample

    @property
    def columns(self) -> Columns:
        """The columns side by side."""
        return self._columns

    def blocks(self, split: KnownSplit) -> Iterator[Block]:
        """Yield a single block of training samples."""
        y = self.labels(split)
        if len(y):
            parts = [self._known.features(column) for column in self._columns]
            yield np.concatenate(parts, axis=1), y

    def tokens(self) -> int:
        """Return 1: each row is a sample."""
        return 1

    def width(self) -> int:
        """Return the number of features of a sample."""
        return sum(self._widths)

    def labels(self, split: KnownSplit) -> np.ndarray:
        """Return the labels (n, outputs)."""
        return self._known.y[self._rows(split)]

    def counts(self, split: KnownSplit) -> np.ndarray:
        """Return 1 for each row."""
        return np.ones(len(self.labels(split)), int)

    def groups(self, split: KnownSplit) -> np.ndarray:
        """Return the unit of each row, (n,), which no two folds share."""
        return self._known.units[self._rows(split)]

    @cached_property
    def feature_weights(self) -> np.ndarray | None:
        """The weight of each feature, (w,), if the raw input is one of several columns."""
        return balance_of(self._columns, self._widths)

    @property
    def _widths(self) -> list[int]:
        return [self._known.features(column).shape[1] for column in self._columns]

    @staticmethod
    def _rows(split: KnownSplit) -> slice:
        """Return the rows of a split: all are in train, and none in valid."""
        if split not in KNOWN:
            raise OutOfReachError(f"{split} rows are out of reach here: arrays have no such rows")
        return slice(None) if split == "train" else slice(0)
