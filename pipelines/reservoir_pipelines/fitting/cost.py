"""What a fit will do and cost, computed from sizes alone and printed before it starts, and the progress of its work."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from reservoir.column import RAW, joined_name
from reservoir.readouts.kernel_ridge import PANEL
from reservoir.readouts.linear import SCORE_WORK
from reservoir.readouts.products import listening
from reservoir.readouts.sweep import CHOICE_SAMPLES
from reservoir.readouts.tridiagonal import (
    FACTORISATION_WORK,
    FEW_PENALTIES,
    TRIDIAGONAL_WORK,
    solution_work,
)
from reservoir_pipelines.fitting.candidates import Candidates
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.fitter import Choice, Fitter
from reservoir_pipelines.fitting.forecast_fitter import ForecastFitter
from reservoir_pipelines.fitting.kernel_fitter import CHOICE_ROWS, ROWS_IN_MEMORY, KernelFitter
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, KnownSource
from reservoir_pipelines.output import Meter, count_text, meter, notify, size_text, time_text

# Multiplications per second of one core: 1.0 to 1.9e10 on a server of 2023, for fits of 400 to 40,000 rows.
SPEED = 1e10
COLUMN_WORK = 1e9  # multiplications that take as long as the Python calls and files of a column: 0.1 s
SCORED_ROWS = 1024  # rows that are scored at once, which decides the memory of their scores
SMALL_SECONDS, SMALL_BYTES = 30, 2**30  # an estimate is only printed if the cost reaches one of these
UNIT = 1e9  # multiplications that progress counts as one


@dataclass(frozen=True, kw_only=True)
class RidgeSize:
    """The sizes that decide the cost of a ridge fit of one source."""

    samples: int  # number of samples that are fitted: those of train, and with folds also those of valid
    held_out: int  # number of samples of valid, which score the penalties if there are no folds
    width: int  # number of features
    targets: int  # number of columns of coded labels
    penalties: int
    folds: int = 0  # 0 if valid scores the penalties
    repeats: int = 1  # how often folds are drawn
    tries_few_penalties: bool = False  # whether some samples choose the penalties that are tried on all

    @property
    def has_kernel(self) -> bool:
        """Whether products of samples are used instead of products of features."""
        return self.samples < self.width

    @property
    def work(self) -> float:
        """Estimated multiplications of the fit of all penalties, with their scores."""
        return self._kernel_work() if self.has_kernel else self._moments_work()

    def _kernel_work(self) -> float:
        """Return the multiplications of a fit by the products of samples, X X', which are computed once."""
        n, w = self.samples, self.width
        t, a = self.targets, self.penalties
        products = n**2 * w / 2
        if self.folds:
            fitted_samples = n * (self.folds - 1) // self.folds  # in each fold
            return products + self.repeats * self._fold_work(fitted_samples)
        # The products are reduced to a tridiagonal matrix or a band, which is solved for each penalty. The solutions,
        # weights of samples, become coefficients of features.
        path = solution_work(n, self._tried_penalties) + n**2 * t * (1 + a) + n * w * a * t
        return products + path + self._score_work(self.held_out, w)

    def _moments_work(self) -> float:
        """Return the multiplications of a fit by the products of features, X' X and X' Y.

        Each repeat of the folds computes them again.
        """
        n, w = self.samples, self.width
        products = n * w**2 / 2 + n * w * (self.targets + 1)
        if self.folds:
            return self.repeats * (products + self._fold_work(w))
        return products + self._system_work(w, self.held_out) + self._score_work(self.held_out, w)

    @property
    def refit_work(self) -> float:
        """Estimated multiplications of a fit of the chosen penalty, without folds."""
        return replace(self, penalties=1, folds=0).work

    def _fold_work(self, size: int) -> float:
        """Return the multiplications of all folds of one repeat, with their scores; a system has ``size`` unknowns."""
        held_out = self.samples // self.folds  # samples of a fold
        return self.folds * self._system_work(size, held_out) + self._score_work(self.samples, size)

    def _system_work(self, size: int, held_out: int) -> float:
        """Return the multiplications that solve a system of ``size`` unknowns, to score ``held_out`` samples."""
        # Either the solutions of all penalties are rotated back, or the samples that they score are rotated, whichever
        # takes less time (`RidgeSystem.rotates_rows`).
        penalties = self._tried_penalties
        work_of_solutions = solution_work(size, penalties) + size**2 * penalties * self.targets
        work_of_samples = TRIDIAGONAL_WORK * size**3 + size**2 * held_out
        return size**2 * self.targets + min(work_of_solutions, work_of_samples)

    @property
    def _tried_penalties(self) -> int:
        """The number of penalties that are tried on all samples."""
        return FEW_PENALTIES if self.tries_few_penalties else self.penalties

    def _score_work(self, samples: int, width: int) -> float:
        """Return the multiplications of the scores of some samples, with ``width`` features, under all penalties."""
        return samples * self.penalties * self.targets * (width + SCORE_WORK)

    @property
    def bytes(self) -> float:
        """Estimated memory of the largest arrays."""
        n, w = self.samples, self.width
        scores_per_sample = self.penalties * self.targets
        systems = max(1, self.folds)  # one for each fold, or a single one
        # The solutions of one system under all penalties, in float64 (8 bytes). The unknowns are the weights of
        # features. With folds, they are the weights of the samples if there are fewer samples than features.
        unknowns = min(n, w) if self.folds else w
        solutions = 8 * scores_per_sample * unknowns
        if self.has_kernel:
            # The features are in float32 (4 bytes). Three matrices of (n, n) are in float64: the products of the
            # samples, their centred copy, and the reflections to which the copy is reduced.
            features, products = 4 * n * w, 3 * 8 * n**2
            # A `LinearPath` has the solutions twice: before and after they are multiplied by the scales of features,
            # or of samples.
            solution_copies = 2 * solutions
            # The scores of all samples while they are counted. With folds, those of each repeat are kept, too.
            score_copies = 1 + (self.repeats if self.folds else 0)
            return features + products + solution_copies + score_copies * 8 * n * scores_per_sample
        # Otherwise: the moments of each system, with three more while they are solved.
        moments = 8 * w * (w + self.targets) * (systems + 3)
        # The solutions of all folds wait for their rows, in float64 and float32 (1.5 times the bytes of float64).
        waiting_solutions = systems * 1.5 * solutions
        # Three arrays of a block in float32: the scores, their distances from the coded labels, and the squares of
        # these.
        scores = 3 * 4 * min(n, SCORED_ROWS) * scores_per_sample
        return moments + waiting_solutions + scores


