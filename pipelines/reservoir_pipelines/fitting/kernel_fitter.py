"""Kernel ridge readouts, whose penalty is chosen on valid; the factor of many rows is kept on disk, to be resumed."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import numpy as np
from reservoir_cache import locked, replace_file

from reservoir.column import names_of
from reservoir.errors import InputError, as_input_error
from reservoir.random import generator
from reservoir.readouts.kernel_ridge import (
    MAX_FACTOR_ROWS,
    KernelReadout,
    Panels,
    PanelsInMemory,
    Standardised,
    factorise,
    solve_factored,
)
from reservoir.readouts.linear import Readout, Tally, Targets
from reservoir.readouts.products import arithmetic
from reservoir.readouts.tridiagonal import solve_penalties
from reservoir_pipelines.fitting.fitter import ColumnFit, Fitter, targets_of
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, EntrySamples, KnownSource, KnownSplit
from reservoir_pipelines.output import notify

# Most training rows that choose the penalty. A factor of all rows of CIFAR-10 would take an estimated quarter of an
# hour for each penalty, and the best one, relative to the kernel of a row with itself, should change little with rows.
CHOICE_ROWS = 5_000
# Up to this number of rows, the factor is in memory, 1 GB. It takes a minute, so that nothing is resumed.
ROWS_IN_MEMORY = 16_384


class PanelsOnDisk:
    """Panels of a factor (see `factorise`) in the files of a folder, each of which appears whole or not at all."""

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
        """Return the path of the file of a panel."""
        return self._folder / f"panel{number:03d}.npy"


def _write_array(path: Path, array: np.ndarray) -> None:
    """Write an array to a file of exactly this path; `np.save` appends ``.npy`` to other names."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


