"""The search: candidates on few rows, the best of them on more, each an ordinary entry of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from types import MappingProxyType

from reservoir.options import ClusterOptions
from reservoir.reservoir import DEFAULT_BACKBONE
from reservoir_pipelines.fitting.pool import Pool
from reservoir_pipelines.tuning.attempts import Attempt, Attempts, share_attempts
from reservoir_pipelines.tuning.budget import Budget, Costs
from reservoir_pipelines.tuning.judge import KNOWN, Kernel, column_kernels
from reservoir_pipelines.tuning.space import Candidate
from reservoir_pipelines.tuning.trials import Trial, Trials
from reservoir_pipelines.tuning.where import Where

FEW, MANY = 400, 800
"""Rows of a split on which reservoirs are judged first, and at last: kernel matrices have samples squared."""

SURVIVORS = 0.25  # of the reservoirs that were judged on few rows
FIRST_SHARE = 0.6  # of the time for trials, where those on few rows are not the last ones
RAW = -1  # the number of the raw input among what may be joined
FINALISTS = 8  # reservoirs that may be joined, besides the default and the raw input
AHEAD = 256  # reservoirs that other processes are given at a time: they leave those that would end too late


@dataclass
class Search:
    """Trials within a budget; what has been tried before comes from its file."""

    where: Where
    budget: Budget
    trials: Trials
    show: Callable[[Trial], None]
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        self.attempts = Attempts(self.where, self.budget.clock)

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
        """Try candidates, of ``columns`` those that are known to be best; return their trials, best first.

        The default comes first and is always tried: without it nothing is known of the costs.
        """
        found: list[Trial] = []
        ahead = AHEAD if self.cluster.workers > 1 or self.cluster.scheduler else 1
        while batch := list(islice(numbers, min(ahead if found else 1, most - len(found) if most else ahead))):
            before = [trial for number in batch if (trial := self.trials.get(number, limit))]
            fresh = set(batch) - {trial.number for trial in before}
            wanted = [self._attempt(number, limit, columns.get(number)) for number in batch if number in fresh]
            left = self.budget.left - reserve()
            wanted = [attempt for attempt in wanted if attempt.seconds <= left or not found]
            if fresh and not wanted:
                break
            for trial in before:
                self.show(trial)
            self._make(wanted, left)
            for number in batch:
                if trial := self.trials.get(number, limit):
                    self.costs.observe(_backbone(self.where.candidate(number)), trial.work, trial.seconds)
                    found.append(trial)
        return sorted(found, key=lambda trial: trial.merit, reverse=True)

    def _attempt(self, number: int, limit: int | None, known: tuple[str, ...] | None) -> Attempt:
        chosen = self.where.candidate(number)
        work = self.where.work(chosen, self._known(limit))
        seconds = self.costs.predict(_backbone(chosen), work)
        return Attempt(number=number, limit=limit, columns=known, work=work, seconds=seconds)

    def _make(self, wanted: list[Attempt], left: float) -> None:
        """Make attempts, several of them shared among processes where there are any, and keep each that ends."""
        since = self.budget.clock()

        def keep(trial: Trial | None) -> None:
            nonlocal since
            if trial:
                before, since = since, self.budget.clock()
                self.trials.add(replace(trial, spent=since - before))
                self.show(trial)

        if len(wanted) > 1:
            share_attempts(self.attempts, wanted, self.cluster, left, keep)
        elif wanted:
            keep(self.attempts.make(wanted[0]))

    def kernels(self, trials: list[Trial]) -> dict[int, Kernel]:
        """Return the kernel of the best columns of each trial, by its number, and that of the raw input."""
        found: dict[int, Kernel] = {}
        for trial in trials:
            store = self.where.store(trial)
            judge = self.attempts.judge(store, trial.limit, trial.columns[0])
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