@dataclass(frozen=True, kw_only=True)
class KernelSize:
    """The sizes that decide the cost of a fit of the readout ``arccos`` to one source."""

    samples: int  # of train that are fitted
    refitted: int  # of train and valid that the chosen readout is fitted to again; 0 if it is not
    held_out: int  # samples of valid, which score the penalties
    width: int
    targets: int  # columns of coded labels: the number of classes if there are more than two
    penalties: int

    @property
    def work(self) -> float:
        """Estimated multiplications of a fit, which chooses the penalty with some of the samples."""
        if self.samples <= CHOICE_ROWS:
            return self._choice_work(self.samples)
        # A single penalty needs no choice. The readout of all samples is scored with the chosen penalty alone.
        choice = self._choice_work(CHOICE_ROWS) if self.penalties > 1 else 0
        return choice + self._factor_work(self.samples) + self._score_work(self.samples, penalties=1)

    @property
    def refit_work(self) -> float:
        """Estimated multiplications of the fit of the chosen readout to train and valid."""
        return self._factor_work(self.refitted)

    def _choice_work(self, n: int) -> float:
        """Return the multiplications of the solutions of all penalties for ``n`` samples, and of their scores."""
        # The kernel is reduced to a tridiagonal matrix or a band, which is solved for each penalty.
        solutions = solution_work(n, self.penalties) + n**2 * self.targets * (1 + self.penalties)
        return n**2 * self.width + solutions + self._score_work(n, self.penalties)

    def _factor_work(self, n: int) -> float:
        """Return the multiplications of the kernel of ``n`` samples, and of its factor."""
        # Both have a lower triangle only, but for the squares of ``panel`` samples on the diagonal, which are computed
        # whole: of the kernel, and of what the earlier panels contribute to each panel of the factor.
        panel = min(n, PANEL)
        kernel = n * (n + panel) / 2 * self.width
        return kernel + FACTORISATION_WORK * n**3 + n * (n - panel) * panel / 4

    def _score_work(self, n: int, penalties: int) -> float:
        """Return the multiplications of the scores of the held-out samples by the kernel with ``n`` samples."""
        return self.held_out * (n * self.width + penalties * self.targets * SCORE_WORK)

    @property
    def bytes(self) -> float:
        """Estimated memory of the largest arrays."""
        n = max(self.samples, self.refitted)
        # Three matrices while a penalty is chosen. Afterwards the factor, or three of its panels if it is on disk.
        choice = 3 * 8 * min(n, CHOICE_ROWS) ** 2
        factor = 8 * n**2 / 2 if n <= ROWS_IN_MEMORY else 0
        panels = 3 * 8 * n * PANEL if n > CHOICE_ROWS else 0
        return 4 * n * self.width + max(choice, factor + panels)

    @property
    def disk_bytes(self) -> float:
        """The size of the factor if it is kept on disk, else 0: its lower triangle in float64, and whole panels."""
        n = max(self.samples, self.refitted)
        return 8 * (n**2 / 2 + n * PANEL / 2) if n > ROWS_IN_MEMORY else 0