@dataclass(frozen=True, kw_only=True)
class KernelFitter(Fitter):
    """Ridge regression in the feature space of a kernel, for every penalty."""

    kind = "arccos"  # also the name of the kernel
    alphas: np.ndarray  # the penalties (A,), relative to the mean kernel of a row with itself
    rows: int = MAX_FACTOR_ROWS  # most rows that are fitted; of more, this number is drawn at random

    @property
    def settings(self) -> int:
        """The number of penalties."""
        return len(self.alphas)

    def without_wider_grid(self) -> Self:
        """Return this fitter, which tries no further penalties."""
        return self

    def with_fixed_penalty(self) -> Self:
        """Return a fitter with one penalty, the one in the middle of the grid."""
        return replace(self, alphas=self.alphas[[len(self.alphas) // 2]])

    def with_setting_of(self, fit: ColumnFit) -> Self:
        """Return a fitter that tries only the penalty of a fit."""
        return replace(self, alphas=np.array([fit.result.alpha]))

    def fit(self, source: KnownSource) -> ColumnFit:
        """Choose a penalty by its score on valid, and fit the training rows with it.

        Up to `CHOICE_ROWS` training rows are fitted with every penalty. Of more, so many are drawn to choose the
        penalty, and all are fitted with it alone.
        """
        training = KernelRows.of(source, ("train",), targets_of(source, self.classes))
        name, training = self._drawn(training, self.rows)
        if len(training) <= CHOICE_ROWS:
            duals = training.duals(self.kind, self.alphas)
            results = self._results(source, training, duals, self.alphas, name)
            best = best_of(results)
            chosen = training.readout(self.kind, duals[best])
        else:
            # The results are those of every penalty for the drawn rows, then that of the best one for all rows.
            results: list[Result] = []
            chosen_alpha = self.alphas[:1]
            needs_choice = self.settings > 1
            if needs_choice:
                results = self._results_of_drawn_rows(source, training)
                chosen_alpha = self.alphas[[best_of(results)]]
            dual = self._solved(source, training, float(chosen_alpha[0]))
            results += self._results(source, training, dual[None], chosen_alpha, name)
            best = len(results) - 1
            chosen = training.readout(self.kind, dual)
        return ColumnFit(columns=source.columns, results=tuple(results), best=best, solve=lambda: chosen)

    def refit(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return a readout that was chosen on valid, fitted again to train and valid if the fitter ``refits``."""
        if not self.refits:
            return chosen
        assert isinstance(chosen, KernelReadout)
        assert alpha is not None, "every result of `fit` has a penalty"
        _, training = self._drawn(KernelRows.of(source, KNOWN_SPLITS, chosen.targets), self.rows)
        readout = training.readout(self.kind, self._solved(source, training, alpha))
        # A readout that is fitted to valid, too, has no held-out scores to fit a temperature to.
        return replace(readout, temperature=chosen.temperature)

    def _results_of_drawn_rows(self, source: KnownSource, training: "KernelRows") -> list[Result]:
        """Return the result of each penalty for `CHOICE_ROWS` of the training rows."""
        name, drawn = self._drawn(training, CHOICE_ROWS)
        return self._results(source, drawn, drawn.duals(self.kind, self.alphas), self.alphas, name)

    def _drawn(self, training: "KernelRows", most: int) -> tuple[str, "KernelRows"]:
        """Return the name of a readout that is fitted to up to ``most`` of the training rows, and these rows.

        More rows are drawn with a fixed seed, and the name says how many.
        """
        if len(training) <= most:
            return self.kind, training
        row_numbers = np.sort(generator(0, "kernel rows").permutation(len(training))[:most])
        return f"{self.kind} on {most:,} of {len(training):,} training rows", training.take(row_numbers)

    def _results(
        self,
        source: KnownSource,
        training: "KernelRows",
        duals: np.ndarray,
        alphas: np.ndarray,
        name: str,
    ) -> list[Result]:
        """Return the result on valid of each penalty of ``alphas`` (A,), from its solution in ``duals`` (A, n, T).

        ``name`` is that of the readout in the results.
        """
        # The solutions of all penalties stand side by side, (n, A * T), as those of one readout, so that the kernel of
        # each row of valid is computed once for all.
        duals_side_by_side = np.concatenate([*duals], axis=1)
        readout_of_all = replace(
            training.readout(self.kind, duals_side_by_side), offset=np.tile(training.offset, len(alphas))
        )
        tally = Tally(training.targets)
        for x, y in source.blocks("valid"):
            scores = readout_of_all.scores(x).reshape(len(x), len(alphas), -1)  # (m, A, T)
            tally.update(scores.transpose(1, 0, 2), y)
        return [
            Result(
                columns=names_of(source.columns),
                readout=name,
                metric=training.targets.metric,
                alpha=float(alpha),
                valid_score=float(score),
                valid_loss=float(loss),
            )
            for alpha, score, loss in zip(alphas, tally.accuracy(), tally.loss(), strict=True)
        ]

    def _solved(self, source: KnownSource, training: "KernelRows", alpha: float) -> np.ndarray:
        """Return the solution (n, T) of one penalty, by a factorisation in panels."""
        with self._panels(source, training.rows, alpha) as panels:
            factorise(training.rows, self.kind, alpha, panels)
            return solve_factored(panels, training.coded - training.offset)

    @contextmanager
    def _panels(self, source: KnownSource, training: Standardised, alpha: float) -> Iterator[Panels]:
        """Yield where the factor is kept: in memory, or on disk beside the features.

        The files are removed when the rows have been fitted. They stay if an error or a signal ends the fit, so that
        the next one continues.
        """
        is_small = len(training.rows) <= ROWS_IN_MEMORY
        if is_small or not isinstance(source, EntrySamples):  # other samples have no folder
            yield PanelsInMemory()
            return
        # The folder of the factor of other rows, or with another penalty, has another name.
        entry = source.view.path
        folder = entry / f"factor-{training.digest()[:16]}-{self.kind}-{alpha:.6g}"
        # One factor of an entry at a time: another process may have the same folder, and would remove it at its end.
        with locked(entry, wait=False) as is_free:
            if not is_free:
                notify(f"{source.name}: waiting for another process that factorises rows of {entry}")
        with locked(entry):
            if folder.is_dir():
                notify(f"{source.name}: continuing the factorisation in {folder}")
            yield PanelsOnDisk(folder)
            shutil.rmtree(folder)


def parse_rows(readout: str) -> int:
    """Return the number of rows of ``arccos:rows=20000``, and of ``arccos`` the most that are possible.

    Raise `InputError` for other settings after the colon.
    """
    name, _, settings = readout.partition(":")
    if not settings:
        return MAX_FACTOR_ROWS
    key, _, value = settings.partition("=")
    if key != "rows" or not value.isdecimal() or not 0 < int(value) <= MAX_FACTOR_ROWS:
        raise InputError(
            f"--readout {readout}: {settings!r} is not a number of rows",
            f"write {name}:rows=20000, up to {MAX_FACTOR_ROWS:,}",
        )
    return int(value)


def best_of(results: Sequence[Result]) -> int:
    """Return the index of the best result: the most accurate, then the smaller loss, then the larger penalty."""
    return max(range(len(results)), key=lambda number: results[number].sort_key)


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelRows:
    """The rows of some splits, standardised, with their labels."""

    rows: Standardised
    coded: np.ndarray  # the labels, coded as targets (n, T)
    targets: Targets  # the coding

    @classmethod
    def of(cls, source: KnownSource, splits: Sequence[KnownSplit], targets: Targets) -> "KernelRows":
        """Return the rows of some splits of a source; raise `InputError` if some labels have no features."""
        labels = np.concatenate([source.labels(split) for split in splits])
        # The blocks are copied into one array, because joining them at the end would take twice the memory.
        x = np.empty((len(labels), source.width()), np.float32)
        start = 0  # the first row of a block
        for split in splits:
            for block, _ in source.blocks(split):
                x[start : start + len(block)] = block
                start += len(block)
        if start != len(x):  # the rows of ``x`` after them would be undefined
            raise InputError(f"{source.name}: {start} rows and {len(x)} labels", "extract again")
        rows = Standardised.of(x, source.feature_weights)  # overwrites ``x``
        return cls(rows=rows, coded=targets.coded(labels), targets=targets)

    def __len__(self) -> int:
        return len(self.coded)

    @cached_property
    def offset(self) -> np.ndarray:
        """The mean of the targets, (T,)."""
        return self.coded.mean(axis=0, dtype=np.float64)

    def take(self, numbers: np.ndarray) -> "KernelRows":
        """Return some of the rows, by their numbers."""
        return replace(self, rows=self.rows.take(numbers), coded=self.coded[numbers])

    def duals(self, kernel: str, alphas: np.ndarray) -> np.ndarray:
        """Return the solution of each penalty, the weights (A, n, T) of the rows, from the kernel of all rows."""
        all_rows = slice(0, len(self))
        products = arithmetic().put(self.rows.products(kernel, all_rows, all_rows))
        return solve_penalties(products, self.coded - self.offset, alphas)

    def readout(self, kernel: str, dual: np.ndarray) -> KernelReadout:
        """Return the readout of a solution, the weights ``dual`` (n, T) of the rows."""
        return KernelReadout.of(self.rows, kernel, dual, self.offset, self.targets)
