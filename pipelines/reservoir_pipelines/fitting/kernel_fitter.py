"""Kernel ridge readouts, whose penalty is chosen on valid; the factor of many rows is kept on disk, to be resumed."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from reservoir_cache import replace_file

from reservoir.column import names_of
from reservoir.errors import InputError, as_input_error
from reservoir.random import generator
from reservoir.readouts.kernel_ridge import (
    KernelReadout,
    Panels,
    PanelsInMemory,
    Standardised,
    factorise,
    solve_factored,
)
from reservoir.readouts.linear import Readout, Tally, Targets
from reservoir.readouts.tridiagonal import solve_penalties
from reservoir_pipelines.fitting.fitter import ColumnFit, Fitter, targets_of
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import KNOWN, EntrySamples, KnownSplit, Source
from reservoir_pipelines.output import notify

# Training rows that choose the penalty. All penalties of 10,000 rows take two minutes; a factor of 50,000 rows takes
# twenty minutes for each of them, and the best penalty, relative to the kernel of a row with itself, changes little.
CHOICE_ROWS = 10_000
ROWS_IN_MEMORY = (
    16_384  # rows whose factor is in memory, 1 GB; it takes a minute, so that nothing is resumed
)


class PanelsOnDisk:
    """Panels in the files of a folder, each of which appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with as_input_error(
            f"{folder}: cannot be written", "fit a copy of the features that you may write to"
        ):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, number: int) -> np.ndarray | None:
        """Return a panel as a map of its file, of which only the rows in use are read; None if there is no file."""
        path = self._path(number)
        return np.load(path, mmap_mode="r", allow_pickle=False) if path.exists() else None

    def save(self, number: int, panel: np.ndarray) -> None:
        """Write the file of a panel."""
        replace_file(self._path(number), partial(_write_array, array=panel))

    def _path(self, number: int) -> Path:
        return self._folder / f"panel{number:03d}.npy"