FitSize = RidgeSize | KernelSize


def size_of(source: KnownSource, fitter: Fitter) -> FitSize:
    """Return the sizes that decide the cost of a fit; for logistic regression and estimators, those of ridge."""
    if not isinstance(fitter, KernelFitter):
        return ridge_size(source, fitter)
    train, valid = (len(source.labels(split)) for split in KNOWN_SPLITS)
    return KernelSize(
        samples=min(train, fitter.rows),
        refitted=min(train + valid, fitter.rows) if fitter.refits else 0,
        held_out=valid,
        width=source.width(),
        targets=_columns_of_targets(source, fitter),
        penalties=fitter.settings,
    )


def ridge_size(source: KnownSource, fitter: Fitter) -> RidgeSize:
    """Return the sizes that decide the cost of a ridge readout with the folds and the settings of a fitter."""
    samples = {split: len(source.labels(split)) for split in KNOWN_SPLITS}
    fitted_samples = sum(samples.values()) if fitter.folds else samples["train"]
    return RidgeSize(
        samples=fitted_samples,
        held_out=samples["valid"],
        width=source.width(),
        targets=_columns_of_targets(source, fitter),
        penalties=fitter.settings,
        folds=fitter.folds,
        repeats=fitter.repeats,
        tries_few_penalties=(
            isinstance(fitter, RidgeFitter) and fitter.tries_few_penalties(fitted_samples, source.width())
        ),
    )


def _columns_of_targets(source: KnownSource, fitter: Fitter) -> int:
    """Return the number of columns of the coded labels: one for each class, a single one for two classes or values."""
    return source.labels("train").shape[1] * (fitter.classes if fitter.classes > 2 else 1)


def refit_work(choice: Choice) -> float:
    """Return the estimated multiplications of `refit`.

    A choice without its model is first fitted as its fitter does.
    """
    size = size_of(choice.source, choice.fitter)
    has_model = choice.fit.solve is not None
    return size.refit_work if has_model else size.work + size.refit_work


def announce(known: Known, candidates: Candidates) -> None:
    """Print what is fitted, how a readout is chosen, and what this will cost if it is much."""
    fitter = candidates.fitter
    # All candidates are fitted to all rows; in a race, all are fitted to some rows, and then the best third to all.
    # Which third is best is not known yet, so the one that takes the most time is counted.
    sources = [known.source(columns) for columns in candidates.columns]
    sizes = [size_of(source, fitter) for source in sources]
    if candidates.race:
        sources_in_race = [candidates.race.source(columns) for columns in candidates.columns]
        by_work = sorted(sizes, key=lambda size: size.work, reverse=True)
        largest_third = by_work[: math.ceil(len(sizes) / 3)]
        sizes = [size_of(source, fitter) for source in sources_in_race] + largest_third
    # The raw input is the baseline that takes the most time.
    if known.view.has_raw:
        sizes.append(ridge_size(known.source((RAW,)), fitter))
    estimate = cost_line(sizes)
    # Folds hold out rows of train and valid.
    rows = sum(known.rows[split] for split in (KNOWN_SPLITS if fitter.folds else ("train",)))
    first_line = f"fit {known.task.name}: {_in_words(candidates, rows)}"
    if any(isinstance(size, RidgeSize) and size.tries_few_penalties for size in sizes):
        first_line += (
            f"; {fitter.settings} penalties tried on {CHOICE_SAMPLES:,} rows, the best and two more on all"
        )
    notify(first_line, *([estimate] if estimate else []))


