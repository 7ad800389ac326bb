"""The search: candidates on few rows, the best of them on more, each an ordinary entry of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType

from reservoir_cache import FeatureStore

from reservoir import InputError
from reservoir.readouts import metric_name
from reservoir.reservoir import DEFAULT_BACKBONE
from reservoir_pipelines.fitting.pool import Pool
from reservoir_pipelines.fitting.sources import ColumnSource
from reservoir_pipelines.tuning.budget import Budget, Costs
from reservoir_pipelines.tuning.judge import KNOWN, Judge, Kernel, best_of, column_kernels
from reservoir_pipelines.tuning.space import Candidate
from reservoir_pipelines.tuning.trials import Trial, Trials
from reservoir_pipelines.tuning.where import Where

FEW, MANY = 400, 800
"""Rows of a split on which reservoirs are judged first, and at last: kernel matrices have samples squared."""

SURVIVORS = 0.25  # of the reservoirs that were judged on few rows
FIRST_SHARE = 0.6  # of the time for trials, where those on few rows are not the last ones
RAW = -1  # the number of the raw input among what may be joined
FINALISTS = 8  # reservoirs that may be joined, besides the default and the raw input


@dataclass
class Search:
    """Trials within a budget; what has been tried before comes from its file."""

    where: Where
    budget: Budget
    trials: Trials
    show: Callable[[Trial], None]
    costs: Costs = field(default_factory=Costs)
    judges: dict[int | None, Judge] = field(default_factory=dict)

    def limits(self) -> list[int | None]:
        """Return the rows of a split that reservoirs are judged on, one after the other."""
        rows, each = self.where.rows(), self.where.prepared.task.readout_tokens
        most = max(rows[split] for split in KNOWN) * each
        last = None if most <= 1.5 * MANY else max(1, MANY // each)
        return [last] if most <= 1.5 * FEW else [max(1, FEW // each), last]

    def run(self, reserve: Callable[[], float], most: int | None) -> list[Trial]:
        """Try candidates as long as there is time beyond the reserve; return those of the last round, best first."""
        *before, last = self.limits()
        if not before:
            return self._round(count(), last, reserve, most)
        trial_time = max(0.0, self.budget.left - reserve())
        first = self._round(count(), before[0], lambda: reserve() + (1 - FIRST_SHARE) * trial_time, most)
        survivors = [trial for trial in first[: max(2, round(SURVIVORS * len(first)))] if trial.number]
        default = next(trial for trial in first if not trial.number)
        columns = {trial.number: trial.columns for trial in (default, *survivors)}
        return self._round(iter(columns), last, reserve, most, columns)

    def _round(
        self,
        numbers: Iterator[int],
        limit: int | None,
        reserve: Callable[[], float],
        most: int | None,
        columns: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    ) -> list[Trial]:
        """Try candidates, of ``columns`` those that are known to be best; return their trials, best first."""
        found: list[Trial] = []
        for number in numbers:
            if most is not None and len(found) >= most:
                break
            trial = self.trials.get(number, limit)
            if trial is None:
                chosen = self.where.candidate(number)
                work = self.where.work(chosen, self._known(limit))
                # The default is always tried: without it nothing is known of the costs either.
                if found and not self.budget.allows(self.costs.predict(_backbone(chosen), work) + reserve()):
                    break
                if (trial := self._try(chosen, limit, work, columns.get(number))) is None:
                    continue
            self.costs.observe(_backbone(self.where.candidate(number)), trial.work, trial.seconds)
            found.append(trial)
            self.show(trial)
        return sorted(found, key=lambda trial: trial.merit, reverse=True)

    def _try(self, chosen: Candidate, limit: int | None, work: float, known: tuple[str, ...] | None) -> Trial | None:
        """Extract train and valid, judge the columns and keep what was found; None where these data refuse it."""
        started = self.budget.clock()
        try:
            extraction = self.where.extract(chosen, limit, KNOWN)
        except InputError:
            if not chosen.number:
                raise
            return None
        extracted = self.budget.clock()
        judge = self.judge(extraction.store, limit, extraction.columns[0])
        kernels = column_kernels(extraction.store, known or extraction.columns, judge)
        columns, found = (known, judge(kernels.values())) if known else best_of(kernels, judge)
        ended = self.budget.clock()
        trial = Trial(
            number=chosen.number,
            limit=limit,
            title=chosen.title,
            entry=extraction.entry.name,
            columns=columns,
            metric=metric_name(self.where.prepared.task.classes),
            score=found.score,
            loss=found.loss,
            alpha=found.alpha,
            samples=len(judge.y),
            work=work,
            seconds=ended - started,
            judging=ended - extracted,
        )
        self.trials.add(trial)
        return trial

    def judge(self, store: FeatureStore, limit: int | None, column: str) -> Judge:
        """Return the labels and folds of so many rows, as a column has them."""
        if limit not in self.judges:
            self.judges[limit] = Judge.of(ColumnSource(store, column), self.where.prepared.task.classes)
        return self.judges[limit]

    def kernels(self, trials: list[Trial]) -> dict[int, Kernel]:
        """Return the kernel of the best columns of each trial, by its number, and that of the raw input."""
        found: dict[int, Kernel] = {}
        for trial in trials:
            store = self.where.store(trial)
            judge = self.judge(store, trial.limit, trial.columns[0])
            groups = column_kernels(store, trial.columns, judge)
            found[trial.number] = sum(groups.values(), start=Kernel())
            raw = Pool.of(store).raw() if RAW not in found else None
            if raw and judge.fits(raw):
                found[RAW] = Kernel.of(raw)
        return found

    def _known(self, limit: int | None) -> int:
        rows = self.where.rows(limit)
        return sum(rows[split] for split in KNOWN)


def _backbone(candidate: Candidate) -> str:
    return str(candidate.reservoir.get("backbone", DEFAULT_BACKBONE))
