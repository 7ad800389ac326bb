"""How good columns are, by held-out rows of train and valid alone; test is not read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from reservoir_cache import FeatureStore

from reservoir.plan import RAW
from reservoir.readouts import HeldOutScore, Targets, kernel_matrix, score_by_kernel
from reservoir_pipelines.fitting.column_fit import make_targets
from reservoir_pipelines.fitting.sources import ColumnSource, Source, assign_folds

FOLDS = 5
DEALS = ((100, 5), (400, 3), (float("inf"), 1))
"""How often less than so many samples are dealt to the folds."""

VALUES = ("quantiles", "shares", "mean", "std", "max", "min")
"""Poolings that tell which values a channel takes; they are judged side by side, others each by itself."""

KNOWN = ("train", "valid")


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """Kernel matrices (n, n) of the samples of train and valid, of columns and of the raw input, and their widths."""

    columns: np.ndarray | float = 0.0
    raw: np.ndarray | float = 0.0
    width: int = 0
    raw_width: int = 0

    @classmethod
    def of(cls, source: Source) -> Kernel:
        """Multiply the samples of a source."""
        x = np.concatenate([x for split in KNOWN for x, _ in source.blocks(split)])
        if source.columns == (RAW,):
            return cls(raw=kernel_matrix(x), raw_width=x.shape[1])
        return cls(columns=kernel_matrix(x), width=x.shape[1])

    def __add__(self, other: Kernel) -> Kernel:
        """Return the kernel of both side by side."""
        return Kernel(
            columns=self.columns + other.columns,
            raw=self.raw + other.raw,
            width=self.width + other.width,
            raw_width=self.raw_width + other.raw_width,
        )

    def matrix(self) -> np.ndarray:
        """Return the sum, in which columns and the raw input have half of all variance each, as in `fit`."""
        if not (self.width and self.raw_width):
            return np.asarray(self.columns + self.raw)
        half = (self.width + self.raw_width) / 2
        return np.asarray(self.columns * (half / self.width) + self.raw * (half / self.raw_width))


Kernels = dict[tuple[str, ...], Kernel]
"""Columns that are read together, and their kernel."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The labels of train and valid, and their folds, the same for all reservoirs."""

    y: np.ndarray
    targets: Targets
    deals: np.ndarray
    tokens: int

    @classmethod
    def of(cls, source: Source, classes: int) -> Judge:
        """Deal the samples of a source to folds."""
        y = np.concatenate([source.labels(split) for split in KNOWN])
        groups = source.groups()
        folds = min(FOLDS, len(y) // source.tokens() if groups is None else len(np.unique(groups)))
        number = next(deals for most, deals in DEALS if len(y) < most)
        deals = np.stack([assign_folds(source, folds, classes, repeat) for repeat in range(number)])
        return cls(y=y, targets=make_targets(source, classes), deals=deals, tokens=source.tokens())

    def __call__(self, kernels: Iterable[Kernel]) -> HeldOutScore:
        """Judge columns side by side: their kernels add up."""
        return score_by_kernel(sum(kernels, start=Kernel()).matrix(), self.y, self.targets, self.deals)

    def fits(self, source: Source) -> bool:
        """Whether a source has the samples that are judged: row by row, or token by token."""
        return source.tokens() == self.tokens


def column_kernels(store: FeatureStore, columns: Sequence[str], judge: Judge) -> Kernels:
    """Return the kernels of a reservoir's columns: the values of a layer together, other poolings alone."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        layer, _, pooling = column.partition("/")
        if judge.fits(ColumnSource(store, column)):
            groups.setdefault(layer if pooling.startswith(VALUES) else column, []).append(column)
    return {
        tuple(group): sum((Kernel.of(ColumnSource(store, column)) for column in group), start=Kernel())
        for group in groups.values()
    }


def best_of(kernels: Kernels, judge: Judge) -> tuple[tuple[str, ...], HeldOutScore]:
    """Return the columns of one reservoir that do best, and how: all, those of a layer, or one group alone."""
    layers: dict[str, list[tuple[str, ...]]] = {}
    for group in kernels:
        layers.setdefault(group[0].partition("/")[0], []).append(group)
    tried: Mapping[tuple[tuple[str, ...], ...], None] = dict.fromkeys(
        [tuple(kernels), *(tuple(groups) for groups in layers.values()), *((group,) for group in kernels)]
    )
    judged = [(groups, judge(kernels[group] for group in groups)) for groups in tried]
    groups, found = max(judged, key=lambda pair: pair[1].merit)
    return tuple(column for group in groups for column in group), found