def _in_words(candidates: Candidates, rows: int) -> str:
    """Return a text that says what is fitted to a number of ``rows``, and how a readout is chosen."""
    if not candidates.chooses:
        problem = "nothing is chosen, because no fold can hold out most of the classes and still fit them"
        name = joined_name(candidates.columns[0])
        instead = f"the readout is {name} with a fixed penalty, and validation scores mean nothing"
        return f"{problem}; {instead}; add rows (or groups) of each class"
    # "valid" for the validation rows, or for example "5-fold cross-validation by group".
    rule = "valid"
    if candidates.fitter.folds:
        rule = f"{candidates.fitter.folds}-fold cross-validation"
        if candidates.grouped:
            rule += " by group"
        elif isinstance(candidates.fitter, ForecastFitter):
            rule += " in time"
    return f"{count_text(len(candidates.columns), 'column')} on {rows:,} rows, chosen by {rule}"


def cost_line(sizes: Sequence[FitSize]) -> str | None:
    """Return the estimated cost of fits in one line; None if they take little time and memory."""
    kernels = [size for size in sizes if isinstance(size, KernelSize)]
    # One readout is fitted again. That of ridge is not worth a count: it has one of the penalties that the fit tries.
    refit_work = max((size.refit_work for size in kernels), default=0)
    work = refit_work + sum(size.work + COLUMN_WORK for size in sizes)
    seconds = work / SPEED
    # Columns are fitted one after the other, so the largest one decides the memory, and the disk.
    memory = max((size.bytes for size in sizes), default=0)
    if seconds < SMALL_SECONDS and memory < SMALL_BYTES:
        return None
    time = f"{time_text(seconds)} of one core ({work:.1e} multiplications)"
    line = f"estimate: about {time} and {size_text(int(memory))} of memory, in addition to the program"
    disk = max((size.disk_bytes for size in kernels), default=0)
    return f"{line}, and for that time {size_text(int(disk))} of disk" if disk else line


class WorkProgress:
    """A line of progress of fits one after the other, each with an estimate of its multiplications."""

    def __init__(self, bar: Meter) -> None:
        self._bar = bar
        self._completed = 0  # units of the estimates of all fits that have ended
        self._reported = 0.0  # multiplications that the current fit has reported
        self._estimate = 0  # units of the estimate of the current fit

    @contextmanager
    def counting(self, work: float) -> Iterator[None]:
        """Count the multiplications of a fit, which runs within this context.

        ``work`` is their estimated number. At the end of the context, so many have been counted, whatever the fit took.
        """
        self._reported = 0.0
        self._estimate = _units(work)
        with listening(self._count):
            yield
        self._completed += self._estimate
        self._bar.show(self._completed)

    def _count(self, multiplications: float) -> None:
        """Count multiplications of the current fit, and show the progress."""
        self._reported += multiplications
        # A fit that takes more than its estimate waits there, so that progress never passes the total.
        finished = min(int(self._reported / UNIT), self._estimate)
        self._bar.show(self._completed + finished)


@contextmanager
def work_meter(
    title: str, works: Sequence[float]
) -> Iterator[Callable[[float], AbstractContextManager[None]]]:
    """Show the progress of fits with estimated multiplications ``works``; yield `WorkProgress.counting`.

    Run each fit within ``counting(work)``, with its item of ``works``.
    """
    total = sum(map(_units, works))
    with meter(title, total, unit="billion multiplications") as bar:
        yield WorkProgress(bar).counting


def _units(work: float) -> int:
    """Return a number of multiplications in the unit of progress, at least 1, so that every fit moves the line."""
    return max(1, round(work / UNIT))
