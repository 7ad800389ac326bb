"""Score columns on held-out rows of train and valid, never on test rows, and choose reservoirs to join."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from reservoir_cache import FeatureStore

from reservoir.plan import AUTO_FOLDS, RAW, repeats_of
from reservoir.readouts.linear import Targets
from reservoir.readouts.sweep import HeldOutScore, kernel_matrix, score_by_kernel
from reservoir_pipelines.fitting.sources import KNOWN, ColumnSource, SampleSource, assign_folds, groups_of

VALUES = ("quantiles", "shares", "mean", "std", "max", "min")
"""Poolings of the values of a channel, which are concatenated for scoring; all others are scored separately."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnKernel:
    """Kernel matrices (n, n) of columns and of the raw input, for the samples of train and valid, with their widths."""

    columns: np.ndarray | float = 0.0
    raw: np.ndarray | float = 0.0
    width: int = 0
    raw_width: int = 0

    @classmethod
    def of(cls, source: SampleSource) -> "ColumnKernel":
        """Return the inner products between all samples of a source."""
        x = np.concatenate([x for split in KNOWN for x, _ in source.blocks(split)])
        if source.columns == (RAW,):
            return cls(raw=kernel_matrix(x), raw_width=x.shape[1])
        return cls(columns=kernel_matrix(x), width=x.shape[1])

    def __add__(self, other: "ColumnKernel") -> "ColumnKernel":
        """Return the kernel matrix of the concatenated columns: the sum of the two matrices."""
        return ColumnKernel(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def matrix(self) -> np.ndarray:
        """Return one kernel matrix, scaled so that columns and raw input each have half the variance, as in `fit`."""
        if not (self.width and self.raw_width):
            return np.asarray(self.columns + self.raw)
        half = (self.width + self.raw_width) / 2
        return np.asarray(self.columns * (half / self.width) + self.raw * (half / self.raw_width))


Kernels = dict[tuple[str, ...], ColumnKernel]  # kernel by the names of concatenated columns


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The labels of train and valid and their folds, which are the same for all reservoirs."""

    y: np.ndarray
    targets: Targets
    folds: np.ndarray  # (repeats, samples): the fold of each sample
    tokens: int  # samples of each row

    @classmethod
    def of(cls, source: SampleSource, classes: int) -> "Judge":
        """Assign the samples of a source to folds."""
        y = np.concatenate([source.labels(split) for split in KNOWN])
        groups = groups_of(source.store)
        number = min(AUTO_FOLDS, len(y) // source.tokens() if groups is None else len(np.unique(groups)))
        folds = assign_folds(source, number, classes, repeats_of(len(y))).T
        return cls(y=y, targets=source.targets(classes), folds=folds, tokens=source.tokens())

    def __call__(self, kernels: Iterable[ColumnKernel]) -> HeldOutScore:
        """Return the score of concatenated columns on held-out samples."""
        return score_by_kernel(
            sum(kernels, start=ColumnKernel()).matrix(), self.y, self.targets, self.folds
        )


def column_kernels(store: FeatureStore, columns: Sequence[str], judge: Judge) -> Kernels:
    """Return the kernels of a reservoir's columns: one for the `VALUES` of each layer, and one per other column."""
    groups: dict[str, list[ColumnSource]] = {}
    for column in columns:
        layer, _, pooling = column.partition("/")
        source = ColumnSource(store, column)
        if source.tokens() == judge.tokens:
            groups.setdefault(layer if pooling.startswith(VALUES) else column, []).append(source)
    return {
        tuple(source.column for source in group): sum(map(ColumnKernel.of, group), start=ColumnKernel())
        for group in groups.values()
    }


def best_columns(kernels: Kernels, judge: Judge) -> tuple[tuple[str, ...], HeldOutScore]:
    """Return the best columns of a reservoir (all, those of a layer, or one group) and their held-out results."""
    layers: dict[str, list[tuple[str, ...]]] = {}
    for group in kernels:
        layers.setdefault(group[0].partition("/")[0], []).append(group)
    tried = dict.fromkeys([tuple(kernels), *map(tuple, layers.values()), *((group,) for group in kernels)])
    judged = [(groups, judge(kernels[group] for group in groups)) for groups in tried]
    groups, found = max(judged, key=lambda pair: pair[1].merit)
    return tuple(column for group in groups for column in group), found


def join(
    kernels: Mapping[int, ColumnKernel], judge: Judge, most: int, go_on: Callable[[], bool]
) -> tuple[tuple[int, ...], HeldOutScore]:
    """Join up to ``most`` reservoirs greedily while held-out results improve; return candidate numbers and results."""
    alone = {number: judge([kernel]) for number, kernel in kernels.items()}
    first = max(alone, key=lambda number: alone[number].merit)
    # The best of many candidates may be best by chance. It replaces the default, number 0, only if
    # its score is not lower, and its loss is lower by more than the paired standard error over rows.
    gain = alone[0].losses - alone[first].losses
    noise = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    if alone[first].score < alone[0].score or gain.mean() <= noise:
        first = 0
    chosen: tuple[int, ...] = (first,)
    total, found = kernels[first], alone[first]
    while len(chosen) < min(most, len(kernels)) and go_on():
        steps = {number: judge([total, kernels[number]]) for number in kernels if number not in chosen}
        best = max(steps, key=lambda number: steps[number].merit)
        if steps[best].merit <= found.merit:
            break
        chosen, found, total = (*chosen, best), steps[best], total + kernels[best]
    return chosen, found