def _write_array(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


@dataclass(frozen=True, kw_only=True)
class KernelFitter(Fitter):
    """Ridge regression in the feature space of a kernel, for every penalty."""

    kind = "arccos"
    alphas: np.ndarray  # relative to the mean kernel of a row with itself

    @property
    def settings(self) -> int:
        """The number of penalties."""
        return len(self.alphas)

    def without_wider_grid(self) -> Self:
        """Return this fitter, which tries no further penalties."""
        return self

    def without_choice(self) -> Self:
        """Return a fitter with one penalty, the middle one."""
        return replace(self, alphas=self.alphas[[len(self.alphas) // 2]])

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the penalty of a fit."""
        return replace(self, alphas=np.array([fit.result.alpha]))

    def fit(self, source: Source) -> ColumnFit:
        """Choose a penalty by some of the training rows, and fit all of them."""
        targets = targets_of(source, self.classes)
        training, labels = _standardised(source, ("train",))
        coded = targets.coded(labels)
        if len(coded) <= CHOICE_ROWS:
            duals = self._duals(training, coded)
            results = self._results(source, training, targets, coded, duals, self.alphas, self.kind)
            best = best_of(results)
            chosen = self._readout(training, targets, coded, duals[best])
        else:
            # The readout of all rows has the penalty that is best for some of them, and a result of its own.
            results = self._results_of_some(source, training, targets, coded) if self.settings > 1 else []
            alphas = self.alphas[[best_of(results) if results else 0]]
            dual = self._solved(source, training, coded, float(alphas[0]))
            results += self._results(source, training, targets, coded, dual[None], alphas, self.kind)
            best = len(results) - 1
            chosen = self._readout(training, targets, coded, dual)
        return ColumnFit(columns=source.columns, results=tuple(results), best=best, solve=lambda: chosen)

    def _results_of_some(
        self, source: Source, training: Standardised, targets: Targets, coded: np.ndarray
    ) -> list[Result]:
        """Return the result of each penalty for `CHOICE_ROWS` of the training rows."""
        drawn = np.sort(generator(0, "kernel choice").permutation(len(coded))[:CHOICE_ROWS])
        some, coded_some = training.take(drawn), coded[drawn]
        name = f"{self.kind} on {len(drawn):,} of {len(coded):,} training rows"
        duals = self._duals(some, coded_some)
        return self._results(source, some, targets, coded_some, duals, self.alphas, name)

    def _results(
        self,
        source: Source,
        training: Standardised,
        targets: Targets,
        coded: np.ndarray,
        duals: np.ndarray,
        alphas: np.ndarray,
        name: str,
    ) -> list[Result]:
        """Return the results on valid of solutions (A, n, T) with their penalties; ``name`` is the kind of readout."""
        # The solutions of all penalties stand side by side, so that the kernel of a row is computed once for all.
        side_by_side = np.concatenate([*duals], axis=1)
        readout = replace(
            self._readout(training, targets, coded, side_by_side),
            offset=np.tile(coded.mean(axis=0, dtype=np.float64), len(alphas)),
        )
        tally = Tally(targets)
        for x, y in source.blocks("valid"):
            scores = readout.scores(x).reshape(len(x), len(alphas), -1)
            tally.update(scores.transpose(1, 0, 2), y)
        return [
            Result(
                columns=names_of(source.columns),
                readout=name,
                metric=targets.metric,
                alpha=float(alpha),
                valid_score=float(score),
                valid_loss=float(loss),
            )
            for alpha, score, loss in zip(alphas, tally.accuracy(), tally.loss(), strict=True)
        ]

    def refit(self, source: Source, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout that was chosen on valid, fitted again to train and valid if the fitter ``refits``."""
        if not self.refits:
            return chosen
        assert isinstance(chosen, KernelReadout)
        training, labels = _standardised(source, KNOWN)
        coded = chosen.targets.coded(labels)
        dual = self._solved(source, training, coded, float(alpha or 1))
        readout = self._readout(training, chosen.targets, coded, dual)
        return replace(readout, temperature=chosen.temperature)

    def _readout(
        self, training: Standardised, targets: Targets, coded: np.ndarray, dual: np.ndarray
    ) -> KernelReadout:
        """Return the readout of a solution (n, T) for coded labels (n, T)."""
        offset = coded.mean(axis=0, dtype=np.float64)
        return KernelReadout.of(training, self.kind, dual, offset, targets)

    def _duals(self, training: Standardised, coded: np.ndarray) -> np.ndarray:
        """Return the solution of each penalty, (A, n, T), by one reduction of the whole kernel."""
        everything = slice(0, len(coded))
        matrix = training.products(self.kind, everything, everything)
        return solve_penalties(matrix, coded - coded.mean(axis=0, dtype=np.float64), self.alphas)

    def _solved(
        self, source: Source, training: Standardised, coded: np.ndarray, alpha: float
    ) -> np.ndarray:
        """Return the solution (n, T) of one penalty, by a factorisation in panels."""
        with self._panels(source, training, alpha) as panels:
            factorise(training, self.kind, alpha, panels)
            return solve_factored(panels, coded - coded.mean(axis=0, dtype=np.float64))

    @contextmanager
    def _panels(self, source: Source, training: Standardised, alpha: float) -> Iterator[Panels]:
        """Yield where the factor is kept: in memory, or beside the features, until the rows have been fitted."""
        if len(training.rows) <= ROWS_IN_MEMORY or not isinstance(source, EntrySamples):
            yield PanelsInMemory()
            return
        # The folder of the factor of other rows, or with another penalty, has another name.
        folder = source.view.path / f"factor-{training.digest()[:16]}-{self.kind}-{alpha:.6g}"
        if folder.is_dir():
            notify(f"{source.name}: continuing the factorisation in {folder}")
        yield PanelsOnDisk(folder)
        shutil.rmtree(folder)


def best_of(results: Sequence[Result]) -> int:
    """Return the index of the best result: the most accurate, then the smaller loss, then the larger penalty."""
    return max(range(len(results)), key=lambda number: results[number].sort_key)


def _standardised(source: Source, splits: Sequence[KnownSplit]) -> tuple[Standardised, np.ndarray]:
    """Return the rows of some splits, standardised, and their labels (n, outputs)."""
    labels = np.concatenate([source.labels(split) for split in splits])
    # The blocks are copied into one array, because joining them at the end would take twice the memory.
    rows = np.empty((len(labels), source.width()), np.float32)
    start = 0
    for split in splits:
        for x, _ in source.blocks(split):
            rows[start : start + len(x)] = x
            start += len(x)
    if start != len(rows):
        raise InputError(f"{source.name}: {start} rows and {len(rows)} labels", "extract again")
    return Standardised.of(rows, source.feature_weights), labels
